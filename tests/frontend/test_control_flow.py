"""``torch.cond``, loops, scans and maps: the call path chooses and repeats compiled graphs, and eager agrees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as map_slices
from torch._higher_order_ops.switch import switch

from torch_max_backend import max_backend, reports
from torch_max_backend.base.errors import UnsupportedOpError
from torch_max_backend.capture import maps
from torch_max_backend.diagnostics import report

pytestmark = pytest.mark.sampled

Function = Callable[..., Any]


def compiled(function: Function, dynamic: bool = False, **options: Any) -> Function:
    chosen = {"fallback": "error", "executor": "auto", **options}
    backend = lambda gm, inputs: max_backend(gm, inputs, options=chosen)  # noqa: E731
    return torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)


def results_of(function: Function, inputs: Sequence[torch.Tensor], grad: bool) -> list[torch.Tensor]:
    """What a function returns, and the gradients of its inputs if they are wanted."""
    own = [x.clone().requires_grad_(grad and x.is_floating_point()) for x in inputs]
    found = [x for x in torch.utils._pytree.tree_leaves(function(*own)) if isinstance(x, torch.Tensor)]
    if not grad:
        return found
    weights = [torch.linspace(0.5, 1, x.numel(), dtype=x.dtype).view(x.shape) for x in found]
    sum((x * w).sum() for x, w in zip(found, weights, strict=True) if x.requires_grad).backward()
    return [x.detach() for x in found] + [x.grad for x in own if x.grad is not None]


def agrees(
    function: Function, *calls: Sequence[torch.Tensor], grad: bool = False, dynamic: bool = False, **how: Any
) -> None:
    """Each call gives what eager gives, by one compiled function, and torch runs none of it as an island.

    Args:
        how: Tolerances.
    """
    report.clear()
    mine = compiled(function, dynamic)
    for inputs in calls:
        torch.testing.assert_close(results_of(mine, inputs, grad), results_of(function, inputs, grad), **how)
    assert not any(r.islands for r in reports())
    assert sum(r.stats.programs for r in reports()) > 0


def chooses(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return torch.cond(p, lambda x: (x.sin() * 2).exp(), lambda x: x.cos() + 1, (x * 2,)) + 1


def chooses_by_values(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.softmax(-1), lambda x: -x, (x,))


def chooses_by_size(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.shape[0] > 5, lambda x: x.sin(), lambda x: x.cos(), (x,))


def chooses_twice(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    return torch.cond(p, inner, lambda x: x.cos(), (x,))


def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return while_loop(lambda i, x: x.abs().amax() > 0.1, lambda i, x: (i + 1, x.sin() / 2), (torch.tensor(0), x))


def counts(x: torch.Tensor) -> tuple[Any, torch.Tensor]:
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x.sin() + 1), (0, x))


def counts_in_a_tensor(x: torch.Tensor) -> tuple[Any, ...]:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.sin() * 1.5), (torch.tensor(0), x))


def recurrent(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> Any:
    def step(h: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        new = (h @ w + x).tanh()
        return new, new * 2

    return scan(step, h, x)


def recurrent_backwards(x: torch.Tensor, h: torch.Tensor) -> Any:
    return scan(lambda h, x: (h * 0.5 + x, {"a": h + x, "b": (h * x).sum(-1)}), h, x, reverse=True)


def first_order(a: torch.Tensor, b: torch.Tensor) -> Any:
    return associative_scan(lambda u, v: (u[0] * v[0], u[1] * v[0] + v[1]), (a, b), 0, combine_mode="pointwise")


def products_along_rows(x: torch.Tensor) -> Any:
    return associative_scan(torch.mul, x, 1, combine_mode="pointwise")


def rows_alone(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return map_slices(lambda x, y: (x.sin() * y).softmax(-1), x, y)


def one_of_three(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return switch(i, [torch.sin, torch.cos, torch.exp], (x,))


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype)


YES, NO = torch.tensor(True), torch.tensor(False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("grad", [False, True])
def test_cond_runs_one_of_two_graphs(dtype: torch.dtype, grad: bool) -> None:
    x = randn(8, 6, dtype=dtype)
    agrees(chooses, (x, YES), (x, NO), grad=grad)


def test_predicates_of_values_and_sizes() -> None:
    x = randn(8, 6)
    agrees(chooses_by_values, (x.abs(),), (-x.abs(),), grad=True)
    agrees(chooses_by_size, (randn(8, 4),), (randn(3, 4),), dynamic=True)


def test_a_choice_inside_a_choice() -> None:
    x = randn(4, 5).abs()
    agrees(chooses_twice, (x, YES), (-x, YES), (x, NO), grad=True)


@pytest.mark.parametrize("function", [halves, counts])
def test_loops_end_by_their_condition(function: Function) -> None:
    agrees(function, (randn(4, 5),), (torch.zeros(4, 5),))


def test_the_gradient_of_a_loop_reads_no_index_to_the_host() -> None:
    agrees(counts_in_a_tensor, (randn(4, 5),), grad=True)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scan(dtype: torch.dtype, grad: bool) -> None:
    inputs = tuple(randn(*s, dtype=dtype) for s in ((6, 3, 4), (3, 4), (4, 4)))
    if dtype == torch.float32:
        return agrees(recurrent, inputs, grad=grad)
    # eager rounds products of up to 4, to 2 ** -7, which a kernel adds to at once; what comes of that counts twice, and
    # gradients are sums over 6 steps
    agrees(recurrent, inputs, grad=grad, rtol=0.016, atol=(6 if grad else 1) * 2**-5)


def test_scan_of_trees_backwards_with_symbolic_sizes() -> None:
    agrees(recurrent_backwards, (randn(6, 3, 4), randn(3, 4)), (randn(9, 5, 4), randn(5, 4)), dynamic=True)


def test_scan_of_nothing() -> None:
    agrees(recurrent_backwards, (randn(0, 3, 4), randn(3, 4)))


@pytest.mark.parametrize("length", [1, 2, 3, 8, 13])
def test_associative_scan(length: int) -> None:
    agrees(first_order, (randn(length, 5), randn(length, 5)))


def test_associative_scan_along_another_dimension() -> None:
    agrees(products_along_rows, (randn(3, 7),))


@pytest.mark.parametrize("grad", [False, True])
def test_map(grad: bool) -> None:
    """All slices at once: there is no graph of one slice."""
    report.clear()
    agrees(rows_alone, (randn(5, 3, 4), randn(4)), grad=grad)
    assert [r.stats.programs for r in reports()] == [1] * (1 + grad)


def products_alone(x: torch.Tensor, y: torch.Tensor) -> Any:
    return map_slices(lambda x, y: ((x @ y).relu(), {"norm": torch.nn.functional.layer_norm(x, (4,))}), x, y)


def test_map_of_products() -> None:
    agrees(products_alone, (randn(5, 3, 4), randn(4, 2)))


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_map_that_takes_much_memory_runs_slice_by_slice(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "MOST", limit)
    report.clear()
    agrees(rows_alone, (randn(5, 3, 4), randn(4)))
    assert len(reports()) == (1 if limit else 2)


def drops(x: torch.Tensor) -> Any:
    return map_slices(lambda x: torch.nn.functional.dropout(x, 0.5) * 2, x)


def test_map_with_random_numbers_draws_them_as_eager_does() -> None:
    x = randn(5, 64)
    torch.manual_seed(3)
    given = compiled(drops)(x)
    torch.manual_seed(3)
    torch.testing.assert_close(given, drops(x))


def test_map_of_an_op_that_is_not_batched_runs_slice_by_slice() -> None:
    report.clear()
    agrees(lambda x: map_slices(lambda x: torch.histc(x, 4, 0.0, 1.0), x), (torch.rand(3, 8),))
    assert len(reports()) == 2


def test_map_of_a_symbolic_number_of_slices() -> None:
    agrees(rows_alone, (randn(5, 3, 4), randn(4)), (randn(7, 3, 4), randn(4)))


def test_switch_takes_the_nearest_graph() -> None:
    x = randn(4, 5)
    agrees(one_of_three, *((x, torch.tensor(i)) for i in range(3)))


def test_each_graph_has_a_report() -> None:
    report.clear()
    compiled(chooses)(randn(8, 6), YES)
    assert [r.stats.programs for r in reports()] == [1, 1, 2]


def test_an_associative_scan_of_symbolic_length_is_an_island_with_a_reason() -> None:
    function = compiled(first_order, dynamic=True)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="the number of its steps is symbolic") as raised:
        function(randn(6, 5), randn(6, 5))
    assert isinstance(raised.value.inner_exception, UnsupportedOpError)


def test_an_island_inside_a_graph_is_refused() -> None:
    def holds_an_island(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        return torch.cond(p, lambda x: x.sin(), lambda x: x.cos(), (x,))

    function = compiled(holds_an_island, torch_executed_ops=("aten.cos",))
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="listed in torch_executed_ops"):
        function(randn(3, 4), YES)
