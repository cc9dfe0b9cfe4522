"""Collectives in a program: called in order, waited for late, with what they read left alone until then."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

import torch_max_backend
from torch_max_backend.codegen.program_writer import WrittenProgram

OPTIONS = {"fallback": "error", "executor": "auto"}
ops = torch.ops._c10d_functional


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def waited(start: Callable[..., Any], *args: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function that doubles a tensor, runs a collective on it, and adds one to the result."""
    return lambda x: ops.wait_tensor(start(x * 2, *args)) + 1


def several(start: Callable[..., Any], *args: Any) -> Callable[[torch.Tensor], list[torch.Tensor]]:
    """The same for a collective of two tensors, of which each wait may write both."""
    return lambda x: [ops.wait_tensor(y) + 1 for y in start([x * 2, x + 3], *args)]


def written_to(x: torch.Tensor) -> torch.Tensor:
    """An all-reduce in place."""
    dist.all_reduce(x)
    return x * 2


COLLECTIVES: dict[str, Callable[[torch.Tensor], Any]] = {
    "all_reduce": waited(ops.all_reduce, "sum", "0"),
    "all_gather_into_tensor": waited(ops.all_gather_into_tensor, 1, "0"),
    "reduce_scatter_tensor": waited(ops.reduce_scatter_tensor, "sum", 1, "0"),
    "all_to_all_single": waited(ops.all_to_all_single, [4], [4], "0"),
    "broadcast": waited(ops.broadcast, 0, "0"),
    "all_reduce_coalesced": several(ops.all_reduce_coalesced, "sum", "0"),
    "all_gather_into_tensor_coalesced": several(ops.all_gather_into_tensor_coalesced, 1, "0"),
    "reduce_scatter_tensor_coalesced": several(ops.reduce_scatter_tensor_coalesced, "sum", 1, "0"),
    "all_reduce_": written_to,
}


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function, compiled in strict mode and without a graph break."""
    return torch.compile(function, backend="max_backend", fullgraph=True, options={**OPTIONS, **options})


def calls() -> list[str]:
    """What the latest graph calls of libraries, in order."""
    report = torch_max_backend.reports()[-1]
    assert report.stats.regions == report.stats.programs == 1 and not report.islands
    return list(report.programs[0].library_calls)


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("transposed", [False, True], ids=["dense", "transposed"])
def test_a_collective_is_a_call(name: str, transposed: bool) -> None:
    """Of a program, and named in the report."""
    x = torch.randn(4, 4).t() if transposed else torch.randn(4, 4)
    own, other = x.clone(), x.clone()
    torch.testing.assert_close(compiled(COLLECTIVES[name])(own), COLLECTIVES[name](other), rtol=0, atol=0)
    torch.testing.assert_close(own, other, rtol=0, atol=0)
    assert f"torch.distributed _c10d_functional.{name.removesuffix('_')}.default" in calls()


@pytest.mark.parametrize("how", ["all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"])
def test_gradients_pass(how: str) -> None:
    """Through the collectives that have some."""
    function = {
        "all_gather_into_tensor": lambda x: functional.all_gather_tensor_autograd(x * 2, 0, "0").sin(),
        "reduce_scatter_tensor": lambda x: functional.reduce_scatter_tensor_autograd(x * 2, "sum", 0, "0").sin(),
        "all_to_all_single": lambda x: functional.all_to_all_single_autograd(x * 2, [4], [4], "0").sin(),
    }[how]
    x, y = (torch.arange(12.0).view(4, 3).requires_grad_() for _ in range(2))
    compiled(function)(x).sum().backward()
    back = {"all_gather_into_tensor": "reduce_scatter_tensor", "reduce_scatter_tensor": "all_gather_into_tensor"}
    assert f"torch.distributed _c10d_functional.{back.get(how, how)}.default" in calls()
    function(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_a_wait_comes_with_its_first_reader(written: list[WrittenProgram]) -> None:
    """So that what does not depend on it runs meanwhile."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(x * 2, "sum", "0")
        return total + (y @ y).softmax(-1)

    x = torch.randn(96, 96)
    torch.testing.assert_close(compiled(function)(x, x), function(x, x), rtol=1e-5, atol=1e-4)
    assert [call.rpartition("aten")[2].rpartition("functional")[2] for call in calls()] == [
        ".all_reduce.default",
        ".mm.default",
        ".wait_tensor.default",
    ]


def test_what_a_collective_reads_stays_as_it_is(written: list[WrittenProgram]) -> None:
    """Until it is waited for: nothing is written over it before."""

    def writes_over(start: Callable[..., Any], end: Callable[..., Any]) -> bool:
        def function(x: torch.Tensor) -> Any:
            y = x.cos()
            started = start(y)
            return y + (x @ x).sum(), end(started)

        x = torch.randn(64, 64)
        torch.testing.assert_close(compiled(function)(x), function(x), rtol=1e-5, atol=1e-4)
        return bool(re.search(r"^    (\w+) = \w+$", written[-1].spec.source, re.MULTILINE))

    assert writes_over(torch.special.i0, torch.neg)
    assert not writes_over(lambda y: ops.all_gather_into_tensor(y, 1, "0"), ops.wait_tensor)


def test_nobody_has_to_read_a_result() -> None:
    """Other ranks wait for this one all the same."""

    def function(x: torch.Tensor) -> torch.Tensor:
        functional.all_reduce(x, "sum", "0").sin()
        return x * 2

    x = torch.randn(4)
    torch.testing.assert_close(compiled(function)(x), x * 2)
    assert len(calls()) == 2


def test_a_constant_is_reduced_at_each_call() -> None:
    """And not while the graph is compiled."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * functional.all_reduce(torch.ones(4), "sum", "0")

    compiled(function)(torch.randn(4))
    assert "torch.distributed _c10d_functional.all_reduce.default" in calls()


@pytest.mark.full  # two compiles by MAX
def test_between_regions_of_max_torch_runs_them() -> None:
    """In strict mode as well: they are no islands."""
    x = torch.randn(4, 4)
    function = COLLECTIVES["all_reduce"]
    torch.testing.assert_close(compiled(function, executor="graph")(x), function(x))
    report = torch_max_backend.reports()[-1]
    assert report.stats.regions == 2 and not report.islands


def test_collectives_keep_their_order_beside_islands() -> None:
    """What an island gives is reduced first, if the graph says so."""

    def function(x: torch.Tensor) -> Any:
        first = functional.all_reduce(torch.linalg.eigvalsh(x), "sum", "0")
        return first, functional.broadcast(x * 2, 0, "0")

    x = torch.eye(4)
    found = torch.compile(function, backend="max_backend", options={"executor": "auto"})(x)
    torch.testing.assert_close(found, function(x))
    names = [call for p in torch_max_backend.reports()[-1].programs for call in p.library_calls]
    starts = [n for n in names if "wait" not in n]
    assert [n.rpartition("functional")[2] for n in starts] == [".all_reduce.default", ".broadcast.default"]
