"""Writes into a view of a tensor, and the gradients of views: select, slice, diagonal, masked places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.index_checks import always
from torch_max_backend.aten_functions.support.index_tensors import coordinate, readable, write_rows
from torch_max_backend.aten_functions.support.node_context import out_shape
from torch_max_backend.aten_functions.support.tensor_ops import (
    axis_of,
    broadcast_to,
    cast,
    full,
    iota,
    known,
    numel,
    permute,
    rebind,
    reshape,
    static,
    tensor,
)
from torch_max_backend.aten_functions.views.padding import pad_axis, spread
from torch_max_backend.aten_functions.views.views import clamped, on_device, take_slice

Size: TypeAlias = int | Dim


def _start(start: Size | None, size: Dim) -> Size:
    """The first place of a slice, counted from the front.

    ``start`` is a number. Of a size that is not known when the graph is built, torch has made sure that it lies within.
    """
    at = 0 if start is None else start
    first, extent = static(at), static(size)
    if first is not None and first < 0:
        at = size + first
        first = static(at)
    return at if first is None or extent is None else min(max(first, 0), extent)


# -- select --------------------------------------------------------------------------------------------------------
# select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor
@map_to(aten.select_scatter.default)
def select_scatter(self: TensorValue, src: TensorValue, dim: int, index: Size) -> TensorValue:
    axis = axis_of(dim, self.rank)
    at = coordinate(self.shape[axis], axis, self.rank, self)
    here = ops.equal(at, on_device(clamped(index, self.shape[axis]), self.device))
    row = reshape(cast(src, self.dtype), [*self.shape[:axis], 1, *self.shape[axis + 1 :]])
    return ops.where(broadcast_to(here, self.shape), broadcast_to(row, self.shape), self)


# select_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt index) -> Tensor
@map_to(aten.select_backward.default)
def select_backward(grad_output: TensorValue, input_sizes: Sequence[Size], dim: int, index: Size) -> TensorValue:
    shape = out_shape()
    axis = axis_of(dim, len(shape))
    row = reshape(grad_output, [*shape[:axis], 1, *shape[axis + 1 :]])
    if static(index) is None:
        return _written(full(0, shape, row.dtype, row.device), row, axis, index, 1)
    start = _start(index, shape[axis])
    return pad_axis(row, axis, start, shape[axis] - 1 - start)


# -- slice ---------------------------------------------------------------------------------------------------------
def _spread_over(src: TensorValue, axis: int, size: Dim, start: Size, step: int) -> TensorValue:
    """``src`` at ``start, start + step, …`` of a dim of ``size``, zeros elsewhere."""
    wide = spread(src, axis, step)
    room = static(size - start)
    if room is not None and (static(wide.shape[axis]) or 0) > room:
        wide = take_slice(wide, axis, 0, 1, room)
    elif room is None and step != 1:
        wide = take_slice(wide, axis, 0, 1, (src.shape[axis] - 1) * step + 1)
    return pad_axis(wide, axis, start, size - start - wide.shape[axis])


def _written(x: TensorValue, src: TensorValue, axis: int, start: Size | None, step: int) -> TensorValue:
    """``src`` written to ``start, start + step, …``: every place looks up whether and what is written to it."""
    length = src.shape[axis]
    begin = on_device(clamped(0 if start is None else start, x.shape[axis]), x.device)
    offset = iota(x.shape[axis], DType.int64, x.device) - begin
    last = tensor(length - 1, DType.int64, x.device)
    new = ops.gather(src, ops.max(ops.min(ops.floor_div(offset, step), last), 0), axis)
    hit = ops.logical_and(ops.equal(ops.mod(offset, step), 0), ops.greater_equal(last * step, offset))
    hit = ops.logical_and(hit, offset >= 0)
    hit = reshape(hit, [x.shape[axis] if i == axis else 1 for i in range(x.rank)])
    return ops.where(broadcast_to(hit, x.shape), rebind(new, x.shape), x)


# slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor
@map_to(aten.slice_scatter.default)
def slice_scatter(
    self: TensorValue,
    src: TensorValue,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> TensorValue:
    axis, step = axis_of(dim, self.rank), known(step, "the step")
    size, src = self.shape[axis], cast(src, self.dtype)
    length = src.shape[axis]
    if static(length) == 0:
        return self
    if step == 1 and length == size:
        return rebind(src, self.shape)
    if step != 1 or static(0 if start is None else start) is None:
        return _written(self, src, axis, start, step)
    first = _start(start, size)
    last = size - first - length
    src = rebind(src, [*self.shape[:axis], length, *self.shape[axis + 1 :]])
    if static(last) is not None and any(static(d) != 1 for d in self.shape[:axis]):
        # Joining blocks along an inner dim is several times slower than choosing.
        at = coordinate(size, axis, self.rank, self)
        first_at, end_at = (tensor(v, DType.int64, self.device) for v in (first, first + length))
        written = ops.logical_and(ops.greater_equal(at, first_at), ops.greater(end_at, at))
        new = rebind(pad_axis(src, axis, first, last), self.shape)
        return ops.where(broadcast_to(written, self.shape), new, self)
    ahead = take_slice(self, axis, 0, 1, Dim(first))
    behind = take_slice(self, axis, first + length, 1, last, is_inside=True)
    return ops.concat([p for p in (ahead, src, behind) if static(p.shape[axis]) != 0], axis)


# slice_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt start, SymInt end, SymInt step) -> Tensor
@map_to(aten.slice_backward.default)
def slice_backward(
    grad_output: TensorValue, input_sizes: Sequence[Size], dim: int, start: Size, end: Size, step: Size
) -> TensorValue:
    shape, step = out_shape(), known(step, "the step")
    axis = axis_of(dim, len(shape))
    if static(grad_output.shape[axis]) == 0:
        return full(0, shape, grad_output.dtype, grad_output.device)
    if static(start) is None:
        return _written(full(0, shape, grad_output.dtype, grad_output.device), grad_output, axis, start, step)
    return _spread_over(grad_output, axis, shape[axis], _start(start, shape[axis]), step)


# -- diagonal ------------------------------------------------------------------------------------------------------
# diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor
@map_to(aten.diagonal_scatter.default)
def diagonal_scatter(self: TensorValue, src: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorValue:
    """The diagonal is laid along rows (or columns, below the main one) and chosen where row and column meet it."""
    if static(src.shape[-1]) == 0:
        return self
    a, b = axis_of(dim1, self.rank), axis_of(dim2, self.rank)
    order = [*[i for i in range(self.rank) if i not in (a, b)], a, b]
    x = permute(self, order)
    rows, columns = x.shape[-2:]
    row, column = coordinate(rows, 0, 2, x), coordinate(columns, 1, 2, x)
    along = rows if offset >= 0 else columns
    line = pad_axis(cast(src, self.dtype), src.rank - 1, 0, along - src.shape[-1])
    line = reshape(line, [*x.shape[:-2], rows, 1] if offset >= 0 else [*x.shape[:-2], 1, columns])
    met = broadcast_to(ops.equal(row + offset, column), x.shape)
    result = ops.where(met, broadcast_to(line, x.shape), x)
    return permute(result, sorted(range(self.rank), key=order.__getitem__))


# -- masked places -------------------------------------------------------------------------------------------------
def _order_of_true(mask: TensorValue) -> TensorValue:
    """For every True of a flat mask, how many stand before it."""
    return ops.cumsum(cast(mask, DType.int64), 0) - 1


# masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor
@map_to(aten.masked_scatter.default, out_of_range=always("Number of elements of source < number of ones in mask"))
def masked_scatter(self: TensorValue, mask: TensorValue, source: TensorValue) -> TensorValue:
    """The next element of ``source`` for every True; too few of them fail the run on the CPU, as in torch, and are
    reported on a GPU."""
    shape = out_shape()
    if any(static(d) == 0 for d in [*shape, *source.shape]):
        return broadcast_to(self, shape)
    total, available = numel(shape), numel(source.shape)
    chosen = reshape(broadcast_to(mask, shape), [total])
    at = ops.where(chosen, _order_of_true(chosen), full(0, [total], DType.int64, self.device))
    new = ops.gather(reshape(source, [available]), readable(at, available, wraps=False), 0)
    return reshape(ops.where(chosen, new, reshape(broadcast_to(self, shape), [total])), shape)


# masked_scatter_backward(Tensor grad_output, Tensor mask, SymInt[] sizes) -> Tensor
@map_to(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad_output: TensorValue, mask: TensorValue, sizes: Sequence[Size]) -> TensorValue:
    """The gradients at the mask's places one after the other, then zeros. The rest goes to a slot that is cut off."""
    shape = out_shape()
    room, total = numel(shape), numel(grad_output.shape)
    if 0 in (static(room), static(total)):
        return full(0, shape, grad_output.dtype, grad_output.device)
    chosen = reshape(broadcast_to(mask, grad_output.shape), [total])
    slot = tensor(room, DType.int64, mask.device)
    at = ops.min(ops.where(chosen, _order_of_true(chosen), broadcast_to(slot, [total])), slot)
    base = full(0, [room + 1], grad_output.dtype, grad_output.device)
    return reshape(take_slice(write_rows(base, 1, at, reshape(grad_output, [total]), "set"), 0, 0, 1, room), shape)


