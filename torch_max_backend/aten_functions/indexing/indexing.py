"""Reads and writes by index tensors: index, gather, take, index_put, scatter, index_add and their kin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from max.dtype import DType
from max.graph import BufferValue, TensorValue, ops

from torch_max_backend.aten_functions.registry import aten, keep_as_island, map_to
from torch_max_backend.aten_functions.support.dtypes import Operand, accumulator
from torch_max_backend.aten_functions.support.index_checks import (
    IN_SELF,
    along_dim,
    along_dims,
    always,
    report_operands,
)
from torch_max_backend.aten_functions.support.index_tensors import (
    Reduce,
    checked,
    coordinate,
    linear,
    positions_along,
    positions_of_rows,
    readable,
    rows_of,
    take_rows,
    write_rows,
)
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op_in_place
from torch_max_backend.aten_functions.support.node_context import out_shape
from torch_max_backend.aten_functions.support.tensor_ops import (
    axis_of,
    broadcast_shape,
    broadcast_to,
    cast,
    full,
    numel,
    permute,
    reshape,
    static,
    tensor,
)
from torch_max_backend.aten_functions.views.views import on_device, take_slice

Indices = Sequence[TensorValue | None]
_MASKS = (torch.bool, torch.uint8)
_IN_ELEMENTS = "out of range: tried to access index {index} on a tensor of {size} elements."


def _is_empty(x: TensorValue) -> bool:
    return any(static(d) == 0 for d in x.shape)


def _at_least_1d(x: TensorValue) -> TensorValue:
    return x if x.rank else reshape(x, [1])


# -- index: several index tensors ----------------------------------------------------------------------------------
def _positions(self: TensorValue, indices: Indices) -> tuple[TensorValue, int]:
    """Positions among the rows of ``self`` that ``indices`` name, in the order of dims that torch gives the result.

    Rows are numbered by the dims up to the last indexed one, which is the second value. A dim without an index tensor
    counts through; it keeps its place if the index tensors stand side by side, else it comes after their dims.
    """
    at = [i for i, x in enumerate(indices) if x is not None]
    depth = at[-1] + 1
    found = {
        i: checked(on_device(indices[i], self.device), self.shape[i], wraps=True, check=k) for k, i in enumerate(at)
    }
    shape = broadcast_shape(*(x.shape for x in found.values()))
    side_by_side = at == list(range(at[0], depth))
    free = [d for d in range(depth) if d not in found]
    ahead = [d for d in free if d < at[0]] if side_by_side else []
    order = [*ahead, *[None] * len(shape), *[d for d in free if d not in ahead]]
    rank, first = len(order), len(ahead)
    coordinates = []
    for d in range(depth):
        if d in found:
            x = broadcast_to(found[d], shape) if found[d].rank else found[d]
            coordinates.append(reshape(x, [*[1] * first, *x.shape, *[1] * (rank - first - x.rank)]))
        else:
            coordinates.append(coordinate(self.shape[d], order.index(d), rank, self))
    dims = iter(shape)
    target = [next(dims) if d is None else self.shape[d] for d in order]
    return broadcast_to(linear(coordinates, self.shape[:depth]), target), depth


def _refuse_masks(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> str | None:
    masks = [str(i.dtype) for i in indices if i is not None and i.dtype in _MASKS]
    return f"integer index tensors: a mask gives a size that depends on data; got {masks[0]}" if masks else None


# index.Tensor(Tensor self, Tensor?[] indices) -> Tensor
@map_to(
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    supports=_refuse_masks,
    limits="integer index tensors",
    out_of_range=along_dims,
)
def index(self: TensorValue, indices: Indices) -> TensorValue:
    at = [i for i, x in enumerate(indices) if x is not None]
    shape = out_shape()
    if any(static(d) == 0 for d in shape):
        return full(0, shape, self.dtype, self.device)
    if not at:
        return self
    if len(at) == 1:
        only = on_device(indices[at[0]], self.device)
        return take_rows(self, readable(only, self.shape[at[0]], wraps=True), at[0])
    positions, depth = _positions(self, indices)
    return reshape(take_rows(rows_of(self, depth), positions, 0), shape)


def _put_limits(
    self: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> str | None:
    """Masks are fine where every place gets the same value, however many there are."""
    if not any(i is not None and i.dtype in _MASKS for i in indices):
        return None
    used = [i for i in indices if i is not None]
    if len(used) > 1 or used[0].dtype is torch.uint8:
        return f"one mask and no other index tensor; got {[str(i.dtype) for i in used]}"
    after = self.dim() - [x is not None for x in indices].index(True) - used[0].dim()
    if values.dim() > after and not (isinstance(values.shape[-1 - after], int) and values.shape[-1 - after] == 1):
        return f"one value for all places of a mask; got values of shape {list(values.shape)}"
    return None


# index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor
@map_to(
    aten.index_put.default,
    aten._unsafe_index_put.default,
    supports=_put_limits,
    limits="integer index tensors, or one mask with one value for all its places",
    out_of_range=along_dims,
)
def index_put(self: TensorValue, indices: Indices, values: TensorValue, accumulate: bool = False) -> TensorValue:
    values = on_device(values, self.device)
    at = [i for i, x in enumerate(indices) if x is not None]
    if not at:
        new = broadcast_to(values, self.shape)
        return self + new if accumulate else new
    first = indices[at[0]]
    if first is not None and first.dtype.size_in_bytes == 1:
        return _put_masked(self, at[0], on_device(first, self.device), values, accumulate)
    if _is_empty(self) or any(_is_empty(indices[i]) for i in at):
        return self
    positions, depth = _positions(self, indices)
    updates = broadcast_to(values, [*positions.shape, *self.shape[depth:]])
    return write_rows(self, depth, positions, updates, "sum" if accumulate else "set")


def _put_masked(self: TensorValue, axis: int, mask: TensorValue, values: TensorValue, accumulate: bool) -> TensorValue:
    after = self.rank - axis - mask.rank
    if values.rank > after:
        kept = values.rank - after - 1
        values = reshape(values, [*values.shape[:kept], *[1] * mask.rank, *values.shape[kept + 1 :]])
    where = broadcast_to(reshape(mask, [*[1] * axis, *mask.shape, *[1] * after]), self.shape)
    new = broadcast_to(values, self.shape)
    return ops.where(where, self + new if accumulate else new, self)


# -- index: one tensor along one dim -------------------------------------------------------------------------------
# index_select(Tensor self, int dim, Tensor index) -> Tensor
@map_to(aten.index_select.default, out_of_range=always(IN_SELF))
def index_select(self: TensorValue, dim: int, index: TensorValue) -> TensorValue:
    if any(static(d) == 0 for d in out_shape()):
        return full(0, out_shape(), self.dtype, self.device)
    x, axis = _at_least_1d(self), axis_of(dim, self.rank)
    at = readable(_at_least_1d(index), x.shape[axis], wraps=False)
    return reshape(ops.gather(x, at, axis), out_shape())


# gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor
@map_to(aten.gather.default, out_of_range=along_dim)
def gather(self: TensorValue, dim: int, index: TensorValue, *, sparse_grad: bool = False) -> TensorValue:
    if any(static(d) == 0 for d in out_shape()):
        return full(0, out_shape(), self.dtype, self.device)
    x, axis, at = _at_least_1d(self), axis_of(dim, self.rank), _at_least_1d(index)
    if x.rank == 1:
        return reshape(ops.gather(x, readable(at, x.shape[0], wraps=False), 0), out_shape())
    positions = positions_along(x, axis, checked(at, x.shape[axis], wraps=False))
    return reshape(ops.gather(reshape(x, [numel(x.shape)]), positions, 0), out_shape())


# take(Tensor self, Tensor index) -> Tensor
@map_to(aten.take.default, out_of_range=always(_IN_ELEMENTS))
def take(self: TensorValue, index: TensorValue) -> TensorValue:
    if _is_empty(index):
        return full(0, out_shape(), self.dtype, self.device)
    size = numel(self.shape)
    return take_rows(reshape(self, [size]), readable(index, size, wraps=True), 0)


# put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor
@map_to(aten.put.default, out_of_range=always(_IN_ELEMENTS))
def put(self: TensorValue, index: TensorValue, source: TensorValue, accumulate: bool = False) -> TensorValue:
    if _is_empty(index):
        return self
    size = numel(self.shape)
    at = checked(index, size, wraps=True)
    flat = reshape(self, [size])
    return reshape(write_rows(flat, 1, at, reshape(source, index.shape), "sum" if accumulate else "set"), self.shape)


def _write_along(
    self: TensorValue,
    dim: int,
    index: TensorValue,
    source: TensorValue,
    reduce: Reduce,
    *,
    wraps: bool = False,
    include_self: bool = True,
) -> TensorValue:
    """Write the slices of ``source`` along ``dim`` to the places in the one-dimensional ``index``."""
    if _is_empty(self) or _is_empty(index):
        return self
    x, axis = _at_least_1d(self), axis_of(dim, self.rank)
    at = checked(_at_least_1d(index), x.shape[axis], wraps=wraps)
    positions = positions_of_rows(x, axis, at)
    updates = broadcast_to(source, [*positions.shape, *x.shape[axis + 1 :]])
    return reshape(write_rows(x, axis + 1, positions, updates, reduce, include_self), self.shape)


def _same_rank(
    self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: object = 1
) -> str | None:
    """Tracing does not look at it; torch refuses it when it runs."""
    if source.dim() == self.dim():
        return None
    return f"a source with the dimensions of self, {self.dim()}; got {source.dim()}"


def _of_index_add(self: torch.Tensor, *args: Any, **kwargs: Any) -> Sequence[str]:
    return along_dim(self, *args, **kwargs) if self.dim() > 1 else [IN_SELF]


# index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor
@map_to(aten.index_add.default, supports=_same_rank, out_of_range=_of_index_add)
def index_add(
    self: TensorValue, dim: int, index: TensorValue, source: TensorValue, *, alpha: int | float = 1
) -> TensorValue:
    wide = accumulator(self.dtype)
    scaled = source if alpha == 1 else cast(source, wide) * tensor(alpha, wide, source.device)
    return cast(_write_along(cast(self, scaled.dtype), dim, index, scaled, "sum"), self.dtype)


def _of_index_copy(*args: Any, **kwargs: Any) -> Sequence[str]:
    return [f"index_copy_(): {message}" for message in along_dim(*args, **kwargs)]


# index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor
@map_to(aten.index_copy.default, out_of_range=_of_index_copy)
def index_copy(self: TensorValue, dim: int, index: TensorValue, source: TensorValue) -> TensorValue:
    return _write_along(self, dim, index, source, "set")


def index_copy_in_place(
    memories: Sequence[BufferValue], order: Sequence[int], dim: int, index: TensorValue, sources: Sequence[TensorValue]
) -> None:
    """The same of one or two tensors of one form, written where each is: ``memories`` have their dims in ``order``.

    None of their sizes is 0.
    """
    at = _at_least_1d(index)
    if at.device.is_cpu():
        at = checked(at, memories[0].shape[order.index(dim)], wraps=False)
    name = ("tmb_index_copy", "tmb_index_copy_two")[len(memories) - 1]
    turned = [permute(source, order) for source in sources]
    report, checks = report_operands(at.device)
    operands = [*memories, *turned, cast(at, DType.int64), *report]
    mojo_op_in_place(name, operands, {"axis": order.index(dim), "checks": checks}, at.device)


# index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor
# index_fill.int_Tensor(Tensor self, int dim, Tensor index, Tensor value) -> Tensor
@map_to(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor, out_of_range=along_dim)
def index_fill(self: TensorValue, dim: int, index: TensorValue, value: Operand) -> TensorValue:
    return _write_along(self, dim, index, tensor(value, self.dtype, self.device), "set", wraps=True)


# index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool include_self=True) -> Tensor
@map_to(aten.index_reduce.default, out_of_range=always(IN_SELF))
def index_reduce(
    self: TensorValue, dim: int, index: TensorValue, source: TensorValue, reduce: Reduce, *, include_self: bool = True
) -> TensorValue:
    return _write_along(self, dim, index, source, reduce, include_self=include_self)


# -- scatter -------------------------------------------------------------------------------------------------------
def _scatter(
    self: TensorValue, dim: int, index: TensorValue, src: TensorValue, reduce: Reduce, include_self: bool = True
) -> TensorValue:
    """``src`` may be larger than ``index``; what is beyond is not read. A 0-d ``src`` is one value for all."""
    if _is_empty(self) or _is_empty(index):
        return self
    x, axis, at = _at_least_1d(self), axis_of(dim, self.rank), _at_least_1d(index)
    positions = positions_along(x, axis, checked(at, x.shape[axis], wraps=False))
    if src.rank == at.rank:
        for d in range(at.rank):
            src = take_slice(src, d, 0, 1, at.shape[d])
    updates = broadcast_to(src, at.shape)
    return reshape(write_rows(x, x.rank, positions, updates, reduce, include_self), self.shape)


# scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor
@map_to(aten.scatter.src, out_of_range=along_dim)
def scatter_src(self: TensorValue, dim: int, index: TensorValue, src: TensorValue) -> TensorValue:
    return _scatter(self, dim, index, src, "set")


# scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor
@map_to(aten.scatter.value, out_of_range=along_dim)
def scatter_value(self: TensorValue, dim: int, index: TensorValue, value: Operand) -> TensorValue:
    return _scatter(self, dim, index, tensor(value, self.dtype, self.device), "set")


_REDUCE: dict[str, Reduce] = {"add": "sum", "multiply": "prod"}


# scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor
@map_to(aten.scatter.reduce, out_of_range=along_dim)
def scatter_src_reduce(
    self: TensorValue, dim: int, index: TensorValue, src: TensorValue, *, reduce: str
) -> TensorValue:
    return _scatter(self, dim, index, src, _REDUCE[reduce])


# scatter.value_reduce(Tensor self, int dim, Tensor index, Scalar value, *, str reduce) -> Tensor
@map_to(aten.scatter.value_reduce, out_of_range=along_dim)
def scatter_value_reduce(
    self: TensorValue, dim: int, index: TensorValue, value: Operand, *, reduce: str
) -> TensorValue:
    return _scatter(self, dim, index, tensor(value, self.dtype, self.device), _REDUCE[reduce])


# scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor
@map_to(aten.scatter_add.default, out_of_range=along_dim)
def scatter_add(self: TensorValue, dim: int, index: TensorValue, src: TensorValue) -> TensorValue:
    return _scatter(self, dim, index, src, "sum")


# scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True) -> Tensor
@map_to(aten.scatter_reduce.two, out_of_range=along_dim)
def scatter_reduce(
    self: TensorValue, dim: int, index: TensorValue, src: TensorValue, reduce: Reduce, *, include_self: bool = True
) -> TensorValue:
    return _scatter(self, dim, index, src, reduce, include_self)


# -- sizes that depend on data -------------------------------------------------------------------------------------
keep_as_island(
    aten.nonzero.default,
    aten.masked_select.default,
    aten.repeat_interleave.Tensor,
    reason="its size depends on data",
)
