"""Padding: constant, reflection and replication, and the gradients of the last two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from max.dtype import DType
from max.graph import DeviceRef, Dim, TensorValue, ops

from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.dtypes import Operand
from torch_max_backend.aten_functions.support.index_tensors import positions_of_rows, write_rows
from torch_max_backend.aten_functions.support.node_context import out_shape
from torch_max_backend.aten_functions.support.tensor_ops import broadcast_to, full, iota, reshape, static, tensor
from torch_max_backend.aten_functions.views.views import take_slice

Size: TypeAlias = int | Dim


# -- zeros around a tensor, for other lowerings --------------------------------------------------------------------
def pad_axis(x: TensorValue, axis: int, before: Size, after: Size, value: Operand = 0) -> TensorValue:
    """``x`` with ``value`` before and after it along one axis; amounts are not negative."""
    amounts = [(before, after) if i == axis else (0, 0) for i in range(x.rank)]
    return pad_axes(x, amounts, value)


def pad_axes(x: TensorValue, amounts: Sequence[tuple[Size, Size]], value: Operand = 0) -> TensorValue:
    """``x`` with ``value`` around it: ``(before, after)`` for every axis."""
    fixed = [static(a) for pair in amounts for a in pair]
    if not any(a != 0 for a in fixed):
        return x
    if None not in fixed and not any(static(d) == 0 for d in x.shape):
        return ops.pad(x, [a for a in fixed if a is not None], value=tensor(value, x.dtype, DeviceRef.CPU()))
    for axis, (before, after) in enumerate(amounts):
        blocks = [_block(x, axis, before, value), x, _block(x, axis, after, value)]
        kept = [b for b in blocks if static(b.shape[axis]) != 0]
        x = ops.concat(kept, axis) if kept else x
    return x


def _block(x: TensorValue, axis: int, size: Size, value: Operand) -> TensorValue:
    return broadcast_to(tensor(value, x.dtype, x.device), [*x.shape[:axis], size, *x.shape[axis + 1 :]])


def spread(x: TensorValue, axis: int, step: int) -> TensorValue:
    """``x`` with ``step - 1`` zeros after every element along ``axis``."""
    if step == 1:
        return x
    columns = reshape(x, [*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]])
    padded = pad_axis(columns, axis + 1, 0, step - 1)
    return reshape(padded, [*x.shape[:axis], x.shape[axis] * step, *x.shape[axis + 1 :]])


# -- padding ops ---------------------------------------------------------------------------------------------------
def _by_axis(pad: Sequence[Size], rank: int) -> list[tuple[Size, Size]]:
    """Torch lists the last dim first."""
    amounts: list[tuple[Size, Size]] = [(0, 0)] * rank
    for i in range(len(pad) // 2):
        amounts[rank - 1 - i] = (pad[2 * i], pad[2 * i + 1])
    return amounts


def _cropped(x: TensorValue, amounts: Sequence[tuple[Size, Size]]) -> tuple[TensorValue, list[tuple[Size, Size]]]:
    """``x`` without what negative amounts cut off, and the amounts that remain to be added."""
    rest: list[tuple[Size, Size]] = []
    for axis, (before, after) in enumerate(amounts):
        cut = [min(static(a) or 0, 0) for a in (before, after)]
        x = take_slice(x, axis, -cut[0], 1, x.shape[axis] + cut[0] + cut[1]) if any(cut) else x
        rest.append((0 if cut[0] else before, 0 if cut[1] else after))
    return x, rest


# constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor
@map_to(aten.constant_pad_nd.default)
def constant_pad_nd(self: TensorValue, pad: Sequence[Size], value: Operand = 0) -> TensorValue:
    """A negative amount cuts off."""
    if any(static(d) == 0 for d in self.shape):
        return broadcast_to(tensor(value, self.dtype, self.device), out_shape())
    x, amounts = _cropped(self, _by_axis(pad, self.rank))
    return pad_axes(x, amounts, value)


def _nearest(self: TensorValue, axis: int, before: Size, out: Dim, reflect: bool) -> TensorValue:
    """For every place along the padded axis, the place in ``self`` that its value comes from."""
    at = iota(out, DType.int64, self.device) - tensor(before, DType.int64, self.device)
    last = tensor(self.shape[axis] - 1, DType.int64, self.device)
    return last - ops.abs(last - ops.abs(at)) if reflect else ops.min(ops.max(at, 0), last)


def _extended(self: TensorValue, padding: Sequence[Size], reflect: bool) -> TensorValue:
    amounts, shape = _by_axis(padding, self.rank), out_shape()
    if any(static(d) == 0 for d in shape):
        return full(0, shape, self.dtype, self.device)
    fixed = [static(a) for pair in amounts for a in pair]
    if all(a is not None and a >= 0 for a in fixed):
        return ops.pad(self, [a for a in fixed if a is not None], mode="reflect" if reflect else "edge")
    x = self
    for axis, (before, after) in enumerate(amounts):
        if static(before) != 0 or static(after) != 0:
            x = ops.gather(x, _nearest(x, axis, before, shape[axis], reflect), axis)
    return x


# reflection_pad1d(Tensor self, SymInt[2] padding) -> Tensor
@map_to(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(self: TensorValue, padding: Sequence[Size]) -> TensorValue:
    return _extended(self, padding, reflect=True)


# replication_pad1d(Tensor self, SymInt[2] padding) -> Tensor
@map_to(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default)
def replication_pad(self: TensorValue, padding: Sequence[Size]) -> TensorValue:
    return _extended(self, padding, reflect=False)


# replication_pad1d_backward(Tensor grad_output, Tensor self, SymInt[2] padding) -> Tensor
@map_to(
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
)
def replication_pad_backward(grad_output: TensorValue, self: TensorValue, padding: Sequence[Size]) -> TensorValue:
    return _gathered(grad_output, self, padding, reflect=False)


# reflection_pad1d_backward(Tensor grad_output, Tensor self, SymInt[2] padding) -> Tensor
@map_to(
    aten.reflection_pad1d_backward.default,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default,
)
def reflection_pad_backward(grad_output: TensorValue, self: TensorValue, padding: Sequence[Size]) -> TensorValue:
    return _gathered(grad_output, self, padding, reflect=True)


def _gathered(grad: TensorValue, self: TensorValue, padding: Sequence[Size], reflect: bool) -> TensorValue:
    """Axis by axis, the gradient is added up where its value came from."""
    for axis, (before, after) in enumerate(_by_axis(padding, self.rank)):
        if static(before) == 0 and static(after) == 0:
            continue
        at = _nearest(self, axis, before, grad.shape[axis], reflect)
        base = full(0, [*grad.shape[:axis], self.shape[axis], *grad.shape[axis + 1 :]], grad.dtype, grad.device)
        grad = write_rows(base, axis + 1, positions_of_rows(base, axis, at), grad, "sum")
    return grad
