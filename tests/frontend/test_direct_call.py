"""Which graphs are called without AOTAutograd's wrapper, and that they give what eager gives either way."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.processes import Processes
from torch_max_backend import backend
from torch_max_backend.frontend import compiled_graph
from torch_max_backend.runtime.call_path import CallSpec
from torch_max_backend.runtime.cuda_graphs import recorded_program
from torch_max_backend.runtime.cuda_graphs.recorded_program import RecordedProgram
from torch_max_backend.runtime.cuda_graphs.turns import Turns

OPTIONS = {"fallback": "error", "executor": "auto"}


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Notes for each graph whether it is called directly."""
    found: list[bool] = []
    decide = backend.direct_call

    def noted(*args: Any) -> Callable[..., Any] | None:
        function = decide(*args)
        found.append(function is not None)
        return function

    monkeypatch.setattr(backend, "direct_call", noted)
    return found


def agrees(function: Callable[..., Any], *inputs: Any, **how: Any) -> None:
    compiled = torch.compile(function, backend="max_backend", options=OPTIONS, **how)
    mine, theirs = ([x.clone() if isinstance(x, torch.Tensor) else x for x in inputs] for _ in range(2))
    for _ in range(2):
        torch.testing.assert_close(compiled(*mine), function(*theirs))
    torch.testing.assert_close(mine, theirs)


def scaled(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * 2 + y, (x * y).sum()


def by_size(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * x.shape[0] + y).sum(0)


def test_new_tensors_of_what_is_only_read(direct: list[bool]) -> None:
    x, y = torch.randn(5, 3), torch.randn(5, 3)
    agrees(scaled, x, y)
    agrees(by_size, x, y, dynamic=True)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    with torch.no_grad():
        agrees(model, x)
    assert direct == [True] * 3


def written(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x.sum()


@pytest.mark.parametrize(
    "function",
    [
        written,
        lambda x: (x * 2, x.t()),
        lambda x: ((y := x * 2), y[0]),
    ],
    ids=["a write", "a view of an argument", "a view of a result"],
)
def test_what_the_wrapper_gives(function: Callable[..., Any], direct: list[bool]) -> None:
    agrees(function, torch.randn(4, 4))
    assert direct == [False]


@pytest.mark.parametrize("function", [lambda x: x, lambda x: ((y := x * 2), y), lambda x: (x * 2, None, 3)])
def test_what_dynamo_gives(function: Callable[..., Any], direct: list[bool]) -> None:
    """Arguments that are returned, results that are returned twice, and constants are in no graph."""
    agrees(function, torch.randn(4, 4))
    assert False not in direct


def test_gradients_are_for_the_wrapper(direct: list[bool]) -> None:
    x, y = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3)
    compiled = torch.compile(scaled, backend="max_backend", options=OPTIONS)
    with torch.no_grad():
        assert not compiled(x, y)[0].requires_grad
    result, _ = compiled(x, y)
    result.sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 2))
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x, y), scaled(x, y))
    assert direct[:2] == [True, False]
    detached = torch.compile(lambda a: a.detach() * 2, backend="max_backend", options=OPTIONS)
    assert not detached(x).requires_grad


def test_the_grad_mode_that_a_graph_sets(direct: list[bool]) -> None:
    def sets(x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(False)
        return x * 2

    try:
        torch.compile(sets, backend="max_backend", options=OPTIONS)(torch.randn(3))
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)
    assert direct == [False]


def test_autocast_is_over_when_a_library_is_called(direct: list[bool]) -> None:
    def exactly(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return x @ x

    x = torch.randn(8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        agrees(exactly, x)
    agrees(exactly, x)
    assert direct[0] is False


def test_a_kept_graph_is_called_directly(processes: Processes, tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import json, torch
        from torch_max_backend import backend, reports
        decide, found = backend.direct_call, []
        backend.direct_call = lambda *args: found.append(decide(*args)) or found[-1]
        options = {"fallback": "error", "executor": "auto"}
        f = torch.compile(lambda x: x * 2 + 1, backend="max_backend", options=options)
        torch.testing.assert_close(f(torch.ones(5)), torch.full((5,), 3.0))
        print(json.dumps({"warm": reports()[-1].warm, "direct": [function is not None for function in found]}))
    """)
    folders = {"TORCH_MAX_BACKEND_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch")}
    told = [processes.run(program, tmp_path, **folders).told for _ in range(2)]
    assert told == [{"warm": warm, "direct": [True]} for warm in (False, True)]


def test_a_recorded_call_is_called_directly(direct: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """As in ``mode="reduce-overhead"`` on a GPU, with stand-ins for CUDA's streams and PyTorch's graph trees."""
    recorded: list[int] = []

    class OnCpu(RecordedProgram):
        def __init__(self, spec: CallSpec, plain: Callable[..., Any]) -> None:
            on_gpu = [dataclasses.replace(region, gpus=(0,)) for region in spec.regions]
            super().__init__(dataclasses.replace(spec, regions=tuple(on_gpu)), plain)

        def _begun(self, args: Sequence[Any]) -> Callable[..., Any]:
            recorded.append(len(args))
            return self._plain

    monkeypatch.setattr(Turns, "take", lambda turns: None)
    monkeypatch.setattr(recorded_program, "_has_trees", lambda: True)
    monkeypatch.setattr(
        compiled_graph, "with_replay", lambda spec, models, options, gate: OnCpu(spec, spec.build(models, gate))
    )
    agrees(scaled, torch.randn(5, 3), torch.randn(5, 3))
    assert direct == [True] and recorded == [2]
