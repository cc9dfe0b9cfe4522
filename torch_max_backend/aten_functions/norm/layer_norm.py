"""Layer, group and weight normalization, with their backward formulas.

Statistics are computed in float32 for 16-bit inputs. Normalization by known statistics is one multiply-add per element:
scale and shift are computed per channel (or per sample and channel) first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.reduce.reductions import count, mean_axes, moments, reduce_axes, sum_axes
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.axis_reductions import sum_along
from torch_max_backend.aten_functions.support.cpu_layer_norm import layer_norm, layer_norm_in_front
from torch_max_backend.aten_functions.support.dtypes import accumulator
from torch_max_backend.aten_functions.support.node_context import is_used, out_dtype, out_shape
from torch_max_backend.aten_functions.support.row_kernels import (
    NormGradients,
    keeps_gradient,
    layer_norm_gradients,
    row_norm,
    serves,
)
from torch_max_backend.aten_functions.support.tensor_ops import (
    axis_of,
    before_widening,
    cast,
    constant,
    full,
    is_float_on_cpu,
    known,
    numel,
    reshape,
    static,
)


# -- layer norm ------------------------------------------------------------------------------------------------------
def reciprocal_root(variance: TensorValue, eps: float) -> TensorValue:
    """``1 / sqrt(variance + eps)``, in the dtype and shape of ``variance``."""
    return ops.rsqrt(variance + constant(eps, variance.dtype, variance.device))


def default_eps(dtype: DType) -> float:
    """What torch adds where an RMS norm is given no number."""
    return torch.finfo(torch.float64 if dtype == DType.float64 else torch.float32).eps


# native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps)
#     -> (Tensor, Tensor, Tensor)
@map_to(aten.native_layer_norm.default)
def native_layer_norm(
    input: TensorValue,
    normalized_shape: Sequence[int | Dim],
    weight: TensorValue | None,
    bias: TensorValue | None,
    eps: float,
) -> tuple[TensorValue | None, ...]:
    size = numel(input.shape[input.rank - len(normalized_shape) :])
    rows = reshape(input, [numel(input.shape[: input.rank - len(normalized_shape)]), size])
    w, b = (None if v is None else reshape(v, [size]) for v in (weight, bias))
    if serves(rows):
        normed = row_norm(rows, w, b, eps, is_centred=True)
        return finish_all([normed.y, normed.mean, normed.rstd])
    if is_used(1) or is_used(2) or eps <= 0:
        if is_float_on_cpu(rows):
            found = layer_norm(rows, w, b, eps, out_dtype())
            return finish_all([found.y, found.mean, found.rstd])
        mean, variance = moments(rows, [1])
        rstd = reciprocal_root(variance, eps)
        y = (cast(rows, mean.dtype) - mean) * rstd
        y = y if w is None else y * cast(w, y.dtype)
        y = y if b is None else y + cast(b, y.dtype)
        stats = [reshape(cast(v, out_dtype(i)), out_shape(i)) for i, v in ((1, mean), (2, rstd))]
        return reshape(cast(y, out_dtype()), out_shape()), *stats
    given = {v.dtype for v in (rows, w, b) if v is not None}
    dtype = rows.dtype if len(given) == 1 else accumulator(rows.dtype)
    gamma = full(1, [size], dtype, input.device) if w is None else cast(w, dtype)
    beta = full(0, [size], dtype, input.device) if b is None else cast(b, dtype)
    y = ops.layer_norm(cast(rows, dtype), gamma, beta, eps)
    return reshape(cast(y, out_dtype()), out_shape()), None, None


# _fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)
@map_to(aten._fused_rms_norm.default)
def _fused_rms_norm(
    input: TensorValue, normalized_shape: Sequence[int | Dim], weight: TensorValue | None, eps: float | None
) -> tuple[TensorValue | None, ...]:
    dtype = accumulator(input.dtype)
    eps = default_eps(dtype) if eps is None else eps
    size = numel(input.shape[input.rank - len(normalized_shape) :])
    rows = reshape(input, [numel(input.shape[: input.rank - len(normalized_shape)]), size])
    w = None if weight is None else reshape(weight, [size])
    if serves(rows):
        normed = row_norm(rows, w, None, eps, is_centred=False)
        return finish_all([normed.y, normed.rstd])
    x = cast(rows, dtype)
    rstd = reciprocal_root(mean_axes(x * x, [1]), eps)
    y = x * rstd
    return finish_all([y if w is None else y * cast(w, dtype), rstd])


# native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd,
#     Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)
@map_to(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    grad_out: TensorValue,
    input: TensorValue,
    normalized_shape: Sequence[int | Dim],
    mean: TensorValue,
    rstd: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    output_mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    dtype = accumulator(input.dtype)
    outer = input.rank - len(normalized_shape)
    rows = [numel(input.shape[:outer]), numel(input.shape[outer:])]
    if output_mask[0] and serves_gradient(input, rows):
        found = gradients_of_rows(grad_out, input, mean, rstd, weight)
        return finish_all([found.x, found.weight if output_mask[1] else None, found.bias if output_mask[2] else None])
    if output_mask[0] and is_float_on_cpu(input):
        of_x, of_weight, of_bias = layer_norm_in_front(
            reshape(grad_out, rows),
            reshape(input, rows),
            reshape(mean, rows[:1]),
            reshape(rstd, rows[:1]),
            None if weight is None else reshape(weight, rows[1:]),
            out_dtype(),
            output_mask[1] or output_mask[2],
        )
        return finish_all([of_x, of_weight if output_mask[1] else None, of_bias if output_mask[2] else None])
    grad, x = (cast(reshape(v, rows), dtype) for v in (grad_out, input))
    mean, rstd = (cast(reshape(v, [rows[0], 1]), dtype) for v in (mean, rstd))
    results: list[TensorValue | None] = [None, None, None]
    # What is read twice MAX stores, in float32. So nothing is: x - mean, mean - x and x + (-mean) are the same numbers.
    if output_mask[0]:
        scale = None if weight is None else cast(reshape(weight, [rows[1]]), dtype)
        scaled, again, opposite = grad, grad, grad * (mean - x)
        if scale is not None:
            scaled, again, opposite = grad * scale, scale * grad, opposite * scale
        along = mean_axes(opposite, [1]) * rstd * rstd
        results[0] = (scaled - mean_axes(again, [1]) + (x - mean) * along) * rstd
    if output_mask[1]:
        results[1] = sum_axes(grad * ((x + -mean) * rstd), [0])
    if output_mask[2]:
        results[2] = sum_axes(grad, [0])
    return finish_all(results)


def serves_gradient(x: TensorValue, shape: Sequence[Dim]) -> bool:
    """Whether a kernel computes gradients of norms of ``x``, seen as [rows, columns]."""
    rows, columns = (static(d) for d in shape)
    if not serves(reshape(x, shape)) or rows is None or columns is None:
        return False
    return keeps_gradient(rows, columns, before_widening(x).dtype)


def gradients_of_rows(
    grad_out: TensorValue,
    x: TensorValue,
    mean: TensorValue,
    rstd: TensorValue,
    weight: TensorValue | None,
    addend: TensorValue | None = None,
    copy: DType | None = None,
) -> NormGradients:
    """:func:`layer_norm_gradients`, of tensors of any rank whose rows have one mean each."""
    count = numel(mean.shape)
    shape = [count, numel(x.shape) // count]
    grad_out, x = (before_widening(reshape(v, shape)) for v in (grad_out, x))
    mean, rstd = (reshape(v, [count]) for v in (mean, rstd))
    weight = None if weight is None else reshape(weight, shape[1:])
    addend = None if addend is None else reshape(addend, shape)
    return layer_norm_gradients(grad_out, x, mean, rstd, weight, out_dtype(), addend, copy)


def finish_all(results: Sequence[TensorValue | None]) -> tuple[TensorValue | None, ...]:
    """The outputs that are used, in their promised shapes and dtypes."""
    return tuple(
        None if v is None or not is_used(i) else reshape(cast(v, out_dtype(i)), out_shape(i))
        for i, v in enumerate(results)
    )


# -- group norm ------------------------------------------------------------------------------------------------------
# native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps)
#     -> (Tensor, Tensor, Tensor)
@map_to(aten.native_group_norm.default)
def native_group_norm(
    input: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    N: int | Dim,
    C: int | Dim,
    HxW: int | Dim,
    group: int,
    eps: float,
) -> tuple[TensorValue | None, ...]:
    dtype = accumulator(input.dtype)
    grouped, channels = _group_shapes(input, group)
    x = cast(reshape(input, grouped), dtype)
    mean, variance = moments(x, [2, 3])
    rstd = reciprocal_root(variance, eps)
    # Not x * (rstd * weight): with symbolic sizes MAX computes a broadcast product wrongly when it is broadcast again.
    y = (x - mean) * rstd
    y = y if weight is None else y * cast(reshape(weight, channels), dtype)
    y = y if bias is None else y + cast(reshape(bias, channels), dtype)
    return finish_all([y, mean, rstd])


def _group_shapes(x: TensorValue, group: int) -> tuple[list[Dim], list[Dim]]:
    """``[N, group, C / group, HxW]``, and the shape that spreads a per-channel vector over it."""
    # MAX fuses a broadcast over a symbolic C // group wrongly: channels get the scale of the first in their group.
    each = Dim(known(x.shape[1], "the number of channels of group norm") // group)
    return [x.shape[0], Dim(group), each, numel(x.shape[2:])], [Dim(1), Dim(group), each, Dim(1)]


# native_group_norm_backward(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, SymInt N,
#     SymInt C, SymInt HxW, int group, bool[3] output_mask) -> (Tensor, Tensor, Tensor)
@map_to(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    grad_out: TensorValue,
    input: TensorValue,
    mean: TensorValue,
    rstd: TensorValue,
    weight: TensorValue | None,
    N: int | Dim,
    C: int | Dim,
    HxW: int | Dim,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    dtype = accumulator(input.dtype)
    grouped, channels = _group_shapes(input, group)
    grad, x = (cast(reshape(v, grouped), dtype) for v in (grad_out, input))
    mean, rstd = (cast(reshape(v, [grouped[0], grouped[1], 1, 1]), dtype) for v in (mean, rstd))
    # Sums over the pixels of each channel; everything but the last line of the input's gradient is small.
    grad_x, grad_sum = sum_axes(grad * x, [3]), sum_axes(grad, [3])
    results: list[TensorValue | None] = [None, None, None]
    if output_mask[0]:
        w = None if weight is None else cast(reshape(weight, channels), dtype)
        by_group = [sum_axes(v if w is None else v * w, [2]) / count(x, [2, 3], dtype) for v in (grad_x, grad_sum)]
        of_x = (by_group[1] * mean - by_group[0]) * rstd * rstd * rstd
        scaled = grad * rstd if w is None else grad * rstd * w  # broadcast once each, as above
        results[0] = scaled + (x * of_x - (of_x * mean + by_group[1] * rstd))
    if output_mask[1]:
        results[1] = sum_axes((grad_x - grad_sum * mean) * rstd, [0])
    if output_mask[2]:
        results[2] = sum_axes(grad_sum, [0])
    return finish_all(results)


# -- weight norm -----------------------------------------------------------------------------------------------------
# _weight_norm_interface_backward(Tensor grad_w, Tensor saved_v, Tensor saved_g, Tensor saved_norms, int dim)
#     -> (Tensor, Tensor)
@map_to(aten._weight_norm_interface_backward.default)
def _weight_norm_interface_backward(
    grad_w: TensorValue, saved_v: TensorValue, saved_g: TensorValue, saved_norms: TensorValue, dim: int
) -> tuple[TensorValue | None, ...]:
    dtype = accumulator(saved_v.dtype)
    grad, v, g, norm = (cast(t, dtype) for t in (grad_w, saved_v, saved_g, saved_norms))
    kept = axis_of(dim, v.rank)
    along = reduce_axes(grad * v, [a for a in range(v.rank) if a != kept], sum_along) / norm
    return finish_all([(grad - v * (along / norm)) * (g / norm), along])
