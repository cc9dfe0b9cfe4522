"""Histograms with edges, in one and more dimensions.

An element's bin is found by binary search of the edges, as torch does; the last bin contains its upper edge. Elements
outside of all bins, and NaN, are counted in a bin of their own that is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np
from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.reduce.reductions import extreme_axes
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.axis_reductions import largest, smallest, sum_along
from torch_max_backend.aten_functions.support.index_tensors import write_rows
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.sliding_windows import cut_axis
from torch_max_backend.aten_functions.support.tensor_ops import (
    cast,
    constant,
    full,
    iota,
    known,
    numel,
    reshape,
    static,
)
from torch_max_backend.base.errors import Unsupported

Pair = tuple[TensorValue, TensorValue]


def _check(x: TensorValue) -> None:
    if x.dtype not in (DType.float32, DType.float64):
        raise Unsupported(f"histograms are of float32 and float64 numbers, got {x.dtype}")


# -- edges -------------------------------------------------------------------------------------------------------------
def _equal_edges(column: TensorValue, bins: int, bounds: Sequence[float] | None) -> TensorValue:
    """The edges of equal bins between two numbers, or between the least and the largest element."""
    dtype, device = column.dtype, column.device
    if bounds is None and static(column.shape[0]) == 0:
        bounds = (0.0, 1.0)
    if bounds is not None:
        low, high = bounds
        low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        first, last = constant(low, dtype, device), constant(high, dtype, device)
    else:
        ends = [cast(reshape(extreme_axes(column, [0], r), []), DType.float64) for r in (smallest, largest)]
        equal, half = ops.equal(ends[0], ends[1]), constant(0.5, DType.float64, device)
        first = cast(ops.where(equal, ops.sub(ends[0], half), ends[0]), dtype)
        last = cast(ops.where(equal, ops.add(ends[1], half), ends[1]), dtype)
    count = constant(bins, dtype, device)
    step = ops.div(ops.sub(last, first), count)
    at = iota(bins + 1, dtype, device)
    rising, falling = ops.add(first, ops.mul(step, at)), ops.sub(last, ops.mul(step, ops.sub(count, at)))
    return ops.where(ops.greater(constant((bins + 1) // 2, dtype, device), at), rising, falling)


def _ordered(x: TensorValue) -> TensorValue:
    """Integers in the order of the numbers, the two zeros equal: MAX's threads take subnormal numbers for zeros."""
    dtype = DType.int32 if x.dtype == DType.float32 else DType.int64
    (bits,) = mojo_op("tmb_bitcast", [x], [(dtype, x.shape)])
    bounds = np.iinfo(dtype.to_numpy())
    least, most, zero = (constant(int(v), dtype, x.device) for v in (bounds.min, bounds.max, 0))
    key = ops.where(ops.greater(zero, bits), ops.sub(most, bits), bits)
    return ops.where(ops.equal(bits, least), zero, key)


# -- counting -------------------------------------------------------------------------------------------------------
def _bin(column: TensorValue, edges: TensorValue) -> Pair:
    """The bin of every element, and whether it has one."""
    size = edges.shape[0]
    edges, column = _ordered(edges), _ordered(column)
    rows = [reshape(edges, [1, size]), reshape(column, [1, column.shape[0]])]
    (after,) = mojo_op("tmb_search_sorted", rows, [(DType.int64, rows[1].shape)], {"right": True})
    last = cast(ops.reshape(ops.shape_to_tensor([size - 2]), []).to(column.device), DType.int64)
    zero, one = (constant(v, DType.int64, column.device) for v in (0, 1))
    place = ops.max(ops.min(ops.sub(reshape(after, [column.shape[0]]), one), last), zero)
    inside = ops.logical_and(ops.greater_equal(column, edges[0]), ops.greater_equal(edges[-1], column))
    return place, inside