def _not_symbolic(self: torch.Tensor, *, size: Size, fill_value: int = -1) -> str | None:
    return None if all(isinstance(n, int) for n in (*self.shape, size)) else f"static sizes; got {list(self.shape)}"


# nonzero_static(Tensor self, *, SymInt size, int fill_value=-1) -> Tensor
@map_to(aten.nonzero_static.default, supports=_not_symbolic, limits="static sizes")
def nonzero_static(self: TensorValue, *, size: int, fill_value: int = -1) -> TensorValue:
    """The flat places of what is not zero move to the front; from them follow the coordinates."""
    shape, total = out_shape(), static(numel(self.shape)) or 0
    if 0 in (total, size, self.rank):
        return full(fill_value, shape, DType.int64, self.device)
    flat = reshape(self, [total])
    chosen = flat if flat.dtype == DType.bool else ops.logical_not(ops.equal(flat, tensor(0, flat.dtype, flat.device)))
    at = ops.min(ops.where(chosen, _order_of_true(chosen), full(size, [total], DType.int64, self.device)), size)
    base = full(-1, [size + 1], DType.int64, self.device)
    places = take_slice(write_rows(base, 1, at, iota(total, DType.int64, self.device), "set"), 0, 0, 1, size)
    columns, stride = [], total
    for extent in self.shape:
        stride //= int(extent)
        column = ops.mod(ops.floor_div(places, stride), int(extent))
        fill = full(fill_value, [size], DType.int64, self.device)
        columns.append(reshape(ops.where(places < 0, fill, column), [size, 1]))
    return columns[0] if len(columns) == 1 else ops.concat(columns, 1)
