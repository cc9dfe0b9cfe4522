"""Kernels of ATen that do not look at strides, or read none but some: they get what they would get in eager."""

# ruff: noqa: E501 (one case a line)
from __future__ import annotations

import re
from collections.abc import Callable
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


def compared(op: Any, args: Any, kwargs: Any) -> dict[str, bool]:
    """Whether results of a call are alike, but for rounding, with an argument contiguous and with its strides changed.

    What an op refuses in both forms is left out, as are tensors without strides.
    """
    leaves, spec = tree_flatten((args, kwargs))
    found = {}
    for k, x in enumerate(leaves):
        if not isinstance(x, torch.Tensor) or x.numel() < 2 or x.layout is not torch.strided:
            continue
        for strided in (with_gaps, turned):
            results = []
            for given in (strided(x).contiguous(), strided(x)):
                some_args, some_kwargs = tree_unflatten([*leaves[:k], given, *leaves[k + 1 :]], spec)
                try:
                    results.append(tree_leaves(op(*some_args, **some_kwargs)))
                except RuntimeError:
                    results.append(None)
            if results[0] is not None:
                found[f"argument {k} {strided.__name__}"] = results[1] is not None and all(map(_is_near, *results))
    return found


def _is_near(x: Any, y: Any) -> bool:
    """Whether ``y`` is ``x`` but for a fiftieth of its largest number: what is read elsewhere is farther off."""
    if not isinstance(x, torch.Tensor):
        return bool(x == y)
    largest = x.double().nan_to_num(0, 0, 0).abs().max().item() if x.numel() else 0.0
    return x.shape == y.shape and torch.allclose(x.double(), y.double(), rtol=0, atol=largest / 50, equal_nan=True)


RECORD = read()[1]
CALLED = {str(op) for op in LIBRARY}
WITH_STRIDES = {case: ops for case, ops in RECORD.items() if not re.search("zero_dim|empty", case)}
BY_OP = {op: case for case, ops in WITH_STRIDES.items() for op in ops if op in CALLED}
"""A case for each op of a library; of tensors without elements or dimensions there would be nothing to ask."""
COPIED = {str(op) for op in (*AS_TRACED, *OF_DENSE_ROWS, *CONTIGUOUS)}
ANY_ORDER = {str(op) for op in SORTS} | {f"aten.{name}" for name in ("nanmedian.dim", "mode.default")}
"""Equal elements come in an order that depends on how ATen reads them."""


def results_of(op: str) -> dict[str, bool]:
    """What :func:`compared` says of up to four calls in the case of an op."""
    calls = calls_of(op, all_cases()[BY_OP[op]])
    return {f"call {k}, {where}": same for k, call in enumerate(calls[:4]) for where, same in compared(*call).items()}


@pytest.mark.sampled
@pytest.mark.parametrize("op", sorted(BY_OP.keys() - COPIED - ANY_ORDER))
def test_kernels_that_are_given_views_look_at_strides(op: str) -> None:
    found = results_of(op)
    assert found
    assert [where for where, same in found.items() if not same] == []


@pytest.mark.parametrize("op", ["aten._embedding_bag.default", "aten._pdist_forward.default"])
def test_some_do_not(op: str) -> None:
    """And the check above would see it."""
    assert not all(results_of(op).values())
