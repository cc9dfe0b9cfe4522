"""Embedding bags: rows of a table, summed, averaged or maximised by bag, and their gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.indexing.embedding import embedding_dense_backward
from torch_max_backend.aten_functions.reduce.reductions import sum_axes
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.dtypes import accumulator
from torch_max_backend.aten_functions.support.index_checks import always
from torch_max_backend.aten_functions.support.index_tensors import checked, readable, write_rows
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import out_dtype, out_shape
from torch_max_backend.aten_functions.support.tensor_ops import (
    broadcast_to,
    cast,
    constant,
    full,
    iota,
    numel,
    reshape,
    static,
    tensor,
)
from torch_max_backend.aten_functions.views.views import take_slice

_SUM, _MEAN, _MAX = 0, 1, 2
_MESSAGES = (
    "embedding_bag: the offset {index} is beyond the end of the input",
    "embedding_bag: the input has the value {index}, which is not in the valid range [0, {size})",
)


def _bags(indices: TensorValue, offsets: TensorValue, bags: Dim) -> TensorValue:
    """The bag of every index; ``bags``, which is one too many, for indices outside of all bags."""
    length = indices.shape[0]
    at = checked(offsets, length + 1, wraps=False)
    ones = full(1, offsets.shape, DType.int64, offsets.device)
    starts = write_rows(full(0, [length + 1], DType.int64, offsets.device), 1, at, ones, "sum")
    bag = take_slice(ops.cumsum(starts, 0), 0, 0, 1, length) - 1
    outside = broadcast_to(tensor(bags, DType.int64, offsets.device), bag.shape)
    return ops.min(ops.where(bag < 0, outside, bag), outside)


def _counted(indices: TensorValue, padding_idx: int | Dim) -> TensorValue | None:
    """Which indices count, or None if all do."""
    if isinstance(padding_idx, int) and padding_idx < 0:
        return None
    return ops.not_equal(cast(indices, DType.int64), tensor(padding_idx, DType.int64, indices.device))


def _by_bag(values: TensorValue, bag: TensorValue, bags: Dim) -> TensorValue:
    """The sum of ``values`` by bag."""
    base = full(0, [bags + 1, *values.shape[1:]], values.dtype, values.device)
    return take_slice(write_rows(base, 1, bag, values, "sum"), 0, 0, 1, bags)


def _column(x: TensorValue, like: TensorValue) -> TensorValue:
    return broadcast_to(reshape(x, [x.shape[0], 1]), like.shape)


# _embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0,
#     bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1)
#     -> (Tensor, Tensor, Tensor, Tensor)
@map_to(aten._embedding_bag.default, aten._embedding_bag_forward_only.default, out_of_range=always(*_MESSAGES))
def _embedding_bag(
    weight: TensorValue,
    indices: TensorValue,
    offsets: TensorValue,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: TensorValue | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Sequence[TensorValue]:
    """Result, bag of every index, size of every bag, and where the maxima are from."""
    device, wide, bags = weight.device, accumulator(weight.dtype), out_shape(0)[0]
    if any(static(d) == 0 for d in [*indices.shape, *offsets.shape, *out_shape(0)]):
        return [full(0, out_shape(i), out_dtype(i), device) for i in range(4)]
    bag = _bags(indices, offsets, bags)
    of_index = cast(bag, out_dtype(1)) if static(out_shape(1)[0]) != 0 else full(0, [0], out_dtype(1), device)
    rows = ops.gather(weight, readable(indices, weight.shape[0], wraps=False, check=1), 0)
    counted = _counted(indices, padding_idx)
    weights = full(1, indices.shape, wide, device) if counted is None else cast(counted, wide)
    if counted is not None:
        outside = broadcast_to(tensor(bags, DType.int64, device), bag.shape)
        bag = ops.where(counted, bag, outside)
    sizes = _by_bag(weights, bag, bags)
    maxima = full(0, out_shape(3), out_dtype(3), device)
    if mode == _MAX:
        result, maxima = _maxima(rows, indices, offsets, weights, bags)
        maxima = reshape(cast(maxima, out_dtype(3)), out_shape(3))
    else:
        rows = cast(rows, wide)
        if per_sample_weights is not None:
            rows = rows * _column(cast(per_sample_weights, wide), rows)
        result = _by_bag(rows, bag, bags)
    if mode == _MEAN:
        result = ops.div(result, _column(ops.max(sizes, 1), result))
    return [cast(result, weight.dtype), of_index, _resized(cast(sizes, out_dtype(2)), out_shape(2)), maxima]


def _maxima(
    rows: TensorValue, indices: TensorValue, offsets: TensorValue, counts: TensorValue, bags: Dim
) -> tuple[TensorValue, TensorValue]:
    """The largest element of every bag and column, and the index whose row it is in; zeros for empty bags.

    Args:
        rows: The row of every index.
        counts: 0 for indices that do not count.
    """
    shape, width = [bags, rows.shape[1]], tensor(rows.shape[1], DType.int64, rows.device)
    values = [rows, cast(offsets, DType.int64), cast(counts, DType.int64)]
    (place,) = mojo_op("tmb_bag_maxima", values, [(DType.int64, shape)])
    column = reshape(iota(rows.shape[1], DType.int64, rows.device), [1, rows.shape[1]])
    empty, at = place < 0, ops.max(place, 0)
    largest = ops.gather(reshape(rows, [numel(rows.shape)]), at * width + column, 0)
    index = ops.gather(cast(indices, DType.int64), at, 0)
    zeros = [broadcast_to(constant(0, x.dtype, x.device), shape) for x in (largest, index)]
    return ops.where(empty, zeros[0], largest), ops.where(empty, zeros[1], index)


def _resized(x: TensorValue, shape: Sequence[Dim]) -> TensorValue:
    """On a GPU torch keeps a size for the last offset too, which is no bag."""
    missing = static(shape[0] - x.shape[0])
    return x if missing == 0 else ops.concat([x, full(0, [shape[0] - x.shape[0]], x.dtype, x.device)], 0)


def _gradient_limits(*args: Any, **kwargs: Any) -> str | None:
    return "dense gradients; got sparse=True" if args[9] else None


# _embedding_bag_backward(Tensor grad, Tensor indices, Tensor offsets, Tensor offset2bag, Tensor bag_size,
#     Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, bool sparse,
#     Tensor? per_sample_weights, int padding_idx=-1) -> Tensor
@map_to(aten._embedding_bag_backward.default, supports=_gradient_limits, limits="dense")
def _embedding_bag_backward(
    grad: TensorValue,
    indices: TensorValue,
    offsets: TensorValue,
    offset2bag: TensorValue,
    bag_size: TensorValue,
    maximum_indices: TensorValue,
    num_weights: int | Dim,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: TensorValue | None,
    padding_idx: int = -1,
) -> TensorValue:
    """The bag's gradient for each of its indices, then the gradient of a lookup."""
    bags, wide = grad.shape[0], accumulator(grad.dtype)
    if any(static(d) == 0 for d in [*indices.shape, *grad.shape]):
        return full(0, out_shape(), grad.dtype, grad.device)
    if mode == _MAX:
        return _gradient_of_maxima(grad, bag_size, maximum_indices, num_weights)
    bag = _bags(indices, offsets, bags)
    inside = ops.greater(tensor(bags, DType.int64, bag.device), bag)
    at = ops.min(bag, tensor(bags - 1, DType.int64, bag.device))
    rows = cast(ops.gather(grad, at, 0), wide)
    if mode == _MEAN:
        counted = _counted(indices, padding_idx)
        ones = full(1, indices.shape, wide, grad.device) if counted is None else cast(counted, wide)
        sizes = ops.max(_by_bag(ones, bag, bags), 1)
        rows = ops.div(rows, _column(ops.gather(sizes, at, 0), rows))
    if per_sample_weights is not None:
        rows = rows * _column(cast(per_sample_weights, wide), rows)
    rows = ops.where(_column(inside, rows), rows, broadcast_to(constant(0, wide, grad.device), rows.shape))
    return cast(embedding_dense_backward(rows, indices, num_weights, padding_idx, scale_grad_by_freq), grad.dtype)


