"""Kernels of ATen that do not look at strides, or read none but some: they get what they would get in eager."""

# ruff: noqa: E501 (one case a line)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.loops.test_library_calls import called, integers, numbers

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
