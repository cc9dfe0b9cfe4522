"""Cutting a level around nodes that have no loops: as few parts as the order allows, and no write before a read."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_max_backend.partition.partitioner import Plan, partition

aten = torch.ops.aten


def plan_of(function: Callable[..., object], inputs: int, without_loops: object) -> Plan:
    graph = make_fx(function, tracing_mode="fake")(*(torch.randn(3, 4) for _ in range(inputs))).graph
    return partition(graph, without_loops=[n for n in graph.nodes if n.target is without_loops])


def targets(plan: Plan) -> list[list[str]]:
    names = [[n.name.rpartition("_")[0] or n.name for n in region.nodes] for region in plan.regions]
    return [[name for name in of_region if name != "getitem"] for of_region in names]


def test_the_nodes_around_form_regions_of_their_own() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = aten.mode.default(aten.sin.default(x), 1)
        rows = aten.exp.default(found[0])
        return aten.add.Tensor(rows, aten.sum.default(y)), aten.cos.default(y)

    plan = plan_of(function, 2, aten.mode.default)
    assert targets(plan) == [["sin", "sum", "cos"], ["mode"], ["exp", "add"]]


def test_nodes_side_by_side_share_a_region() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        left, right = aten.mode.default(aten.sin.default(x), 1)[0], aten.mode.default(aten.cos.default(y), 1)[0]
        return aten.add.Tensor(left, aten.exp.default(right))

    plan = plan_of(function, 2, aten.mode.default)
    assert [sorted(names) for names in targets(plan)] == [["cos", "sin"], ["mode", "mode"], ["add", "exp"]]


def test_a_view_of_an_input_is_in_every_region_that_reads_it() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        rows = aten.t.default(x)
        return aten.add.Tensor(aten.mode.default(rows, 0)[0], aten.sum.dim_IntList(rows, [0]))

    plan = plan_of(function, 1, aten.mode.default)
    assert [names.count("t") for names in targets(plan)] == [1, 1, 0]


def test_what_is_read_late_is_computed_late() -> None:
    """As what a backward computes again: it would be kept from the first region on. A sum is smaller than its input."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first = aten.sum.dim_IntList(aten.exp.default(y), [1])
        late = aten.cos.default(aten.neg.default(y))
        found = aten.add.Tensor(aten.mode.default(aten.sin.default(x), 1)[0], first)
        return aten.mul.Tensor(aten.mode.default(aten.mul.Tensor(late, found[:, None]), 1)[0], aten.tan.default(found))

    plan = plan_of(function, 2, aten.mode.default)
    assert targets(plan)[0] == ["exp", "sum", "sin"]
    assert targets(plan)[2][:2] == ["neg", "cos"]


def test_what_is_read_behind_an_island_is_computed_there() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        late = aten.cos.default(aten.neg.default(y))
        return aten.mul.Tensor(aten.mode.default(aten.sin.default(x), 1, True)[0], late)

    graph = make_fx(function, tracing_mode="fake")(torch.randn(3, 4), torch.randn(3, 4)).graph
    plan = partition(graph, torch_executed=["aten.mode.default"])
    assert targets(plan) == [["sin"], ["neg", "cos", "mul"]]


def test_what_reads_an_input_that_is_written_is_not_late() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        early = aten.cos.default(aten.neg.default(y))
        aten.copy_.default(y, aten.exp.default(x))
        return aten.mul.Tensor(aten.mode.default(aten.sin.default(x), 1, True)[0], early)

    graph = make_fx(function, tracing_mode="fake")(torch.randn(3, 4), torch.randn(3, 4)).graph
    first, *_ = targets(partition(graph, torch_executed=["aten.mode.default"]))
    assert {"neg", "cos"} <= {*first}


def test_torch_writes_what_a_later_region_reads() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        read_later = aten.copy_.default(x, aten.sin.default(x))
        written = aten.copy_.default(y, aten.cos.default(y))
        del read_later, written
        return aten.mode.default(x, 1)[0]

    graph = make_fx(function, tracing_mode="fake")(torch.randn(3, 4), torch.randn(3, 4)).graph
    mode = next(n for n in graph.nodes if n.target is aten.mode.default)
    x, y = graph.find_nodes(op="placeholder")
    mode.replace_input_with(mode.all_input_nodes[0], x)  # the old value, as a functional graph has it
    plan = partition(graph, without_loops=[mode])
    assert [copy.args[0] for copy in plan.copies] == [x]
    assert [[target for target, _ in region.stores] for region in plan.regions] == [[y], []]
