"""Views and copies: reshape, permute, expand, slice, split.

Values are logically row-major, so a view is its shape; torch's strides play a role only for ``as_strided``.
The promised shape decides wherever torch has worked it out already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from max.dtype import DType
from max.graph import DeviceRef, Dim, TensorValue, ops

from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.dtypes import TO_MAX
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import is_used, out_dtype, out_shape, promise
from torch_max_backend.aten_functions.support.tensor_ops import (
    axis_of,
    broadcast_to,
    cast,
    constant,
    drop_axis,
    full,
    iota,
    move_axis,
    permute,
    permuted_from,
    remember_columns,
    reshape,
    static,
    tensor,
)
from torch_max_backend.aten_functions.support.value_facts import unfinished_of

Size: TypeAlias = int | Dim
CPU = DeviceRef.CPU()


# -- reshapes ------------------------------------------------------------------------------------------------------
# view(Tensor(a) self, SymInt[] size) -> Tensor(a)
@map_to(aten.view.default, aten._unsafe_view.default, aten.view_copy.default, aten._reshape_copy.default)
def view(self: TensorValue, size: Sequence[Size]) -> TensorValue:
    """``size`` may hold a -1 that the promise has resolved."""
    return reshape(self, out_shape())


# _reshape_alias(Tensor(a) self, SymInt[] size, SymInt[] stride) -> Tensor(a)
@map_to(aten._reshape_alias.default, aten._reshape_alias_copy.default)
def _reshape_alias(self: TensorValue, size: Sequence[Size], stride: Sequence[Size]) -> TensorValue:
    return reshape(self, out_shape())


# squeeze(Tensor(a) self) -> Tensor(a)
@map_to(aten.squeeze.default, aten.squeeze_copy.default)
def squeeze(self: TensorValue) -> TensorValue:
    return reshape(self, out_shape())


# squeeze.dim(Tensor(a) self, int dim) -> Tensor(a)
# squeeze.dims(Tensor(a) self, int[] dim) -> Tensor(a)
@map_to(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze_copy.dim, aten.squeeze_copy.dims)
def squeeze_dim(self: TensorValue, dim: int | Sequence[int]) -> TensorValue:
    """Dims of another size than 1 stay; the promise knows which."""
    return reshape(self, out_shape())


# unsqueeze(Tensor(a) self, int dim) -> Tensor(a)
@map_to(aten.unsqueeze.default, aten.unsqueeze_copy.default)
def unsqueeze(self: TensorValue, dim: int) -> TensorValue:
    return reshape(self, out_shape())


# expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)
@map_to(aten.expand.default, aten.expand_copy.default)
def expand(self: TensorValue, size: Sequence[Size], *, implicit: bool = False) -> TensorValue:
    return broadcast_to(self, out_shape())


def _other_width(self: torch.Tensor, dtype: torch.dtype) -> str | None:
    if self.dtype == dtype or (self.dtype.itemsize == dtype.itemsize and dtype in TO_MAX and dtype is not torch.bool):
        return None
    return f"the bits as a dtype of the same width, and not as bool; got {self.dtype} viewed as {dtype}"


# view.dtype(Tensor(a) self, ScalarType dtype) -> Tensor(a)
@map_to(aten.view.dtype, aten.view_copy.dtype, supports=_other_width, limits="dtypes of one width; not to bool")
def view_dtype(self: TensorValue, dtype: torch.dtype) -> TensorValue:
    target = out_dtype()
    if self.dtype == target or self.dtype == DType.bool:
        return cast(self, target)
    bits = self if self.rank else reshape(self, [1])
    return reshape(mojo_op("tmb_bitcast", [bits], [(target, bits.shape)])[0], self.shape)


# -- permutations --------------------------------------------------------------------------------------------------
# permute(Tensor(a) self, int[] dims) -> Tensor(a)
@map_to(aten.permute.default, aten.permute_copy.default)
def permute_(self: TensorValue, dims: Sequence[int]) -> TensorValue:
    return permute(self, [axis_of(d, self.rank) for d in dims])


# transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)
@map_to(aten.transpose.int, aten.transpose_copy.int)
def transpose(self: TensorValue, dim0: int, dim1: int) -> TensorValue:
    order = list(range(self.rank))
    if order:
        a, b = axis_of(dim0, self.rank), axis_of(dim1, self.rank)
        order[a], order[b] = order[b], order[a]
    return permute(self, order)


# t(Tensor(a) self) -> Tensor(a)
@map_to(aten.t.default, aten.t_copy.default)
def t(self: TensorValue) -> TensorValue:
    return permute(self, list(reversed(range(self.rank))))


# -- copies --------------------------------------------------------------------------------------------------------
# alias(Tensor(a) self) -> Tensor(a)
@map_to(
    aten.alias.default,
    aten.alias_copy.default,
    aten.detach.default,
    aten.detach_copy.default,
    aten.lift.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
)
def alias(self: TensorValue) -> TensorValue:
    return self


# clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor
@map_to(aten.clone.default)
def clone(self: TensorValue, *, memory_format: torch.memory_format | None = None) -> TensorValue:
    """A value has no identity and no strides: the output's memory is the runtime's concern."""
    return self


# _to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None,
#     bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor
@map_to(aten._to_copy.default)
def _to_copy(
    self: TensorValue,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> TensorValue:
    return on_device(converted(self, out_dtype()), promise().device)


def converted(x: TensorValue, dtype: DType) -> TensorValue:
    """``x`` in ``dtype``. NaN is True, although MAX finds it not unequal to zero."""
    if dtype == DType.bool and x.dtype.is_float():
        return ops.logical_not(ops.equal(x, constant(0, x.dtype, x.device)))
    return cast(x, dtype)


# copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor
@map_to(aten.copy.default)
def copy(self: TensorValue, src: TensorValue, non_blocking: bool = False) -> TensorValue:
    """``src`` in the shape, dtype and device of ``self``."""
    return broadcast_to(on_device(converted(src, out_dtype()), promise().device), out_shape())


def on_device(x: TensorValue, device: DeviceRef) -> TensorValue:
    """``x`` on ``device``."""
    return x if x.device == device else ops.transfer_to(x, device)


# -- slices --------------------------------------------------------------------------------------------------------
def take_slice(
    x: TensorValue, axis: int, start: Size | None, step: Size, length: Size, is_inside: bool = False
) -> TensorValue:
    """``x[start : start + length * step : step]`` along one axis; ``start`` may count from the end.

    ``length`` is what torch promises, so the end need not be known. A start whose sign or place is unknown when the
    graph is built is clamped on the host when it runs, as torch clamps it, unless ``is_inside`` tells that it need not.
    """
    moved = permuted_from(x)
    if x.device.is_gpu() and moved is not None:
        # In this order slices of one tensor are known as such: see ``remember_columns``.
        origin, order = moved
        return permute(take_slice(origin, order[axis], start, step, length, is_inside), order)
    size, count, first = static(x.shape[axis]), static(length), static(0 if start is None else start)
    if count == 0:
        return full(0, [*x.shape[:axis], 0, *x.shape[axis + 1 :]], x.dtype, x.device)
    if first is not None and size is not None:
        first = min(max(first + size if first < 0 else first, 0), size)
    if first == 0 and step == 1 and Dim(length) == x.shape[axis]:
        return x
    source = unfinished_of(x)
    if source is not None and step == 1 and first is not None and count is not None:
        piece: TensorValue | None = source.piece(axis, first, count)
        if piece is not None:
            return piece
    before = [slice(None)] * axis
    if static(step) == 1 and (is_inside or (first is not None and first >= 0)):
        begin = first if first is not None else 0 if start is None else start
        result = x[(*before, slice(begin, begin + length, 1))]
        if first is not None:
            remember_columns(result, x, axis, first)
        return result
    if size is not None and first is not None and count is not None and static(step) is not None:
        return x[(*before, slice(first, first + (count - 1) * int(step) + 1, int(step)))]
    begin = clamped(0 if start is None else start, x.shape[axis])
    by = tensor(step, DType.int64, CPU)
    return x[(*before, (slice(begin, begin + tensor(length, DType.int64, CPU) * by, by), Dim(length)))]


def clamped(position: Size, size: Size) -> TensorValue:
    """``position``, counted from the end if negative, within [0, size]; a host scalar."""
    at, end = tensor(position, DType.int64, CPU), tensor(size, DType.int64, CPU)
    return ops.min(ops.max(ops.where(at < 0, at + end, at), 0), end)


# slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)
@map_to(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice_(
    self: TensorValue, dim: int = 0, start: Size | None = None, end: Size | None = None, step: Size = 1
) -> TensorValue:
    axis = axis_of(dim, self.rank)
    length = out_shape()[axis]
    reaches_end = end is None or (isinstance(end, int) and end >= 2**62)
    first = static(0 if start is None else start)
    if reaches_end and static(step) == 1 and (first is None or first < 0):
        return take_slice(self, axis, self.shape[axis] - length, 1, length, is_inside=True)
    return take_slice(self, axis, start, step, length)


# narrow_copy(Tensor self, int dim, SymInt start, SymInt length) -> Tensor
@map_to(aten.narrow_copy.default)
def narrow_copy(self: TensorValue, dim: int, start: Size, length: Size) -> TensorValue:
    return take_slice(self, axis_of(dim, self.rank), start, 1, length)


# select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)
@map_to(aten.select.int, aten.select_copy.int)
def select(self: TensorValue, dim: int, index: Size) -> TensorValue:
    axis = axis_of(dim, self.rank)
    is_inside = isinstance(index, int)
    if is_inside and index < 0:
        index = self.shape[axis] + index
    return reshape(drop_axis(take_slice(self, axis, index, 1, 1, is_inside), axis), out_shape())


# diagonal(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)
@map_to(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(self: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorValue:
    """A slice with step ``columns + 1`` of the flattened matrix."""
    shape = out_shape()
    if static(shape[-1]) == 0:
        return full(0, shape, self.dtype, self.device)
    a, b = axis_of(dim1, self.rank), axis_of(dim2, self.rank)
    rest = [i for i in range(self.rank) if i not in (a, b)]
    rows, columns = self.shape[a], self.shape[b]
    flat = reshape(permute(self, [*rest, a, b]), [*shape[:-1], rows * columns])
    start = Dim(offset) if offset >= 0 else columns * -offset
    return take_slice(flat, flat.rank - 1, start if static(start) is None else int(start), columns + 1, shape[-1])


# unfold(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)
@map_to(aten.unfold.default, aten.unfold_copy.default)
def unfold(self: TensorValue, dimension: int, size: int, step: int) -> TensorValue:
    """Windows of ``size`` every ``step`` along a dim; the window is the new last dim."""
    x = self if self.rank else reshape(self, [1])
    axis = axis_of(dimension, x.rank)
    windows = out_shape()[axis] if self.rank else Dim(1)
    starts = reshape(iota(windows, DType.int64, x.device) * step, [windows, 1])
    at = starts + reshape(iota(size, DType.int64, x.device), [1, size])
    return reshape(move_axis(ops.gather(x, at, axis), axis + 1, x.rank), out_shape())


# -- several outputs -----------------------------------------------------------------------------------------------
def _pieces(self: TensorValue, axis: int) -> list[TensorValue | None]:
    """Consecutive slices of the promised lengths."""
    pieces: list[TensorValue | None] = []
    start: Dim = Dim(0)
    for i, length in enumerate(_lengths(axis)):
        pieces.append(take_slice(self, axis, start, 1, length, is_inside=True) if is_used(i) else None)
        start = start + length
    return pieces


def _lengths(axis: int) -> list[Dim]:
    """The promised sizes of all outputs along ``axis``."""
    found: list[Dim] = []
    while True:
        try:
            found.append(out_shape(len(found))[axis])
        except IndexError:
            return found


# split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]
@map_to(aten.split.Tensor, aten.split_copy.Tensor, aten.unsafe_split.Tensor)
def split(self: TensorValue, split_size: Size, dim: int = 0) -> list[TensorValue | None]:
    return _pieces(self, axis_of(dim, self.rank))


# split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]
@map_to(
    aten.split_with_sizes.default,
    aten.split_with_sizes_copy.default,
    aten.unsafe_split_with_sizes.default,
)
def split_with_sizes(self: TensorValue, split_sizes: Sequence[Size], dim: int = 0) -> list[TensorValue | None]:
    return _pieces(self, axis_of(dim, self.rank))


# unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]
@map_to(aten.unbind.int, aten.unbind_copy.int)
def unbind(self: TensorValue, dim: int = 0) -> list[TensorValue | None]:
    axis = axis_of(dim, self.rank)
    count = static(self.shape[axis])
    assert count is not None, "torch knows how many tensors unbind makes"
    return [drop_axis(take_slice(self, axis, i, 1, 1), axis) if is_used(i) else None for i in range(count)]
