"""Tensors joined, repeated, turned around and cut to triangles: cat, stack, repeat, flip, roll, tril, triu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.channels_last import (
    channels_first,
    channels_last,
    is_channels_last,
    last_order,
)
from torch_max_backend.aten_functions.support.node_context import out_dtype, out_shape, promise
from torch_max_backend.aten_functions.support.tensor_ops import (
    axis_of,
    broadcast_to,
    full,
    iota,
    numel,
    rebind,
    reshape,
    static,
    tensor,
)
from torch_max_backend.aten_functions.views.views import converted, on_device, take_slice

Size: TypeAlias = int | Dim


# -- joining -------------------------------------------------------------------------------------------------------
# cat(Tensor[] tensors, int dim=0) -> Tensor
@map_to(aten.cat.default)
def cat(tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    """Promotes dtypes; one-dimensional tensors of size 0 go with any shape, as they always have in torch."""
    shape = out_shape()
    axis = axis_of(dim, len(shape))
    kept = [x for x in tensors if x.rank == len(shape) and static(x.shape[axis]) != 0]
    return concat(kept, axis, shape)


def concat(parts: Sequence[TensorValue], axis: int, shape: Sequence[Dim]) -> TensorValue:
    """``parts`` joined along ``axis`` to the promised dtype and ``shape``."""
    dtype, device = out_dtype(), promise().device
    if not parts:
        return full(0, shape, dtype, device)
    placed = [on_device(converted(x, dtype), device) for x in parts]
    aligned = [rebind(x, [*shape[:axis], x.shape[axis], *shape[axis + 1 :]]) for x in placed]
    if len(aligned) == 1:
        return aligned[0]
    if any(is_channels_last(x) for x in aligned):
        return channels_first(ops.concat([channels_last(x) for x in aligned], last_order(len(shape)).index(axis)))
    return ops.concat(aligned, axis)


# stack(Tensor[] tensors, int dim=0) -> Tensor
@map_to(aten.stack.default)
def stack(tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    shape = out_shape()
    axis = axis_of(dim, len(shape))
    one = [*shape[:axis], Dim(1), *shape[axis + 1 :]]
    return concat([reshape(x, one) for x in tensors], axis, shape)


# repeat(Tensor self, SymInt[] repeats) -> Tensor
@map_to(aten.repeat.default)
def repeat(self: TensorValue, repeats: Sequence[Size]) -> TensorValue:
    """Each dim is broadcast over a dim of its own before it, then both are merged."""
    shape = out_shape()
    if any(static(d) == 0 for d in shape):
        return full(0, shape, self.dtype, self.device)
    sizes = [*[Dim(1)] * (len(repeats) - self.rank), *self.shape]
    before: list[Size] = []
    after: list[Size] = []
    for count, size in zip(repeats, sizes, strict=True):
        if static(count) != 1:
            before.append(1)
            after.append(count)
        before.append(size)
        after.append(size)
    return reshape(broadcast_to(reshape(self, before), after), shape)


# -- order along an axis -------------------------------------------------------------------------------------------
# flip(Tensor self, int[] dims) -> Tensor
@map_to(aten.flip.default)
def flip(self: TensorValue, dims: Sequence[int]) -> TensorValue:
    x = self
    for axis in sorted({axis_of(d, self.rank) for d in dims} if self.rank else ()):
        size = x.shape[axis]
        if static(size) not in (0, 1):
            last = tensor(size - 1, DType.int64, x.device)
            x = ops.gather(x, last - iota(size, DType.int64, x.device), axis)
    return x


# roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor
@map_to(aten.roll.default)
def roll(self: TensorValue, shifts: Sequence[Size], dims: Sequence[int] = ()) -> TensorValue:
    """Without dims, the flattened tensor is rolled."""
    if any(static(d) == 0 for d in self.shape):
        return self
    if not dims:
        return reshape(_rolled(reshape(self, [numel(self.shape)]), shifts[0], 0), self.shape)
    x = self
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(x, shift, axis_of(dim, self.rank))
    return x


def _rolled(x: TensorValue, shift: Size, axis: int) -> TensorValue:
    size, by = static(x.shape[axis]), static(shift)
    if size is not None and by is not None:
        first = -by % size
        if first == 0:
            return x
        head, tail = take_slice(x, axis, 0, 1, first), take_slice(x, axis, first, 1, size - first)
        return ops.concat([tail, head], axis)
    extent = tensor(x.shape[axis], DType.int64, x.device)
    at = iota(x.shape[axis], DType.int64, x.device) - tensor(shift, DType.int64, x.device)
    return ops.gather(x, ops.mod(at, ops.max(extent, 1)), axis)


# -- triangles -----------------------------------------------------------------------------------------------------
def _band(x: TensorValue, diagonal: Size, lower: bool) -> TensorValue:
    """Zero where a column is right of (``lower``) or left of the diagonal."""
    rows, columns = x.shape[-2], x.shape[-1]
    row = reshape(iota(rows, DType.int64, x.device), [rows, 1]) + tensor(diagonal, DType.int64, x.device)
    column = reshape(iota(columns, DType.int64, x.device), [1, columns])
    mask = ops.greater_equal(row, column) if lower else ops.greater_equal(column, row)
    return ops.where(broadcast_to(mask, x.shape), x, full(0, x.shape, x.dtype, x.device))


# tril(Tensor self, SymInt diagonal=0) -> Tensor
@map_to(aten.tril.default)
def tril(self: TensorValue, diagonal: Size = 0) -> TensorValue:
    return _band(self, diagonal, lower=True)


# triu(Tensor self, SymInt diagonal=0) -> Tensor
@map_to(aten.triu.default)
def triu(self: TensorValue, diagonal: Size = 0) -> TensorValue:
    return _band(self, diagonal, lower=False)