def _counted(
    columns: Sequence[TensorValue], edges: Sequence[TensorValue], weight: TensorValue | None, density: bool
) -> TensorValue:
    """The histogram of points, given by coordinate."""
    sizes = [e.shape[0] - 1 for e in edges]
    first = edges[0]
    points, total = columns[0].shape[0], numel(sizes)
    if any(static(d) == 0 for d in [points, *sizes]):
        hist = full(0, [total], first.dtype, first.device)
    else:
        found = [_bin(c, e) for c, e in zip(columns, edges, strict=True)]
        place = found[0][0]
        for size, (more, _) in zip(sizes[1:], found[1:], strict=True):
            place = place * cast(ops.reshape(ops.shape_to_tensor([size]), []).to(first.device), DType.int64) + more
        inside = reduce(ops.logical_and, [i for _, i in found])
        outside = cast(ops.reshape(ops.shape_to_tensor([total]), []).to(first.device), DType.int64)
        place = ops.where(inside, place, outside)
        ones = full(1, [points], first.dtype, first.device) if weight is None else reshape(weight, [points])
        base = full(0, [total + 1], first.dtype, first.device)
        hist = cut_axis(write_rows(base, 1, place, ones, "sum"), 0, 0, total)
    if density and static(points) == 0:  # where torch divides 0 by 0, MAX gave 0
        hist = full(math.nan, [total], first.dtype, first.device)
    elif density:
        hist = ops.div(hist, sum_along(hist, 0))
    hist = reshape(hist, sizes)
    for i, e in enumerate(edges if density else ()):
        length = ops.sub(cut_axis(e, 0, 1, sizes[i]), cut_axis(e, 0, 0, sizes[i]))
        hist = ops.div(hist, reshape(length, [sizes[i] if d == i else 1 for d in range(len(sizes))]))
    return hist


def _flat(x: TensorValue) -> TensorValue:
    _check(x)
    return reshape(x, [numel(x.shape)])


# histogram.bin_ct(Tensor self, int bins=100, *, float[]? range=None, Tensor? weight=None, bool density=False)
#     -> (Tensor hist, Tensor bin_edges)
@map_to(aten.histogram.bin_ct)
def histogram_bin_ct(
    self: TensorValue,
    bins: int = 100,
    range: Sequence[float] | None = None,
    weight: TensorValue | None = None,
    density: bool = False,
) -> Pair:
    x = _flat(self)
    edges = _equal_edges(x, bins, range)
    return _counted([x], [edges], weight, density), edges


# histogram.bins_tensor(Tensor self, Tensor bins, *, Tensor? weight=None, bool density=False)
#     -> (Tensor hist, Tensor bin_edges)
@map_to(aten.histogram.bins_tensor)
def histogram_bins_tensor(
    self: TensorValue, bins: TensorValue, weight: TensorValue | None = None, density: bool = False
) -> Pair:
    return _counted([_flat(self)], [bins], weight, density), bins


# -- more dimensions ------------------------------------------------------------------------------------------------
def _columns(x: TensorValue) -> list[TensorValue]:
    _check(x)
    count = known(x.shape[-1], "the number of coordinates")
    points = numel(x.shape[:-1])
    table = reshape(x, [points, Dim(count)])
    return [reshape(table[:, i : i + 1], [points]) for i in range(count)]


def _bounds(bounds: Sequence[float] | None, i: int) -> Sequence[float] | None:
    return None if bounds is None else bounds[2 * i : 2 * i + 2]


# _histogramdd_bin_edges(Tensor self, int[] bins, *, float[]? range=None, Tensor? weight=None, bool density=False)
#     -> Tensor[]
@map_to(aten._histogramdd_bin_edges.default)
def _histogramdd_bin_edges(
    self: TensorValue,
    bins: Sequence[int],
    range: Sequence[float] | None = None,
    weight: TensorValue | None = None,
    density: bool = False,
) -> list[TensorValue]:
    return [_equal_edges(c, bins[i], _bounds(range, i)) for i, c in enumerate(_columns(self))]


# _histogramdd_from_bin_cts(Tensor self, int[] bins, *, float[]? range=None, Tensor? weight=None, bool density=False)
#     -> Tensor
@map_to(aten._histogramdd_from_bin_cts.default)
def _histogramdd_from_bin_cts(
    self: TensorValue,
    bins: Sequence[int],
    range: Sequence[float] | None = None,
    weight: TensorValue | None = None,
    density: bool = False,
) -> TensorValue:
    edges = _histogramdd_bin_edges(self, bins, range)
    return _counted(_columns(self), edges, weight, density)


# _histogramdd_from_bin_tensors(Tensor self, Tensor[] bins, *, Tensor? weight=None, bool density=False) -> Tensor
@map_to(aten._histogramdd_from_bin_tensors.default)
def _histogramdd_from_bin_tensors(
    self: TensorValue, bins: Sequence[TensorValue], weight: TensorValue | None = None, density: bool = False
) -> TensorValue:
    return _counted(_columns(self), bins, weight, density)
