"""Kernels of ATen that do not look at strides, or read none but some: they get what they would get in eager."""

# ruff: noqa: E501 (one case a line)
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from tests.loops.test_library_calls import called, integers, numbers
from tests.support.reach import all_cases, read
from torch_max_backend.capture.decompositions import decomposition_table
from torch_max_backend.loops.libraries import AS_TRACED, LIBRARY, OF_DENSE_ROWS, SORTS
from torch_max_backend.loops.library_calls import CONTIGUOUS

pytestmark = pytest.mark.any_runner("programs without a graph")
aten = torch.ops.aten


def _bag(mode: str) -> Callable[..., Any]:
    """Of every second index and offset."""
    return lambda indices, offsets, table: F.embedding_bag(indices[::2], table, offsets[::2], mode=mode)


def _of_contiguous(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of tensors of which the program's inputs are the transposed ones."""
    return lambda *given: function(*(x.transpose(-1, -2).contiguous() for x in given))


INDICES, OFFSETS = integers(0, 10, 10), torch.tensor([0, 9, 1, 9, 3, 9])
TABLE = numbers(10, 5)
INT4 = aten._convert_weight_to_int4pack_for_cpu(integers(0, 16, 64, 64, dtype=torch.int32), 1)
CASES: list[tuple[str, Callable[..., Any], list[Any]]] = [
    *((f"bag_{mode}", _bag(mode), [INDICES, OFFSETS, TABLE]) for mode in ("sum", "mean", "max")),
    ("bag_rows", lambda i, table: F.embedding_bag(i[:, ::2], table), [integers(0, 10, 5, 10), TABLE]),
    ("bag_table", _of_contiguous(lambda table: F.embedding_bag(torch.tensor([[1, 3], [2, 2]]), table)), [TABLE]),
    ("pdist", lambda x: torch.pdist(x[::2]), [numbers(9, 6)]),
    ("pdist_turned", _of_contiguous(torch.pdist), [numbers(6, 9)]),
    ("attention", _of_contiguous(F.scaled_dot_product_attention), [numbers(2, 4, 8, 16)] * 3),
    ("int4", _of_contiguous(lambda x: aten._weight_int4pack_mm_for_cpu(x, INT4, 32, torch.ones(2, 64, 2, dtype=torch.bfloat16))),
     [numbers(64, 4, dtype=torch.bfloat16)]),
    ("grouped", _of_contiguous(aten._grouped_mm), [numbers(3, 16, 8, dtype=torch.bfloat16), numbers(3, 32, 16, dtype=torch.bfloat16)]),
]  # fmt: skip


@pytest.mark.parametrize(("function", "inputs"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_results(function: Callable[..., Any], inputs: list[Any]) -> None:
    assert called(function, inputs)


GRADIENTS: list[tuple[str, Callable[..., Any], list[torch.Tensor]]] = [
    ("pdist", _of_contiguous(torch.pdist), [numbers(6, 9)]),
    ("attention", _of_contiguous(F.scaled_dot_product_attention), [numbers(2, 4, 8, 16), numbers(3, 4, 8, 16)[:2], numbers(5, 4, 8, 16)[:2]]),
    ("attention_key", lambda q, k: F.scaled_dot_product_attention(q, k[..., ::2], q), [numbers(1, 2, 6, 8), numbers(1, 2, 6, 16)]),
    ("bag", lambda table: F.embedding_bag(INDICES[::2], table, OFFSETS[::2]), [TABLE]),
]  # fmt: skip


@pytest.mark.parametrize(("function", "inputs"), [c[1:] for c in GRADIENTS], ids=[c[0] for c in GRADIENTS])
def test_gradients(function: Callable[..., Any], inputs: list[torch.Tensor]) -> None:
    """The gradient of the result comes transposed, too."""

    def gradients(f: Callable[..., Any]) -> list[Any]:
        given = [x.clone().requires_grad_() for x in inputs]
        result = f(*given)
        incoming = numbers(*result.shape[::-1]).permute(*reversed(range(result.dim())))
        return list(torch.autograd.grad((result * incoming).sum(), given))

    torch._dynamo.reset()
    options = {"fallback": "error", "executor": "auto"}
    found = gradients(torch.compile(function, backend="max_backend", fullgraph=True, options=options))
    torch.testing.assert_close(found, gradients(function))


def with_gaps(x: torch.Tensor) -> torch.Tensor:
    """``x``, with a number of something else behind each of its own."""
    return torch.stack([x, torch.ones_like(x)], -1).flatten(-2)[..., ::2]


def turned(x: torch.Tensor) -> torch.Tensor:
    """``x``, whose first dimension memory has last."""
    return x.transpose(0, -1).contiguous().transpose(0, -1)


class _Calls(fx.Interpreter):
    """Runs a graph, and notes what the calls of one op get."""

    def __init__(self, graph: fx.GraphModule, op: str, found: list[Any]) -> None:
        super().__init__(graph)
        self.op, self.found = op, found

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if str(target) == self.op:
            self.found.append((target, args, kwargs))
        return super().call_function(target, args, kwargs)


def calls_of(op: str, case: Any) -> list[Any]:
    """What an op gets in the traced graph of a case."""
    found: list[Any] = []
    backend = aot_autograd(
        fw_compiler=lambda graph, _: lambda *args: _Calls(graph, op, found).run(*args),
        decompositions=decomposition_table(),
    )
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(case.function, backend=backend)(*case.make())
    return found


def other_results(op: Any, args: Any, kwargs: Any) -> Iterator[str]:
    """The arguments of a call for which their strides change its results by more than rounding, or that it refuses."""
    leaves, spec = tree_flatten((args, kwargs))
    for k, x in enumerate(leaves):
        if not isinstance(x, torch.Tensor) or x.dim() == 0 or x.layout is not torch.strided:
            continue
        for strided in (with_gaps, turned):
            results = []
            for given in (strided(x).contiguous(), strided(x)):
                some_args, some_kwargs = tree_unflatten([*leaves[:k], given, *leaves[k + 1 :]], spec)
                try:
                    results.append(op(*some_args, **some_kwargs))
                except RuntimeError as error:
                    results.append(error)
            if not _agree(*results):
                yield f"argument {k} {strided.__name__}"


def _agree(a: Any, b: Any) -> bool:
    if isinstance(a, RuntimeError) or isinstance(b, RuntimeError):
        return isinstance(a, RuntimeError)  # what an op refuses with and without gaps says nothing

    def is_near(x: torch.Tensor, y: torch.Tensor) -> bool:
        largest = x.double().nan_to_num(0, 0, 0).abs().max().item() if x.numel() else 0.0
        return x.shape == y.shape and torch.allclose(x.double(), y.double(), rtol=0, atol=largest / 50, equal_nan=True)

    pairs = zip(tree_leaves(a), tree_leaves(b), strict=True)
    return all(is_near(x, y) for x, y in pairs if isinstance(x, torch.Tensor) and not x.is_complex())


RECORD = read()[1]
BY_OP = {op: case for case, ops in RECORD.items() for op in ops if op in {str(o) for o in LIBRARY}}
COPIED = {str(op) for op in (*AS_TRACED, *OF_DENSE_ROWS, *CONTIGUOUS)}
ANY_ORDER = {str(op) for op in SORTS} | {f"aten.{name}" for name in ("nanmedian.dim", "mode.default")}
"""Equal elements come in an order that depends on how ATen reads them."""


@pytest.mark.sampled
@pytest.mark.parametrize("op", sorted(BY_OP.keys() - COPIED - ANY_ORDER))
def test_kernels_that_are_given_views_look_at_strides(op: str) -> None:
    calls = calls_of(op, all_cases()[BY_OP[op]])
    assert [where for call in calls[:4] for where in other_results(*call)] == []


@pytest.mark.parametrize("op", sorted(BY_OP.keys() & {"aten._embedding_bag.default", "aten._pdist_forward.default"}))
def test_some_do_not(op: str) -> None:
    """And the check above would see it."""
    calls = calls_of(op, all_cases()[BY_OP[op]])
    assert any(True for call in calls for _ in other_results(*call))
