"""Coverage: who would run each op, told without compiling or running anything."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from torch_max_backend import reports
from torch_max_backend.aten_functions.registry import aten_functions
from torch_max_backend.base.errors import CoverageError, EnvironmentUnsupportedError, Unsupported
from torch_max_backend.base.target import elsewhere, is_faked
from torch_max_backend.cli import app
from torch_max_backend.compile import job, program_libraries, programs
from torch_max_backend.diagnostics import dry_run
from torch_max_backend.diagnostics.coverage import Coverage, coverage, coverage_of
from torch_max_backend.diagnostics.kernel_times import KernelTimes, Row

MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(16, 32), nn.BatchNorm1d(32)

    def forward(self, x, scale=1.0):
        return self.norm(torch.tanh(self.inner(x)))[:, 0] * scale

def native():
    return Net(), (torch.randn(4, 16),), {"scale": 2.0}

def on(device):
    return Net().to(device), (torch.randn(4, 16, device=device),)

def with_islands():
    def transformed(x):
        return torch.fft.fft(x[0].sin().exp().cos()).real.sum(-1)
    return transformed, (torch.randn(3, 8),)

def with_values():
    return (lambda x: x[x > 0].sum()), (torch.randn(8),)

def odd():
    return Net()

def broken():
    raise RuntimeError("not today")
"""


@pytest.fixture
def models(tmp_path: Path) -> str:
    file = tmp_path / "models.py"
    file.write_text(textwrap.dedent(MODELS))
    return str(file)


@pytest.fixture(autouse=True)
def as_programs_without_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users have it; a compiler that starts is a failure."""

    def compiles(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a dry run compiles nothing")

    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(job, "submit", compiles)
    monkeypatch.setattr(programs, "build_shared_library", compiles)
    monkeypatch.setattr(programs, "build_cubin", compiles)
    monkeypatch.setattr(program_libraries.LibraryJob, "done", compiles)


def command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["coverage", *arguments])
    return result.exit_code, result.output


def runners(found: Coverage) -> dict[str, str]:
    return {n.op: n.runner for n in found.nodes}


# -- the command ---------------------------------------------------------------------------------------------------
def test_all_native_is_status_0(models: str) -> None:
    status, told = command(f"{models}:native")
    assert status == 0, told
    assert "generated kernels" in told
    assert "torch, as islands" not in told


def test_islands_are_status_1_with_reason_and_line(models: str) -> None:
    status, told = command(f"{models}:with_islands")
    assert status == 1
    assert "generated kernels" in told
    assert "MAX has no Fourier transform" in told
    assert "torch.fft.fft(x[0].sin()" in told.replace("\n", "")  # brackets are no markup


def test_json_has_every_node(models: str) -> None:
    status, told = command(f"{models}:with_islands", "--json")
    assert status == 1
    found = json.loads(told)
    (graph,) = found["graphs"]
    by_op = {n["op"]: n for n in graph["nodes"]}
    assert graph["kind"] == "inference"
    assert by_op["aten.sin.default"]["runner"] == "loop"
    assert by_op["aten.sin.default"]["bytes"] == 8 * 4 * 2
    assert by_op["aten.select.int"]["bytes"] == 0
    fft = by_op["aten._fft_r2c.default"]
    assert (fft["runner"], fft["detail"], fft["bytes"]) == ("island", "MAX has no Fourier transform", 8 * 4 + 8 * 8)
    assert "models.py:21, in transformed: return torch.fft.fft" in fft["where"]
    assert found["islands"] == sum(n["runner"] == "island" for n in graph["nodes"]) == 2
    assert sum(s["node_share"] for s in found["shares"]) == pytest.approx(1)
    assert sum(s["byte_share"] for s in found["shares"]) == pytest.approx(1)


def test_training_has_both_graphs(models: str) -> None:
    status, told = command(f"{models}:native", "--training", "--json")
    assert status == 0, told
    forward, backward = json.loads(told)["graphs"]
    assert (forward["kind"], backward["kind"]) == ("forward", "backward")
    assert "aten.native_batch_norm_backward.default" in {n["op"] for n in backward["nodes"]}
    assert any("in forward: return self.norm" in n["where"] for n in backward["nodes"])


@pytest.mark.parametrize("function", ["native", "on"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU is here")
def test_a_gpu_need_not_be_here(models: str, function: str) -> None:
    status, told = command(f"{models}:{function}", "--device", "cuda")
    assert status == 0, told
    assert "generated kernels" in told
    assert elsewhere() is None and not is_faked()


@pytest.mark.any_runner("errors")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU is here")
def test_gradients_on_an_absent_gpu_are_an_error(models: str) -> None:
    status, told = command(f"{models}:native", "--device", "cuda", "--training")
    assert status == 2
    assert EnvironmentUnsupportedError.__name__ in told and "there is none here" in told


@pytest.mark.any_runner("errors")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nowhere", "has no function nowhere"),
        ("with_values", "needs the value of a tensor (aten.nonzero.default)"),
        ("odd", "expected (model, args) or (model, args, kwargs), with a tuple and a dict, and got Net"),
        ("broken", "the function raised RuntimeError"),
    ],
)
def test_no_answer_is_status_2(models: str, function: str, message: str) -> None:
    status, told = command(f"{models}:{function}")
    assert status == 2
    assert message in told


@pytest.mark.any_runner("errors")
def test_unknown_devices_and_missing_arguments_are_status_2(models: str) -> None:
    assert command()[0] == 2
    status, told = command(f"{models}:native", "--device", "tpu")
    assert status == 2 and "cuda:sm_90a" in told


# -- the function --------------------------------------------------------------------------------------------------
def test_neither_weights_nor_statistics_are_touched() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = {name: x.clone() for name, x in net.state_dict().items()}
    x = torch.randn(3, 4)
    state = torch.get_rng_state()
    found = coverage(net, x)
    assert [g.kind for g in found.graphs] == ["forward", "backward"]
    assert all(torch.equal(before[name], x) for name, x in net.state_dict().items())
    assert all(p.grad is None and type(p) is nn.Parameter for p in net.parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert runners(found)["aten.bernoulli.p"] == "torch"
    assert not [n for n in found.nodes if n.runner == "library"], "small products are loops"
    with torch.no_grad():
        assert [g.kind for g in coverage(net, x).graphs] == ["inference"]


def test_it_says_what_a_compiled_graph_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(torch.softmax(x @ w, -1).sort().values).abs().sum() + (w @ w).cos().exp().sin()

    x, w = torch.randn(4, 8), torch.randn(8, 8)
    found = coverage(function, x, w)
    monkeypatch.undo()  # compilers may run
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    with pytest.warns(UserWarning, match="torch runs"):
        torch.compile(function, backend="max_backend")(x, w)
    report = reports()[-1]
    assert sum(report.library_calls.values()) == sum(n.runner == "library" for n in found.nodes) > 0
    assert sum(report.island_ops.values()) == len(found.islands)
    assert report.nodes == sum(1 for n in found.nodes) + 1  # and the getitem of the sort


def test_what_a_lowering_declines_is_an_island(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some limits show only while a region is lowered."""
    op = torch.ops.aten.exp.default

    def declines(*args: Any, **kwargs: Any) -> None:
        raise Unsupported("not on Sundays")

    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "graph")
    lowering = aten_functions.lowerings[op]
    monkeypatch.setitem(aten_functions.lowerings, op, dataclasses.replace(lowering, function=declines))
    found = coverage(lambda x: (x.cos().sin() * 2).exp().cos().sin() * 2, torch.randn(3))
    assert [(n.op, n.detail) for n in found.islands] == [(str(op), "not on Sundays")]
    assert [n.runner for n in found.nodes] == ["max"] * 3 + ["island"] + ["max"] * 3


