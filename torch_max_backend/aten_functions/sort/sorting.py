"""Sorting, selection by rank, binary search and histograms.

All of it works on rows: the axis in question is moved to the end and the others are merged. MAX's ``top_k`` compares
with ``<`` and so misplaces NaN, and it sorts whole rows on a CPU; sorting and selection are kernels of ours.
"""

from __future__ import annotations

import math

import torch
from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.reduce.reductions import at_least_1d, extreme_axes
from torch_max_backend.aten_functions.registry import aten, keep_as_island, map_to
from torch_max_backend.aten_functions.support.axis_reductions import largest, smallest, sum_along
from torch_max_backend.aten_functions.support.index_checks import always
from torch_max_backend.aten_functions.support.index_tensors import checked, positions_along
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import out_dtype, out_shape
from torch_max_backend.aten_functions.support.tensor_ops import (
    axis_of,
    cast,
    constant,
    full,
    iota,
    move_axis,
    numel,
    promote,
    reshape,
    static,
    tensor,
)

# Integers of the width of a float; their order is that of the float once the kernel has fixed the sign.
_KEYS = {
    DType.float64: DType.int64,
    DType.float32: DType.int32,
    DType.float16: DType.int16,
    DType.bfloat16: DType.int16,
}

Pair = tuple[TensorValue, TensorValue]


def _rows(x: TensorValue, dim: int) -> TensorValue:
    """``x`` as ``[rows, n]`` with the elements along ``dim`` in the rows; bool as uint8."""
    x = at_least_1d(cast(x, DType.uint8) if x.dtype == DType.bool else x)
    moved = move_axis(x, axis_of(dim, x.rank), x.rank - 1)
    return reshape(moved, [numel(moved.shape[:-1]), moved.shape[-1]])


def _restored(rows: TensorValue, like: TensorValue, dim: int, index: int) -> TensorValue:
    """The inverse of :func:`_rows`, in the promised dtype and shape of output ``index``."""
    like = at_least_1d(like)
    axis = axis_of(dim, like.rank)
    outer = [d for i, d in enumerate(like.shape) if i != axis]
    back = move_axis(reshape(rows, [*outer, rows.shape[-1]]), like.rank - 1, axis)
    return reshape(cast(back, out_dtype(index)), out_shape(index))


def sort_rows(rows: TensorValue, descending: bool) -> Pair:
    """Every row in order and where its elements come from; equal elements keep their order, NaN is the largest."""
    key = _KEYS.get(rows.dtype, rows.dtype)
    outputs = [(rows.dtype, rows.shape), *[(DType.int64, rows.shape), (key, rows.shape)] * 2]
    values, indices, *_ = mojo_op("tmb_sort", [rows], outputs, {"descending": descending})
    return values, indices


def _select_rows(rows: TensorValue, how: str, k: int | Dim, size: int | Dim, largest_first: bool = False) -> Pair:
    """``size`` elements of every row by rank, and where they come from, on a CPU: equal ones in torch's order.

    ``how`` is a selection of the kernel: ``sorted`` or ``unsorted`` for the first ``k`` elements, ``all`` or ``kth``.
    """
    wanted = [rows.shape[0], Dim(size)]
    key = _KEYS.get(rows.dtype, rows.dtype)
    outputs = [(rows.dtype, wanted), (DType.int64, wanted), (key, rows.shape), (DType.int64, rows.shape)]
    rank = reshape(tensor(k, DType.int64, rows.device), [1])
    values, indices, *_ = mojo_op("tmb_select", [rows, rank], outputs, {"how": how, "descending": largest_first})
    return values, indices


def _columns(rows: TensorValue, start: int | Dim, stop: int | Dim) -> TensorValue:
    return ops.slice_tensor(rows, [slice(None), (slice(start, stop), Dim(stop) - start)])


# sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)
@map_to(aten.sort.default)
def sort(self: TensorValue, dim: int = -1, descending: bool = False) -> Pair:
    return sort_stable(self, False, dim, descending)


# sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)
@map_to(aten.sort.stable)
def sort_stable(self: TensorValue, stable: bool | None, dim: int = -1, descending: bool = False) -> Pair:
    """Without ``stable`` equal elements come on a CPU as torch's introsort leaves them."""
    rows = _rows(self, dim)
    if stable or not rows.device.is_cpu():
        values, indices = sort_rows(rows, descending)
    else:
        values, indices = _select_rows(rows, "all", 0, rows.shape[1], descending)
    return _restored(values, self, dim, 0), _restored(indices, self, dim, 1)


# topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)
@map_to(aten.topk.default)
def topk(self: TensorValue, k: int | Dim, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    rows = _rows(self, dim)
    if rows.device.is_cpu():
        values, indices = _select_rows(rows, "sorted" if sorted else "unsorted", k, k, largest)
    else:
        values, indices = (_columns(part, 0, k) for part in sort_rows(rows, largest))
    return _restored(values, self, dim, 0), _restored(indices, self, dim, 1)


# kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)
@map_to(aten.kthvalue.default)
def kthvalue(self: TensorValue, k: int | Dim, dim: int = -1, keepdim: bool = False) -> Pair:
    rows = _rows(self, dim)
    if rows.device.is_cpu():
        values, indices = _select_rows(rows, "kth", k, 1)
    else:
        values, indices = (_columns(part, k - 1, k) for part in sort_rows(rows, False))
    return _restored(values, self, dim, 0), _restored(indices, self, dim, 1)


# -- medians ---------------------------------------------------------------------------------------------------------
def _median_place(values: TensorValue, skip_nan: bool) -> TensorValue:
    """Where the median stands in sorted rows (``[rows, 1]``): the lower one, the first NaN, or the lower of numbers."""
    size = tensor(values.shape[1], DType.int64, values.device)
    one, zero, two = (constant(v, DType.int64, values.device) for v in (1, 0, 2))
    if not values.dtype.is_float():
        return reshape((size - one) // two, [1, 1])
    nans = sum_along(cast(ops.is_nan(values), DType.int64), 1)
    if skip_nan:
        return ops.max(size - nans - one, zero) // two
    return ops.where(nans > zero, size - nans, (size - one) // two)


def _at(rows: TensorValue, place: TensorValue) -> TensorValue:
    """The element of every row that stands at ``place`` (``[rows, 1]`` or ``[1, 1]``)."""
    here = ops.equal(reshape(iota(rows.shape[1], DType.int64, rows.device), [1, rows.shape[1]]), place)
    return sum_along(ops.where(here, rows, constant(0, rows.dtype, rows.device)), 1)


def _median_of_rows(rows: TensorValue, skip_nan: bool) -> Pair:
    values, indices = sort_rows(rows, False)
    place = _median_place(values, skip_nan)
    return _at(values, place), _at(indices, place)


def _median(x: TensorValue, dim: int, skip_nan: bool) -> Pair:
    value, index = _median_of_rows(_rows(x, dim), skip_nan)
    return _restored(value, x, dim, 0), _restored(index, x, dim, 1)


def _median_of_all(x: TensorValue, skip_nan: bool) -> TensorValue:
    if 0 in [static(d) for d in x.shape]:  # NaN, and for integers what C++ makes of it
        whole = -(1 << 8 * x.dtype.size_in_bytes - 1) if x.dtype in (DType.int32, DType.int64) else 0
        return full(math.nan if x.dtype.is_float() else whole, [], out_dtype(), x.device)
    value, _ = _median_of_rows(_rows(reshape(x, [numel(x.shape)]), 0), skip_nan)
    return reshape(cast(value, out_dtype()), out_shape())


# median(Tensor self) -> Tensor
@map_to(aten.median.default)
def median(self: TensorValue) -> TensorValue:
    return _median_of_all(self, False)


# nanmedian(Tensor self) -> Tensor
@map_to(aten.nanmedian.default)
def nanmedian(self: TensorValue) -> TensorValue:
    return _median_of_all(self, True)


# median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)
@map_to(aten.median.dim)
def median_dim(self: TensorValue, dim: int, keepdim: bool = False) -> Pair:
    return _median(self, dim, False)


# nanmedian.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)
@map_to(aten.nanmedian.dim)
def nanmedian_dim(self: TensorValue, dim: int, keepdim: bool = False) -> Pair:
    return _median(self, dim, True)


# -- binary search ---------------------------------------------------------------------------------------------------
def _search(sequence: TensorValue, values: TensorValue, right: bool) -> TensorValue:
    """Places in the rows of ``sequence``, a vector or of the rank of ``values``."""
    sequence, values = promote(sequence, values)
    size = sequence.shape[-1]
    if sequence.rank == 1:
        rows, wanted = reshape(sequence, [1, size]), reshape(values, [1, numel(values.shape)])
    else:
        count = numel(sequence.shape[:-1])
        rows, wanted = reshape(sequence, [count, size]), reshape(values, [count, values.shape[-1]])
    (places,) = mojo_op("tmb_search_sorted", [rows, wanted], [(out_dtype(), wanted.shape)], {"right": right})
    return reshape(places, out_shape())


def _as_tensor(value: TensorValue | bool | int | float, like: TensorValue) -> TensorValue:
    if isinstance(value, TensorValue):
        return value
    dtype = DType.float32 if isinstance(value, float) and not like.dtype.is_float() else like.dtype
    return constant(value, dtype, like.device)


# searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool right=False, str? side=None,
#     Tensor? sorter=None) -> Tensor
# searchsorted.Scalar(Tensor sorted_sequence, Scalar self, *, bool out_int32=False, bool right=False, str? side=None,
#     Tensor? sorter=None) -> Tensor
@map_to(
    aten.searchsorted.Tensor,
    aten.searchsorted.Scalar,
    out_of_range=always("torch.searchsorted(): sorter index out of range"),
)
def searchsorted(
    sorted_sequence: TensorValue,
    self: TensorValue | bool | int | float,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: TensorValue | None = None,
) -> TensorValue:
    if sorter is not None and all(static(d) != 0 for d in sorter.shape):
        size = sorted_sequence.shape[-1]
        order = positions_along(sorted_sequence, sorter.rank - 1, checked(sorter, size, wraps=False))
        sorted_sequence = ops.gather(reshape(sorted_sequence, [numel(sorted_sequence.shape)]), order, 0)
    return _search(sorted_sequence, _as_tensor(self, sorted_sequence), right or side == "right")


def _flat_boundaries(self: object, boundaries: torch.Tensor, **_: object) -> str | None:
    """Tracing does not look at it; torch refuses it when it runs."""
    return None if boundaries.dim() == 1 else f"boundaries of 1 dimension; got {boundaries.dim()}"


# bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor
# bucketize.Scalar(Scalar self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor
@map_to(aten.bucketize.Tensor, aten.bucketize.Scalar, supports=_flat_boundaries)
def bucketize(
    self: TensorValue | bool | int | float, boundaries: TensorValue, out_int32: bool = False, right: bool = False
) -> TensorValue:
    return _search(boundaries, _as_tensor(self, boundaries), right)


# -- histogram -------------------------------------------------------------------------------------------------------
# histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor
@map_to(aten.histc.default)
def histc(self: TensorValue, bins: int = 100, min: float = 0, max: float = 0) -> TensorValue:
    x = reshape(self, [1, numel(self.shape)])
    low, high = (constant(v, x.dtype, x.device) for v in (min, max))
    if min == max:
        low, high = _data_range(x)
    count, zero = constant(bins, x.dtype, x.device), constant(0, x.dtype, x.device)
    place = ops.floor((x - low) * count / (high - low))
    place = ops.where(ops.equal(x, high), count - constant(1, x.dtype, x.device), place)
    inside = ops.logical_and(ops.greater_equal(x, low), ops.greater_equal(high, x))
    place = ops.where(inside, place, constant(-1, x.dtype, x.device))
    numbers = reshape(iota(bins, x.dtype, x.device), [bins, 1])
    hits = sum_along(cast(ops.equal(place, numbers), DType.int64), 1)
    return reshape(cast(hits, out_dtype()) + cast((high - low) * zero, out_dtype()), out_shape())


def _data_range(x: TensorValue) -> Pair:
    """The range of the elements, widened by one on both sides if they are equal; NaN if one of them is."""
    low, high = extreme_axes(x, [1], smallest), extreme_axes(x, [1], largest)
    one = constant(1, x.dtype, x.device)
    equal = ops.equal(low, high)
    return ops.where(equal, low - one, low), ops.where(equal, high + one, high)


_SIZE = "the size of the result depends on the values"
keep_as_island(aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.unique_dim_consecutive, reason=_SIZE)
keep_as_island(aten.bincount, reason=_SIZE)
