"""Graphs with tensors of the host and of a GPU. They are traced for a GPU that is not there, and nothing is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from tests.support.absent_gpu import noted_plans, trace
from torch_max_backend.base.errors import Unsupported
from torch_max_backend.base.target import Machine
from torch_max_backend.compile.programs import Program as Compiled
from torch_max_backend.loops.from_region import device_of
from torch_max_backend.partition.partitioner import Plan
from torch_max_backend.partition.region import Port, Region

pytestmark = pytest.mark.any_runner("plans and loop programs, of which nothing is run")

aten = torch.ops.aten


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Plan, dict[int, Compiled]]]:
    """The plan of a function, and the programs of its regions by position."""
    found = noted_plans(monkeypatch)

    def of(function: Callable[..., Any], *inputs: Callable[[], torch.Tensor]) -> tuple[Plan, dict[int, Compiled]]:
        trace(function, *inputs)
        return found[-1]

    return of


def host(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.empty(shape)


def gpu(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.empty(shape, device="cuda")


def devices(plan: Plan, programs: dict[int, Compiled]) -> list[str]:
    """Where the regions compute, in running order; all of them are programs."""
    assert sorted(programs) == list(range(len(plan.regions)))
    return ["cuda" if programs[k].arch else "cpu" for k in range(len(plan.regions))]


def copies(plan: Plan) -> list[tuple[str, str]]:
    """What torch copies between devices: from where, and to where."""
    nodes = [n for n in plan.steps if getattr(n, "target", None) is aten._to_copy.default]
    return [(n.args[0].meta["val"].device.type, n.meta["val"].device.type) for n in nodes]


def test_a_graph_of_two_devices_is_two_programs(planned: Callable[..., Any]) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        there = (x * 2 + 1).sin().to("cuda") + y.exp()
        return there, (there.sum() * 2).cpu() + x

    plan, programs = planned(function, host(8, 9), gpu(8, 9))
    assert devices(plan, programs) == ["cpu", "cuda", "cpu"]
    assert copies(plan) == [("cpu", "cuda"), ("cuda", "cpu")] and not plan.islands


def test_a_number_on_the_host_is_copied_once(planned: Callable[..., Any]) -> None:
    def function(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x * scale).relu() + scale

    plan, programs = planned(function, gpu(8, 9), host())
    assert devices(plan, programs) == ["cuda"] and copies(plan) == [("cpu", "cuda")]


def test_indices_on_the_host_are_copied(planned: Callable[..., Any]) -> None:
    def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[index.long() + 1] * 2

    plan, programs = planned(function, gpu(8, 9), host(5))
    assert devices(plan, programs) == ["cpu", "cuda"] and copies(plan) == [("cpu", "cuda")]


def test_a_graph_of_one_device_has_no_copies(planned: Callable[..., Any]) -> None:
    plan, programs = planned(lambda x: x.half().to("cuda").float() * 2, gpu(8, 9))
    assert devices(plan, programs) == ["cuda"] and not copies(plan)


def test_a_region_of_two_devices_names_a_tensor_of_each() -> None:
    graph = fx.Graph()
    here, there = graph.placeholder("here"), graph.placeholder("there")
    with Machine.parse("cuda:sm_90a").pretended():
        here.meta["val"], there.meta["val"] = host(3)(), gpu(3)()
        region = Region([], [Port(here, (0,))], [Port(there, (0,))], [])
        with pytest.raises(Unsupported, match=r"one device, not on cpu \(here\), cuda:0 \(there\)"):
            device_of(region)


def test_constants_of_the_host_are_copied_once_and_for_all(planned: Callable[..., Any]) -> None:
    """As DeBERTa makes the scale of its scores; such a copy of every call waits for the host."""

    def function(x: torch.Tensor) -> torch.Tensor:
        scale = torch.sqrt(torch.tensor(64.0) * 3)
        weights = torch.tensor([1.0, 2.0, 3.0]).exp()
        return x / scale.to(x.dtype) + weights.to(x.device) + weights[1]

    plan, programs = planned(function, gpu(8, 3))
    assert devices(plan, programs) == ["cuda"] and not copies(plan)