@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_that_are_symbolic(dynamic: bool) -> None:
    x = torch.randn(4, 8)
    if dynamic:
        torch._dynamo.mark_dynamic(x, 0)
    found = coverage(lambda x: (x.sum(0) * x.shape[0]).view(2, -1), x)
    assert runners(found)["aten.sum.dim_IntList"] == "loop"
    assert not found.islands


def test_graph_breaks_are_several_graphs() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    assert [[(n.op, n.runner) for n in g.nodes] for g in coverage(function, torch.randn(3)).graphs] == [
        [("aten.sin.default", "loop")],
        [("aten.cos.default", "loop")],
    ]


@pytest.mark.any_runner("errors")
def test_values_are_needed() -> None:
    with pytest.raises(CoverageError, match=r"aten\.nonzero"):
        coverage(lambda x: x.nonzero(), torch.ones(3))
    assert not is_faked() and not dry_run.is_wanted()


@pytest.mark.any_runner("what is given")
@pytest.mark.parametrize("made", [None, (1, ()), (torch.sin, torch.ones(1)), (torch.sin, (), ()), (torch.sin,)])
def test_what_gives_a_model_gives_one(made: Any) -> None:
    make: Callable[..., Any] = lambda: made  # noqa: E731
    with pytest.raises(CoverageError, match=r"expected \(model, args\)"):
        coverage_of(make)


@pytest.mark.any_runner("a text")
def test_a_notebook_prints_it_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich shows tables beside the text there, even of a console that writes to a file."""
    text = str(Coverage(()))
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert str(Coverage(())) == text and "0 graph(s)" in text
    row = KernelTimes((Row("kernel", "kernel0 add", 1, 1e-3, 8),), 1e9)
    assert "kernel0 add" in str(row)