def _gradient_of_maxima(
    grad: TensorValue, bag_size: TensorValue, maximum_indices: TensorValue, num_weights: int | Dim
) -> TensorValue:
    """Each bag's gradient goes where its maxima are from; empty bags have none."""
    device, wide, columns = grad.device, accumulator(grad.dtype), grad.shape[1]
    column = reshape(iota(columns, DType.int64, device), [1, columns])
    row = checked(maximum_indices, Dim(num_weights), wraps=False)
    at = row * tensor(columns, DType.int64, device) + column
    filled = _column(take_slice(bag_size, 0, 0, 1, grad.shape[0]) > 0, grad)
    values = ops.where(filled, cast(grad, wide), broadcast_to(constant(0, wide, device), grad.shape))
    result = write_rows(full(0, [Dim(num_weights) * columns], wide, device), 1, at, values, "sum")
    return reshape(cast(result, grad.dtype), out_shape())


# _embedding_bag_per_sample_weights_backward(Tensor grad, Tensor weight, Tensor indices, Tensor offsets,
#     Tensor offset2bag, int mode, int padding_idx=-1) -> Tensor
@map_to(aten._embedding_bag_per_sample_weights_backward.default)
def _embedding_bag_per_sample_weights_backward(
    grad: TensorValue,
    weight: TensorValue,
    indices: TensorValue,
    offsets: TensorValue,
    offset2bag: TensorValue,
    mode: int,
    padding_idx: int = -1,
) -> TensorValue:
    """The product of every index's row with the gradient of its bag. Torch allows these weights for sums alone."""
    bags, wide = grad.shape[0], accumulator(grad.dtype)
    if any(static(d) == 0 for d in [*indices.shape, *grad.shape]):
        return full(0, out_shape(), grad.dtype, grad.device)
    bag = _bags(indices, offsets, bags)
    counts = ops.greater(tensor(bags, DType.int64, bag.device), bag)
    counted = _counted(indices, padding_idx)
    if counted is not None:
        counts = ops.logical_and(counts, counted)
    at = ops.min(bag, tensor(bags - 1, DType.int64, bag.device))
    rows = cast(ops.gather(weight, readable(indices, weight.shape[0], wraps=False), 0), wide)
    products = sum_axes(rows * cast(ops.gather(grad, at, 0), wide), [1])
    products = reshape(products, indices.shape)
    return cast(ops.where(counts, products, broadcast_to(constant(0, wide, grad.device), products.shape)), grad.dtype)
