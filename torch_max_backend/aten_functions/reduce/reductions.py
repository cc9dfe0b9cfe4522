"""Reductions: sums, products, extremes and their positions, logical reductions, moments and norms.

MAX reduces one axis at a time and keeps it with size 1. :func:`reduce_axes` turns that into torch's reduction over
a set of axes: neighbouring axes become one, so that a mean over height and width is one kernel. Sums of 16-bit floats
are accumulated in float32 and rounded once. MAX's max and min skip NaN; torch's result is NaN as soon as one element
is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.axis_reductions import largest, prod_along, smallest, sum_along
from torch_max_backend.aten_functions.support.channels_last import (
    channels_first,
    channels_last,
    is_channels_last,
    last_order,
)
from torch_max_backend.aten_functions.support.dtypes import accumulator, max_dtype, torch_dtype
from torch_max_backend.aten_functions.support.elementary import exp, power, truth
from torch_max_backend.aten_functions.support.node_context import is_used, out_dtype, out_shape
from torch_max_backend.aten_functions.support.row_kernels import (
    column_moments,
    column_sums,
    row_extreme,
    row_sum,
    serves,
    serves_columns,
)
from torch_max_backend.aten_functions.support.tensor_ops import (
    axes_of,
    axis_of,
    before_widening,
    broadcast_to,
    cast,
    constant,
    iota,
    is_in_memory,
    numel,
    promote,
    reshape,
    static,
    tensor,
)

Reducer = Callable[[TensorValue, int], TensorValue]

_MOST_DIMS = 5
"""Of what ``column_sums`` takes as one matrix."""

_MANY_ROWS = 256
"""With fewer rows, a block for each leaves parts of a GPU idle."""

_LONG_ROW, _LONGEST_ROW = 1024, 2**20
"""What the kernel that looks for extremes gives a block or a good part of one, and what is too much for one."""


# -- shared by the family --------------------------------------------------------------------------------------------
def reduce_axes(x: TensorValue, axes: Sequence[int], reducer: Reducer) -> TensorValue:
    """``x`` reduced over ``axes`` (sorted, non-negative), which stay with size 1.

    Neighbouring axes are merged first; the last group is reduced first, so that later passes see little data.
    """
    if is_channels_last(x):
        order = last_order(x.rank)
        return channels_first(reduce_axes(channels_last(x), sorted(order.index(a) for a in axes), reducer))
    kept = [Dim(1) if i in axes else d for i, d in enumerate(x.shape)]
    for group in reversed(_neighbours([a for a in axes if x.shape[a] != 1])):
        first, last = group[0], group[-1]
        shape = list(x.shape)
        merged = reshape(x, [*shape[:first], numel(shape[first : last + 1]), *shape[last + 1 :]])
        reduced = reducer(merged, first)
        x = reshape(reduced, [*shape[:first], *[Dim(1)] * len(group), *shape[last + 1 :]])
    return reshape(x, kept)


def _neighbours(axes: Sequence[int]) -> list[list[int]]:
    groups: list[list[int]] = []
    for a in axes:
        if groups and groups[-1][-1] == a - 1:
            groups[-1].append(a)
        else:
            groups.append([a])
    return groups


def sum_axes(x: TensorValue, axes: Sequence[int]) -> TensorValue:
    """The sum over ``axes``, kept with size 1, in the accumulator of x's dtype."""
    if is_channels_last(x):
        order = last_order(x.rank)
        return channels_first(sum_axes(channels_last(x), sorted(order.index(a) for a in axes)))
    if are_columns(x, axes):
        return reshape(column_sums(before_widening(x), is_batched=False), [*[1] * (x.rank - 1), x.shape[-1]])
    total = reduce_axes(x, axes, _sum_along)
    return cast(total, accumulator(x.dtype))


def are_columns(x: TensorValue, axes: Sequence[int]) -> bool:
    """Whether the kernels for columns take ``x`` [*rows, columns], and ``axes`` are all but the last one."""
    return (
        1 < x.rank <= _MOST_DIMS
        and list(axes) == list(range(x.rank - 1))
        and serves_columns(x, [Dim(1), numel(x.shape[:-1]), x.shape[-1]])
    )


def _sum_along(x: TensorValue, axis: int) -> TensorValue:
    """The sum in the accumulator of x's dtype. On a GPU, MAX reads single elements unless the axis is the last one."""
    shape = [numel(x.shape[:axis]), x.shape[axis], numel(x.shape[axis + 1 :])]
    if serves_columns(x, shape):
        total = column_sums(before_widening(reshape(x, shape)), is_batched=True)
        return reshape(total, [Dim(1) if i == axis else d for i, d in enumerate(x.shape)])
    return sum_along(cast(x, accumulator(x.dtype)), axis)


