"""PyTorch's own accuracy minifier knows this backend by its name."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.debug_utils import AccuracyError
from torch._dynamo.exc import BackendCompilerFailed

from tests.diagnostics.verify.injection import inject
from torch_max_backend.diagnostics.minifier import is_after_aot
from torch_max_backend.loops.rules import registry
from torch_max_backend.loops.rules.pointwise import pointwise
from torch_max_backend.loops.tensor import Tensor

pytestmark = pytest.mark.sampled


def three_times(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.relu(x @ w) + 1) * 3


@pytest.fixture(autouse=True)
def settings_of_launchers_end_here() -> Iterator[None]:
    """A launcher is a script for a process of its own: it sets for good what the graph was compiled with."""
    with torch._dynamo.config.patch(assume_static_by_default=True, automatic_dynamic_shapes=True):
        yield


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor]:
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    monkeypatch.setenv("TORCH_MAX_BACKEND_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)  # torch copies files there, too
    monkeypatch.setattr(torch._dynamo.config, "debug_dir_root", str(tmp_path / "debug"))
    monkeypatch.setattr(torch._dynamo.config, "repro_level", 4)
    return torch.randn(4, 8), torch.randn(8, 8)


def test_after_dynamo_it_finds_a_wrong_op(
    inputs: tuple[torch.Tensor, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._dynamo.config, "repro_after", "dynamo")
    torch.compile(three_times, backend="max_backend")(*inputs)
    torch._dynamo.reset()
    inject(monkeypatch)
    with pytest.raises(BackendCompilerFailed, match="AccuracyError: Bad accuracy detected"):
        torch.compile(three_times, backend="max_backend")(*inputs)
    (launcher,) = (tmp_path / "debug").rglob("minifier_launcher.py")
    assert "backend='max_backend'" in launcher.read_text()


def test_after_dynamo_it_compares_gradients_of_parameters(
    inputs: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._dynamo.config, "repro_after", "dynamo")
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    torch.compile(model, backend="max_backend")(inputs[0]).sum().backward()
    gradient = model[0].weight.grad
    assert gradient is not None and gradient.isfinite().all()
    model.zero_grad()  # the minifier's runs add to it
    torch._dynamo.reset()
    wrong = torch.ops.aten.tanh_backward.default
    monkeypatch.setitem(registry.rules(), wrong, lambda g, y: pointwise(lambda g, y: g * (1 - y), g, y))
    with pytest.raises(BackendCompilerFailed, match="AccuracyError: Bad accuracy detected"):
        torch.compile(model, backend="max_backend")(inputs[0])


def test_the_launcher_finds_it_again_and_cuts_the_graph_down(
    inputs: tuple[torch.Tensor, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher's own settings: nothing of ``TORCHDYNAMO_REPRO_AFTER`` is left when it compiles."""
    inject(monkeypatch)
    monkeypatch.setattr(torch._dynamo.config, "repro_after", "dynamo")
    with pytest.raises(BackendCompilerFailed):
        torch.compile(three_times, backend="max_backend")(*(x.requires_grad_() for x in inputs))
    monkeypatch.setattr(torch._dynamo.config, "repro_after", None)
    monkeypatch.setattr(torch._dynamo.config, "repro_forward_only", True)
    monkeypatch.setenv("TORCHDYNAMO_DEBUG_DIR", str(tmp_path / "debug"))
    (launcher,) = (tmp_path / "debug").rglob("minifier_launcher.py")
    monkeypatch.setattr(sys, "argv", [str(launcher)])
    runpy.run_path(str(launcher), run_name="__main__")
    (repro,) = tmp_path.rglob("repro.py")
    body = repro.read_text().partition("class Repro")[2].partition("if __name__")[0]
    assert "torch.tanh(" in body and "relu" not in body and "@" not in body


def launched(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Run the launcher in this process, whose rule is wrong, and not in those of its own for each try."""
    (launcher,) = (folder / "debug").rglob("minifier_launcher.py")
    text = launcher.read_text()
    assert (
        "from torch_max_backend.frontend.after_aot import repro_with" in text
        and "after_aot import run_repro" not in text
    )
    assert "'min_block_size': 1" in text, "options of the call"
    monkeypatch.setattr(torch._dynamo.config, "repro_after", None)
    monkeypatch.setenv("TORCHDYNAMO_DEBUG_DIR", str(folder / "debug"))
    monkeypatch.setattr(sys, "argv", [str(launcher), *arguments])
    runpy.run_path(str(launcher), run_name="__main__")


@pytest.mark.parametrize("dynamic", [False, True])
def test_after_aot_it_finds_a_wrong_op_and_cuts_the_graph_down(
    inputs: tuple[torch.Tensor, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dynamic: bool
) -> None:
    monkeypatch.setattr(torch._dynamo.config, "repro_after", "aot")
    options = {"min_block_size": 1}
    expected = three_times(*inputs)
    compiled = torch.compile(three_times, backend="max_backend", options=options, dynamic=dynamic)
    torch.testing.assert_close(compiled(*inputs), expected)
    assert not list(tmp_path.rglob("minifier_launcher.py"))
    torch._dynamo.reset()
    inject(monkeypatch)
    with pytest.raises(AccuracyError, match="Bad accuracy detected"):
        torch.compile(three_times, backend="max_backend", options=options, dynamic=dynamic)(*inputs)
    launched(tmp_path, monkeypatch, "minify", "--no-isolate")
    repro = tmp_path / "repro.py"
    body = repro.read_text().partition("class Repro")[2].partition("def load_args")[0]
    assert re.findall(r"torch\.ops\.aten\.(\w+)", body) == ["tanh"]
    monkeypatch.setattr(sys, "argv", [str(repro)])
    with pytest.raises(AccuracyError):
        runpy.run_path(str(repro), run_name="__main__")


def test_after_aot_it_compares_backwards(
    inputs: tuple[torch.Tensor, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._dynamo.config, "repro_after", "aot")
    wrong = torch.ops.aten.tanh_backward.default
    monkeypatch.setitem(registry.rules(), wrong, lambda g, y: pointwise(lambda g, y: g * (1 - y), g, y))
    compiled = torch.compile(three_times, backend="max_backend", options={"min_block_size": 1})
    result = compiled(*(x.requires_grad_() for x in inputs))
    with pytest.raises(AccuracyError):
        result.sum().backward()
    launched(tmp_path, monkeypatch, "minify", "--no-isolate")
    assert "tanh_backward" in (tmp_path / "repro.py").read_text().partition("class Repro")[2]


def test_after_aot_a_region_that_does_not_compile_is_written_down(
    inputs: tuple[torch.Tensor, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Level 2 is about errors, which ``fallback`` must not hide."""
    monkeypatch.setattr(torch._dynamo.config, "repro_after", "aot")
    monkeypatch.setattr(torch._dynamo.config, "repro_level", 2)

    def broken(self: Tensor) -> Tensor:
        raise ZeroDivisionError("a rule is broken")

    inject(monkeypatch, broken)
    options = {"min_block_size": 1, "fallback": "error"}
    with pytest.raises(BackendCompilerFailed, match="a rule is broken"):
        torch.compile(three_times, backend="max_backend", options=options)(*inputs)
    launched(tmp_path, monkeypatch, "minify", "--no-isolate")
    assert "aten.tanh" in (tmp_path / "repro.py").read_text()


@pytest.mark.any_runner("nothing is compared")
def test_nothing_is_compared_unless_it_is_asked_for() -> None:
    assert not is_after_aot()
