"""Attention with logarithms of the rows' sums, and its gradients, on a GPU against float64.

The measure is the largest error of eager, whose kernels are the same library's. Causal order and masks, lengths, sizes
of heads, groups of heads, and where heads are in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.gpu.checks import Call, check_calls
from tests.support.cases import randn

aten = torch.ops.aten
BF16, F16 = torch.bfloat16, torch.float16
INF = float("inf")

Tensors = tuple[torch.Tensor, ...]
Maker = Callable[[torch.Generator], torch.Tensor]


def both(is_causal: bool, scale: float | None = None) -> Callable[..., Tensors]:
    """The result, the logarithms and the gradients of query, key and value, by torch's op for this library."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, mask: Any = None) -> Tensors:
        found = aten._scaled_dot_product_cudnn_attention(q, k, v, mask, True, 0.0, is_causal, scale=scale)
        out, logarithms, seed, offset = found[0], found[1], found[6], found[7]
        lengths = (q.shape[2], k.shape[2])
        grads = aten._scaled_dot_product_cudnn_attention_backward(
            grad, q, k, v, out, logarithms, seed, offset, mask, None, None, *lengths, 0.0, is_causal, scale=scale
        )
        return out, logarithms, *grads

    return run


def exact(is_causal: bool, scale: float | None = None) -> Callable[..., Tensors]:
    """The same by its definition."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, mask: Any = None) -> Tensors:
        shared = q.shape[1] // k.shape[1]
        keys, values = (x.repeat_interleave(shared, 1) for x in (k, v))
        factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        scores = q @ keys.mT * factor
        if mask is not None:
            scores = scores + mask
        if is_causal:
            scores = scores.masked_fill(torch.ones_like(scores[0, 0]).tril() == 0, -INF)
        weights = torch.softmax(scores, -1)
        of_weights = grad @ values.mT
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * factor
        of_keys, of_values = of_scores.mT @ q, weights.mT @ grad
        summed = (x.unflatten(1, (k.shape[1], shared)).sum(2) for x in (of_keys, of_values))
        return weights @ values, torch.logsumexp(scores, -1, keepdim=True), of_scores @ keys, *summed

    return run


def call(
    name: str,
    q: tuple[int, ...],
    k: tuple[int, ...] | None = None,
    *,
    columns: int | None = None,
    dtype: torch.dtype = BF16,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    inside: bool = True,
    dynamic: bool = False,
) -> Call:
    """Shapes are ``[B, H, S, E]`` and ``[B, G, T, E]``; ``columns`` is the size of the value's heads."""
    key = k or q
    value = (*key[:3], columns or key[3])
    inputs: tuple[Any, ...] = tuple(heads(s, dtype, inside) for s in (q, key, value, (*q[:3], value[3])))
    if mask is not None:
        inputs += (mask,)
    return Call(name, both(is_causal, scale), inputs, reference=exact(is_causal, scale), dynamic=dynamic)


def heads(shape: tuple[int, ...], dtype: torch.dtype, inside: bool) -> Maker:
    """A tensor whose heads are, in memory, behind its lengths or before them."""
    b, h, s, e = shape
    if not inside:
        return randn(b, h, s, e, dtype=dtype)
    make = randn(b, s, h, e, dtype=dtype)
    return lambda generator: make(generator).transpose(1, 2)


def bias(*shape: int) -> torch.Tensor:
    """Some of it is minus infinity, but in no row all."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.rand(shape, generator=generator) < 0.4
    hidden[..., 0] = False
    return torch.randn(shape, generator=generator).masked_fill(hidden, -INF).to(BF16)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_lengths(dtype: torch.dtype, is_causal: bool) -> None:
    lengths = [(2, 2), (63, 63), (64, 64), (77, 77), (128, 128), (129, 129), (1000, 1000), (77, 300), (300, 77)]
    calls = []
    for s, t in lengths:
        calls.append(call(f"{s} {t}", (2, 4, s, 64), (2, 4, t, 64), dtype=dtype, is_causal=is_causal))
    check_calls(calls)


@pytest.mark.parametrize("inside", [False, True])
def test_sizes(inside: bool) -> None:
    calls = [call(f"{e}", (2, 4, 130, e), inside=inside, is_causal=True) for e in (8, 40, 64, 72, 80, 96, 128)]
    calls.append(call("wider keys", (2, 4, 130, 96), columns=64, inside=inside))
    check_calls(calls)


@pytest.mark.parametrize(("count", "groups"), [(8, 2), (6, 1), (16, 4)])
def test_groups(count: int, groups: int) -> None:
    q, k = (2, count, 150, 64), (2, groups, 150, 64)
    check_calls([call("full", q, k), call("causal", q, k, is_causal=True), call("outside", q, k, inside=False)])


def test_masks() -> None:
    q, k = (2, 4, 130, 64), (2, 4, 77, 64)
    shapes = [(2, 4, 130, 77), (1, 1, 130, 77), (2, 1, 130, 77), (2, 1, 1, 77)]
    check_calls([call(f"{shape}", q, k, mask=bias(*shape)) for shape in shapes])


def test_scales() -> None:
    check_calls([call(f"{scale}", (2, 4, 100, 64), scale=scale) for scale in (0.01, 0.3, 1.0)])


def test_symbolic_lengths() -> None:
    q = (2, 4, 77, 64)
    check_calls([call("full", q, dynamic=True), call("causal", q, is_causal=True, dynamic=True)])
