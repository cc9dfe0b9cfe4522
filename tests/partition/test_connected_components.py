"""How a graph becomes regions: large ones that fall apart are cut, and random numbers alone split none."""

from __future__ import annotations

import pytest
import torch

from torch_max_backend import reports
from torch_max_backend.aten_functions.registry import Lowering, aten_functions
from torch_max_backend.capture.graph_passes import split_dropout
from torch_max_backend.compile.compiler import put_off
from torch_max_backend.diagnostics import report
from torch_max_backend.partition.partitioner import Plan


def update(tensors: list[torch.Tensor], state: list[torch.Tensor], steps: int) -> torch.Tensor:
    """Independent chains that write their tensors, but for the last two: one reads what the other overwrites."""
    old = tensors[-1].sum()
    for t, s in zip(tensors, state, strict=True):
        for _ in range(steps):
            s.mul_(0.5).add_(t.sin())
            t.sub_(s.abs() * 0.1)
    state[-2].add_(old)
    return old + 1


@pytest.mark.full
def test_independent_updates() -> None:
    def inputs() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        generator = torch.Generator().manual_seed(0)
        shapes = [(4, 5)] * 10 + [(7,)] * 10
        return tuple([torch.randn(shape, generator=generator) for shape in shapes] for _ in range(2))  # type: ignore[return-value]

    report.clear()
    wanted, given = inputs(), inputs()
    run = torch.compile(update, backend="max_backend", options={"fallback": "error"})
    torch.testing.assert_close(run(*given, 3), update(*wanted, 3))
    torch.testing.assert_close(given, wanted)
    (only,) = reports()
    assert only.nodes > 256
    assert only.stats.regions > 2
    assert len(set(only.stats.keys)) < only.stats.regions


def test_small_regions_stay_whole(plans: list[Plan]) -> None:
    tensors = [torch.randn(3) for _ in range(8)]
    with put_off():  # nothing of it depends on the compiler
        torch.compile(update, backend="max_backend", options={"fallback": "error"})(
            tensors, [t.clone() for t in tensors], 1
        )
    assert [len(plan.regions) for plan in plans] == [1]


def test_random_numbers_do_not_split_a_region(plans: list[Plan]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.dropout(x.exp(), 0.4).sin()
        return torch.nn.functional.dropout(y + torch.rand_like(y), 0.1).cos()

    x = torch.randn(5, 3, requires_grad=True)
    with put_off():  # nothing of it depends on the compiler
        torch.compile(function, backend="max_backend", options={"fallback": "error"})(x).sum().backward()
    assert [len(plan.regions) for plan in plans] == [1, 1]


@pytest.mark.any_runner("a graph pass, which comes before the partition")
def test_a_lowering_of_dropout_is_left_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    dropout = torch.ops.aten.native_dropout.default
    graph = torch.fx.Graph()
    graph.output(graph.call_function(dropout, (graph.placeholder("x"), 0.5, True)))
    gm = torch.fx.GraphModule({}, graph)
    with pytest.raises(KeyError):  # without one it looks at the node's value, and there is none
        split_dropout(gm)
    monkeypatch.setitem(aten_functions.lowerings, dropout, Lowering(dropout, lambda x, p, train: (x, x)))
    split_dropout(gm)
    assert len(gm.graph.find_nodes(op="call_function", target=dropout)) == 1