def mean_axes(x: TensorValue, axes: Sequence[int]) -> TensorValue:
    """The mean over ``axes``, kept with size 1, in the accumulator of x's dtype."""
    total = sum_axes(x, axes)
    return total / count(x, axes, total.dtype)


def count(x: TensorValue, axes: Sequence[int], dtype: DType) -> TensorValue:
    """The number of elements reduced over ``axes``, as a 0-d tensor."""
    return tensor(numel(x.shape[a] for a in axes), dtype, x.device)


def moments(x: TensorValue, axes: Sequence[int], correction: float = 0) -> tuple[TensorValue, TensorValue]:
    """Mean and variance over ``axes``, kept with size 1, in the accumulator of x's dtype.

    In two passes, but for columns on a GPU, whose kernel joins the moments of parts of them.
    """
    if are_columns(x, axes):
        size = numel(x.shape[:-1])
        shape = [*[1] * (x.rank - 1), x.shape[-1]]
        mean, squares = (reshape(v, shape) for v in column_moments(before_widening(x)))
        return mean, divided_variance(squares, int(size) - correction)
    x = cast(x, accumulator(x.dtype))
    mean = mean_axes(x, axes)
    distance = x - mean
    size = numel(x.shape[a] for a in axes)
    known = static(size)
    squares = sum_axes(distance * distance, axes)
    if known is not None:
        return mean, divided_variance(squares, known - correction)
    left = tensor(size, x.dtype, x.device) - constant(correction, x.dtype, x.device)
    return mean, squares / ops.max(left, constant(0, x.dtype, x.device))


def divided_variance(squares: TensorValue, divisor: float) -> TensorValue:
    """``squares / divisor``; by zero NaN or infinity as in torch, which MAX's constant folding would not give."""
    if divisor > 0:
        return squares / constant(divisor, squares.dtype, squares.device)
    inf, nan = (constant(v, squares.dtype, squares.device) for v in (math.inf, math.nan))
    return ops.where(ops.greater(squares, constant(0, squares.dtype, squares.device)), inf, nan)


def extreme_axes(x: TensorValue, axes: Sequence[int], reducer: Reducer) -> TensorValue:
    """:func:`largest` or :func:`smallest` over ``axes``, kept with size 1, as torch defines them for floats.

    MAX's reductions start from the outermost finite number and skip NaN. A sum of marks tells whether there was a NaN,
    and whether that number was really there or is left over from a row of infinities.
    """
    plain = reduce_axes(x, axes, reducer)
    if not x.dtype.is_float():
        return plain
    sign = -1 if reducer is largest else 1
    finite = torch.finfo(torch_dtype(x.dtype)).max
    bound, beyond, nan, zero, one = (
        constant(v, x.dtype, x.device) for v in (sign * finite, sign * math.inf, math.nan, 0, 1)
    )
    marks = ops.where(ops.is_nan(x), nan, ops.where(ops.equal(x, bound), one, zero))
    marked = reduce_axes(marks, axes, sum_along)
    left_over = ops.logical_and(ops.equal(plain, bound), ops.equal(marked, zero))
    return ops.where(ops.is_nan(marked), nan, ops.where(left_over, beyond, plain))


def first_position(hit: TensorValue, axis: int) -> TensorValue:
    """The first index along ``axis`` where ``hit`` is true, kept with size 1, as int64.

    MAX's argmax names the first of equals on CPU only, and skips NaN everywhere.
    """
    size = hit.shape[axis]
    known = static(size)
    dtype = DType.int32 if known is not None and known < 2**31 else DType.int64
    line = [Dim(1)] * hit.rank
    line[axis] = size
    positions = reshape(iota(size, dtype, hit.device), line)
    beyond = constant(2**31 - 1 if dtype == DType.int32 else 2**63 - 1, dtype, hit.device)
    first = smallest(ops.where(hit, broadcast_to(positions, hit.shape), beyond), axis)
    return cast(first, DType.int64)


def position_of(x: TensorValue, extreme: TensorValue, axis: int) -> TensorValue:
    """Where along ``axis`` the extreme is: the first NaN if it is NaN, else the first equal element."""
    hit = ops.equal(x, extreme)
    if x.dtype.is_float():
        hit = ops.logical_or(hit, ops.is_nan(x))
    return first_position(hit, axis)


def at_least_1d(x: TensorValue) -> TensorValue:
    """``x``, or its one element as a vector if it is 0-d."""
    return x if x.rank else reshape(x, [1])


def _axes(dim: int | Sequence[int] | None, x: TensorValue) -> list[int]:
    return axes_of(dim, x.rank) if x.rank else []


