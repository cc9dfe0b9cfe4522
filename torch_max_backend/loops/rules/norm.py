"""Normalisations, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_max_backend.loops.expr import op
from torch_max_backend.loops.index import Index, product
from torch_max_backend.loops.rules.reduce import as_number, moments, over
from torch_max_backend.loops.rules.registry import aten, rule
from torch_max_backend.loops.rules.views import expand, reshaped
from torch_max_backend.loops.tensor import Tensor, builder, computed_in, converted, define, pointwise


def _inverse(variance: Tensor, eps: float) -> Tensor:
    return pointwise(lambda v: op("rsqrt", v + eps), variance)


def _applied(
    x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """``(x - mean) * inverse * weight + bias``, computed in the statistics' dtype."""
    operands = [y for y in (weight, bias) if y is not None]

    def formula(x: Any, m: Any, r: Any, *rest: Any) -> Any:
        y = (x - m) * r
        if weight is not None:
            y = y * rest[0]
        return y if bias is None else y + rest[-1]

    return pointwise(formula, x, mean, inverse, *operands, compute=mean.dtype, dtype=dtype)


# native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps)
#     -> (Tensor, Tensor, Tensor)
@rule(aten.native_layer_norm.default)
def native_layer_norm(
    input: Tensor, normalized_shape: Sequence[Any], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    compute = computed_in(input.dtype)
    dims = list(range(input.rank - len(normalized_shape), input.rank))
    mean, variance = moments(input, dims, 0, compute)
    inverse = _inverse(variance, eps)
    y = _applied(input, mean, inverse, weight, bias, input.dtype)
    return y, _kept(mean, 1), _kept(inverse, 2)


def _kept(x: Tensor, k: int) -> Tensor:
    """A statistic as result ``k``: its dtype depends on the device and on the other operands."""
    promise = builder().promise
    dtype = x.dtype if promise is None else promise[k].dtype
    return x if dtype is x.dtype else converted(x, dtype)


# native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd,
#     Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)
@rule(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[Any],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    compute = computed_in(input.dtype)
    first = input.rank - len(normalized_shape)
    inner, outer = list(range(first, input.rank)), list(range(first))
    n = product(input.shape[d] for d in inner)
    normal = pointwise(lambda x, m, r: (x - m) * r, input, mean, rstd, compute=compute, dtype=compute)
    into = (
        grad_out if weight is None else pointwise(lambda g, w: g * w, grad_out, weight, compute=compute, dtype=compute)
    )
    results: list[Tensor | None] = [None, None, None]
    if output_mask[0]:
        both = pointwise(lambda g, x: g * x, into, normal, compute=compute, dtype=compute)
        a, b = (_averaged(x, inner, n, compute) for x in (into, both))
        results[0] = pointwise(
            lambda g, x, a, b, r: (g - (a + x * b)) * r, into, normal, a, b, rstd, compute=compute, dtype=input.dtype
        )
    if output_mask[1] and weight is not None:
        both = pointwise(lambda g, x: g * x, grad_out, normal, compute=compute, dtype=compute)
        results[1] = _summed(both, outer, weight.dtype, compute)
    if output_mask[2] and bias is not None:
        results[2] = _summed(grad_out, outer, bias.dtype, compute)
    return tuple(results)  # type: ignore[return-value]


def _averaged(x: Tensor, dims: Sequence[int], n: Index, compute: torch.dtype) -> Tensor:
    """Sums over ``n`` elements, divided by that: once for each sum, and not for each element that reads it."""
    return over("sum", x, dims, True, compute=compute, finish=lambda s: s / as_number(n, s.dtype), dtype=compute)


def _summed(x: Tensor, dims: Sequence[int], dtype: torch.dtype, compute: torch.dtype, *, keep: bool = False) -> Tensor:
    if not dims:
        return define(x.shape, dtype, x.at) if x.dtype is dtype else pointwise(lambda e: e, x, dtype=dtype)
    return over("sum", x, list(dims), keep, compute=compute, dtype=dtype)


# native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps)
#     -> (Tensor, Tensor, Tensor)
@rule(aten.native_group_norm.default)
def native_group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, N: Any, C: Any, HxW: Any, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    compute = computed_in(input.dtype)
    channels = Index.of(C)
    rest = input.shape[2:]
    split = reshaped(input, [N, group, channels // group, *rest])
    mean, variance = moments(split, list(range(2, split.rank)), 0, compute)
    inverse = _inverse(variance, eps)

    def per_channel(w: Tensor | None) -> Tensor | None:
        return None if w is None else reshaped(w, [1, group, channels // group, *[1] * len(rest)])

    y = _applied(split, mean, inverse, per_channel(weight), per_channel(bias), input.dtype)
    statistics = [reshaped(s, [N, group]) for s in (mean, inverse)]
    if input.dtype is not compute:
        statistics = [pointwise(lambda e: e, s, dtype=input.dtype) for s in statistics]
    return reshaped(y, input.shape), statistics[0], statistics[1]


# native_group_norm_backward(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, SymInt N,
#     SymInt C, SymInt HxW, int group, bool[3] output_mask) -> (Tensor, Tensor, Tensor)
@rule(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    # A block of a GPU has all of a group and reads it once; on a CPU channels may be the last dimension in memory.
    by = _gradients_by_groups if builder().is_for_gpu else _gradients_by_channels
    return by(grad_out, input, mean, rstd, weight, (N, C, group), output_mask)


def _gradients_by_groups(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    shape: tuple[Any, Any, int],
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Sums over groups, and over all images for each channel."""
    compute, (N, C, group) = computed_in(input.dtype), shape
    each, rest = Index.of(C) // group, input.shape[2:]
    grad, x = (reshaped(v, [N, group, each, *rest]) for v in (grad_out, input))
    mean, rstd = (reshaped(v, [N, group, *[1] * (x.rank - 2)]) for v in (mean, rstd))
    normal = pointwise(lambda x, m, r: (x - m) * r, x, mean, rstd, compute=compute, dtype=compute)
    into = grad
    if weight is not None:
        per_channel = reshaped(weight, [1, group, each, *[1] * len(rest)])
        into = pointwise(lambda g, w: g * w, grad, per_channel, compute=compute, dtype=compute)
    results: list[Tensor | None] = [None, None, None]
    if output_mask[0]:
        both = pointwise(lambda g, x: g * x, into, normal, compute=compute, dtype=compute)
        inner = list(range(2, x.rank))
        n = product(x.shape[d] for d in inner)
        a, b = (_averaged(v, inner, n, compute) for v in (into, both))
        found = pointwise(
            lambda g, x, a, b, r: (g - (a + x * b)) * r, into, normal, a, b, rstd, compute=compute, dtype=input.dtype
        )
        results[0] = reshaped(found, input.shape)
    kept = [0, *range(3, x.rank)]
    dtype = input.dtype if weight is None else weight.dtype
    if output_mask[1]:
        both = pointwise(lambda g, x: g * x, grad, normal, compute=compute, dtype=compute)
        results[1] = reshaped(over("sum", both, kept, compute=compute, dtype=dtype), [C])
    if output_mask[2]:
        results[2] = reshaped(over("sum", grad, kept, compute=compute, dtype=dtype), [C])
    return tuple(results)  # type: ignore[return-value]


def _gradients_by_channels(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    shape: tuple[Any, Any, int],
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """All of it from two sums for each channel of each image."""
    compute, (N, C, group) = computed_in(input.dtype), shape
    each, rest = Index.of(C) // group, list(range(2, input.rank))
    ones = [1] * len(rest)

    def of_channels(x: Tensor) -> Tensor:
        """What groups have, [N, group], as what each of their channels has."""
        every = expand(reshaped(x, [N, group, 1]), [N, group, each])
        return reshaped(every, [N, C, *ones])

    means, inverses = of_channels(mean), of_channels(rstd)
    apart = pointwise(lambda g, x, m: g * (x - m), grad_out, input, means, compute=compute, dtype=compute)
    plain = _summed(grad_out, rest, compute, compute, keep=True)
    sums = _summed(apart, rest, compute, compute, keep=True)
    moved = pointwise(lambda s, r: s * r, sums, inverses, compute=compute, dtype=compute)
    scale = None if weight is None else reshaped(weight, [1, C, *ones])
    n = product((each, *input.shape[2:]))
    results: list[Tensor | None] = [None, None, None]
    if output_mask[0]:

        def scaled(x: Tensor) -> Tensor:
            return x if scale is None else pointwise(lambda v, w: v * w, x, scale, compute=compute, dtype=compute)

        a, b = (_averaged(reshaped(scaled(x), [N, group, each]), [2], n, compute) for x in (plain, moved))
        slope = pointwise(lambda b, r: b * r, b, reshaped(rstd, [N, group, 1]), compute=compute, dtype=compute)
        results[0] = pointwise(
            lambda g, x, m, a, b, r: (g - (a + (x - m) * b)) * r,
            scaled(grad_out), input, means, of_channels(a), of_channels(slope), inverses,
            compute=compute, dtype=input.dtype,
        )  # fmt: skip
    dtype = input.dtype if weight is None else weight.dtype
    for k, x in ((1, moved), (2, plain)):
        if output_mask[k]:
            results[k] = reshaped(over("sum", x, [0], compute=compute, dtype=dtype), [C])
    return tuple(results)  # type: ignore[return-value]


# _fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)
@rule(aten._fused_rms_norm.default)
def fused_rms_norm(
    input: Tensor, normalized_shape: Sequence[Any], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    compute = computed_in(input.dtype)
    dims = list(range(input.rank - len(normalized_shape), input.rank))
    n = product(input.shape[d] for d in dims)
    small = torch.finfo(compute).eps if eps is None else eps
    squares = over("sum", input, dims, True, lambda x: x * x, compute, lambda s: s / as_number(n, s.dtype))
    inverse = _inverse(squares, small)
    if weight is None:
        y = pointwise(lambda x, r: x * r, input, inverse, compute=compute, dtype=input.dtype)
    else:
        y = pointwise(lambda x, r, w: x * r * w, input, inverse, weight, compute=compute, dtype=input.dtype)
    return y, inverse


# _weight_norm_interface_backward(Tensor grad_w, Tensor saved_v, Tensor saved_g, Tensor saved_norms, int dim)
#     -> (Tensor, Tensor)
@rule(aten._weight_norm_interface_backward.default)
def weight_norm_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    compute = computed_in(saved_v.dtype)
    others = [d for d in range(saved_v.rank) if d != saved_v.dim(dim)]
    both = pointwise(lambda g, v: g * v, grad_w, saved_v, compute=compute, dtype=compute)
    total = over("sum", both, others, True, compute=compute)
    along = pointwise(lambda s, n: s / n, total, saved_norms, compute=compute, dtype=saved_g.dtype)

    def formula(grad: Any, v: Any, g: Any, n: Any, s: Any) -> Any:
        return (grad - v * (s / (n * n))) * (g / n)

    operands = (grad_w, saved_v, saved_g, saved_norms, total)
    return pointwise(formula, *operands, compute=compute, dtype=saved_v.dtype), along
