"""Which inputs of a region end with it. Graphs are cut, and nothing is compiled."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from torch_max_backend.compile.compiler import put_off
from torch_max_backend.partition.consumed_inputs import mark_consumed
from torch_max_backend.partition.partitioner import Plan
from torch_max_backend.partition.region import Port, Region

aten = torch.ops.aten


def test_a_backward_consumes_what_its_forward_saved(plans: list[Plan]) -> None:
    layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid())
    with put_off():
        torch.compile(layers, backend="max_backend")(torch.randn(4, 8)).square().sum().backward()
    forward, backward = (plan.regions[0] for plan in plans)
    assert not any(port.consumed for port in forward.inputs)
    consumed = {port.node.name: port.consumed for port in backward.inputs}
    assert consumed and any(consumed.values()) and not all(consumed.values())
    assert all(taken is not name.startswith(("primals", "tangents")) for name, taken in consumed.items())


def test_what_is_compared_is_not_consumed(plans: list[Plan]) -> None:
    with put_off():
        options = {"verify": True}
        torch.compile(nn.Tanh(), backend="max_backend", options=options)(torch.randn(4, requires_grad=True)).sum()
    assert not any(port.consumed for plan in plans for region in plan.regions for port in region.inputs)


@pytest.fixture
def graph() -> fx.Graph:
    return fx.Graph()


def value(graph: fx.Graph, name: str, like: torch.Tensor | None = None) -> fx.Node:
    node = graph.placeholder(name)
    node.meta["val"] = torch.empty(4) if like is None else like
    return node


def called(graph: fx.Graph, source: fx.Node, view: bool = False) -> fx.Node:
    node = graph.call_function(aten.view.default if view else aten.neg.default, (source,))
    node.meta["val"] = source.meta["val"].view(2, 2) if view else torch.empty(4)
    return node


def region(inputs: list[fx.Node], outputs: list[fx.Node], mutable: bool = False) -> Region:
    return Region(outputs, [Port(n, (0,), mutable) for n in inputs], [Port(n, (0,)) for n in outputs])


def consumed(plan: Plan, graph: fx.Graph) -> list[list[str]]:
    mark_consumed(plan, graph)
    return [[p.node.name for p in r.inputs if p.consumed] for r in plan.regions]


def test_a_result_ends_with_its_last_region(graph: fx.Graph) -> None:
    x = value(graph, "x")
    a, b = called(graph, x), called(graph, x)
    c, d = called(graph, a), called(graph, b)
    graph.output((d, c))
    plan = Plan([region([x], [a, b]), region([a, b], [c]), region([b, c], [d])])
    assert consumed(plan, graph) == [[], [a.name], [b.name]]


@pytest.mark.parametrize("who", ["torch", "a result", "a result by its alias", "a copy"])
def test_memory_that_is_read_later_stays(graph: fx.Graph, who: str) -> None:
    x = value(graph, "x")
    a = called(graph, x)
    b, seen = called(graph, a), called(graph, a, view=True)
    plan = Plan([region([x], [a]), region([a], [b])])
    if who == "torch":
        later = called(graph, seen)
        plan.steps.append(later)
        graph.output((b, later))
    elif who == "a copy":
        plan.copies.append(graph.call_function(aten.copy_.default, (x, seen)))
        graph.output((b,))
    elif who == "a result":
        graph.output((b, seen))
    else:
        seen.meta["val"] = torch.empty(2, 2)
        plan.alias[seen] = a
        graph.output((b, seen))
    assert consumed(plan, graph) == [[], []]


def test_what_is_written_to_and_what_is_a_parameter_stay(graph: fx.Graph) -> None:
    value(graph, "tangents_1")
    weight, saved = value(graph, "primals_1"), value(graph, "saved")
    piece = value(graph, "piece", weight.meta["val"][:2])
    target = value(graph, "target")
    a = called(graph, saved)
    graph.output((a,))
    plan = Plan([region([weight, saved, piece], [a])])
    plan.regions[0].inputs.append(Port(target, (0,), mutable=True))
    assert consumed(plan, graph) == [[saved.name]]