def _finish(x: TensorValue, index: int = 0) -> TensorValue:
    return reshape(cast(x, out_dtype(index)), out_shape(index))


# -- sums and products -----------------------------------------------------------------------------------------------
# sum(Tensor self, *, ScalarType? dtype=None) -> Tensor
# sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
@map_to(aten.sum.default, aten.sum.dim_IntList)
def sum(
    self: TensorValue, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> TensorValue:
    axes = _axes(dim, self)
    if axes == [self.rank - 1] and out_dtype() in (self.dtype, DType.float32) and is_in_memory(self):
        rows = reshape(self, [numel(self.shape[:-1]), self.shape[-1]])
        if serves(rows) and (static(rows.shape[0]) or 0) >= _MANY_ROWS:
            return reshape(row_sum(rows, out_dtype()), out_shape())
    return _finish(sum_axes(cast(self, out_dtype()), axes))


# mean(Tensor self, *, ScalarType? dtype=None) -> Tensor
# mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
@map_to(aten.mean.default, aten.mean.dim)
def mean(
    self: TensorValue, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> TensorValue:
    return _finish(mean_axes(cast(self, out_dtype()), _axes(dim, self)))


# prod(Tensor self, *, ScalarType? dtype=None) -> Tensor
# prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
@map_to(aten.prod.default, aten.prod.dim_int)
def prod(
    self: TensorValue, dim: int | None = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> TensorValue:
    x = cast(self, accumulator(out_dtype()))
    return _finish(reduce_axes(x, _axes(dim, self), prod_along))


# -- extremes --------------------------------------------------------------------------------------------------------
# amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor
@map_to(aten.amax.default)
def amax(self: TensorValue, dim: Sequence[int] = (), keepdim: bool = False) -> TensorValue:
    return _finish(extreme_axes(self, _axes(dim, self), largest))


# amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor
@map_to(aten.amin.default)
def amin(self: TensorValue, dim: Sequence[int] = (), keepdim: bool = False) -> TensorValue:
    return _finish(extreme_axes(self, _axes(dim, self), smallest))


# max(Tensor self) -> Tensor
@map_to(aten.max.default)
def max_all(self: TensorValue) -> TensorValue:
    return _finish(extreme_axes(self, _axes(None, self), largest))


# min(Tensor self) -> Tensor
@map_to(aten.min.default)
def min_all(self: TensorValue) -> TensorValue:
    return _finish(extreme_axes(self, _axes(None, self), smallest))


def _by_rows(x: TensorValue, axis: int, reducer: Reducer) -> tuple[TensorValue, TensorValue] | None:
    """The extreme along ``axis`` and its first place, without that axis, by the kernel for long rows if it serves."""
    length = static(x.shape[-1]) or 0
    if axis != x.rank - 1 or length < _LONG_ROW:
        return None
    rows = reshape(x, [numel(x.shape[:-1]), x.shape[-1]])
    if not serves(rows) or (length > _LONGEST_ROW and (static(rows.shape[0]) or 1) < _MANY_ROWS):
        return None
    return row_extreme(rows, reducer is largest)


def _extreme_and_position(x: TensorValue, dim: int, reducer: Reducer) -> tuple[TensorValue | None, TensorValue | None]:
    x = at_least_1d(x)
    axis = axis_of(dim, x.rank)
    found = _by_rows(x, axis, reducer)
    if found is not None:
        return _finish(found[0]), _finish(found[1], 1)
    extreme = extreme_axes(x, [axis], reducer)
    position = _finish(position_of(x, extreme, axis), 1) if is_used(1) else None
    return _finish(extreme), position


# max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)
@map_to(aten.max.dim)
def max_dim(self: TensorValue, dim: int, keepdim: bool = False) -> tuple[TensorValue | None, TensorValue | None]:
    return _extreme_and_position(self, dim, largest)


# min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)
@map_to(aten.min.dim)
def min_dim(self: TensorValue, dim: int, keepdim: bool = False) -> tuple[TensorValue | None, TensorValue | None]:
    return _extreme_and_position(self, dim, smallest)


# aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)
@map_to(aten.aminmax.default)
def aminmax(self: TensorValue, dim: int | None = None, keepdim: bool = False) -> tuple[TensorValue, TensorValue]:
    axes = _axes(dim, self)
    return _finish(extreme_axes(self, axes, smallest)), _finish(extreme_axes(self, axes, largest), 1)


def _arg_extreme(x: TensorValue, dim: int | None, reducer: Reducer) -> TensorValue:
    x = reshape(x, [numel(x.shape)]) if dim is None else at_least_1d(x)
    axis = 0 if dim is None else axis_of(dim, x.rank)
    found = _by_rows(x, axis, reducer)
    return _finish(position_of(x, extreme_axes(x, [axis], reducer), axis) if found is None else found[1])


# argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor
@map_to(aten.argmax.default)
def argmax(self: TensorValue, dim: int | None = None, keepdim: bool = False) -> TensorValue:
    return _arg_extreme(self, dim, largest)


# argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor
@map_to(aten.argmin.default)
def argmin(self: TensorValue, dim: int | None = None, keepdim: bool = False) -> TensorValue:
    return _arg_extreme(self, dim, smallest)


# -- logical ---------------------------------------------------------------------------------------------------------
# Torch reduces nothing for dim=[] here, unlike for sums.
def _logical(x: TensorValue, dim: int | Sequence[int] | None, reducer: Reducer) -> TensorValue:
    nothing = dim is not None and not isinstance(dim, int) and not len(dim)
    axes = [] if nothing else _axes(dim, x)
    return _finish(reduce_axes(truth(x), axes, reducer))


# any(Tensor self) -> Tensor
# any.dim(Tensor self, int dim, bool keepdim=False) -> Tensor
# any.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor
@map_to(aten.any.default, aten.any.dim, aten.any.dims)
def any(self: TensorValue, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> TensorValue:
    return _logical(self, dim, largest)


# all(Tensor self) -> Tensor
# all.dim(Tensor self, int dim, bool keepdim=False) -> Tensor
# all.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor
@map_to(aten.all.default, aten.all.dim, aten.all.dims)
def all(self: TensorValue, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> TensorValue:
    return _logical(self, dim, smallest)


# -- moments, norms --------------------------------------------------------------------------------------------------
# var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor
@map_to(aten.var.correction)
def var(
    self: TensorValue,
    dim: Sequence[int] | None = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> TensorValue:
    return _finish(moments(self, _axes(dim, self), 1 if correction is None else correction)[1])


# std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor
@map_to(aten.std.correction)
def std(
    self: TensorValue,
    dim: Sequence[int] | None = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> TensorValue:
    return _finish(ops.sqrt(moments(self, _axes(dim, self), 1 if correction is None else correction)[1]))


# var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)
@map_to(aten.var_mean.correction)
def var_mean(
    self: TensorValue,
    dim: Sequence[int] | None = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[TensorValue, TensorValue]:
    mean, variance = moments(self, _axes(dim, self), 1 if correction is None else correction)
    return _finish(variance), _finish(mean, 1)


# std_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)
@map_to(aten.std_mean.correction)
def std_mean(
    self: TensorValue,
    dim: Sequence[int] | None = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[TensorValue, TensorValue]:
    mean, variance = moments(self, _axes(dim, self), 1 if correction is None else correction)
    return _finish(ops.sqrt(variance)), _finish(mean, 1)


# logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor
@map_to(aten.logsumexp.default)
def logsumexp(self: TensorValue, dim: Sequence[int], keepdim: bool = False) -> TensorValue:
    x = cast(self, accumulator(out_dtype()))
    axes = _axes(dim, x)
    shift = reduce_axes(x, axes, largest)
    finite = ops.abs(shift) < constant(math.inf, x.dtype, x.device)
    shift = ops.where(finite, shift, constant(0, x.dtype, x.device))
    return _finish(ops.log(sum_axes(exp(x - shift), axes)) + shift)


def norm_axes(x: TensorValue, ord: float, axes: Sequence[int]) -> TensorValue:
    """The vector norm over ``axes``, which become size 1, in the dtype of ``x``."""
    if ord == 0:
        return reduce_axes(cast(truth(x), x.dtype), axes, sum_along)
    size = ops.abs(x)
    if math.isinf(ord):
        return extreme_axes(size, axes, largest if ord > 0 else smallest)
    if ord == 1:
        return reduce_axes(size, axes, sum_along)
    if ord == 2:
        return ops.sqrt(reduce_axes(x * x, axes, sum_along))
    return power(reduce_axes(power(size, ord), axes, sum_along), 1 / ord)


# linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None)
#     -> Tensor
@map_to(aten.linalg_vector_norm.default)
def linalg_vector_norm(
    self: TensorValue,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> TensorValue:
    x = self if dtype is None else cast(self, max_dtype(dtype))
    x = cast(x, accumulator(x.dtype))
    return _finish(norm_axes(x, ord, _axes(dim, x)))


# dist(Tensor self, Tensor other, Scalar p=2) -> Tensor
@map_to(aten.dist.default)
def dist(self: TensorValue, other: TensorValue, p: float = 2) -> TensorValue:
    left, right = promote(self, other)
    return linalg_vector_norm(left - right, p)
