"""PyTorch's own accuracy minifier knows this backend by its name."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

from tests.diagnostics.verify.injection import inject
from torch_max_backend.loops.rules import registry
from torch_max_backend.loops.rules.pointwise import pointwise

pytestmark = pytest.mark.sampled


def three_times(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.relu(x @ w) + 1) * 3


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor]:
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    monkeypatch.setenv("TORCH_MAX_BACKEND_CACHE_DIR", str(tmp_path / "store"))
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
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(launcher)])
    runpy.run_path(str(launcher), run_name="__main__")
    (repro,) = tmp_path.rglob("repro.py")
    body = repro.read_text().partition("class Repro")[2].partition("if __name__")[0]
    assert "torch.tanh(" in body and "relu" not in body and "@" not in body


@pytest.mark.any_runner("torch calls no hook of a backend other than its own")
def test_after_aot_it_looks_at_inductor_alone(
    inputs: tuple[torch.Tensor, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._dynamo.config, "repro_after", "aot")
    inject(monkeypatch)
    torch.compile(three_times, backend="max_backend")(*inputs)
    assert not list(tmp_path.rglob("minifier_launcher.py"))
