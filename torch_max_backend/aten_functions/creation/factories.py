"""Tensors made from numbers: full and its kin, empty ones (zeros), ranges, identity, index grids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, Dim, TensorValue, ops

from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.dtypes import Operand
from torch_max_backend.aten_functions.support.node_context import out_dtype, out_shape, promise
from torch_max_backend.aten_functions.support.tensor_ops import (
    broadcast_to,
    cast,
    constant,
    full,
    iota,
    reshape,
    static,
    tensor,
)


def _filled(value: Operand) -> TensorValue:
    """``value`` everywhere, in the promised shape, dtype and device."""
    there = promise()
    return broadcast_to(tensor(value, there.dtype, there.device), there.shape)


# -- one value everywhere ------------------------------------------------------------------------------------------
# full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
#     bool? pin_memory=None) -> Tensor
# full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None, …, MemoryFormat? memory_format=None) -> Tensor
@map_to(aten.full.default, aten.full_like.default)
def full_(like: Any, fill_value: Operand, **options: Any) -> TensorValue:
    return _filled(fill_value)


# new_full(Tensor self, SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, …) -> Tensor
@map_to(aten.new_full.default)
def new_full(self: TensorValue, size: Any, fill_value: Operand, **options: Any) -> TensorValue:
    return _filled(fill_value)


# scalar_tensor(Scalar s, *, ScalarType? dtype=None, Layout? layout=None, …) -> Tensor
@map_to(aten.scalar_tensor.default)
def scalar_tensor(s: Operand, **options: Any) -> TensorValue:
    return _filled(s)


# fill.Scalar(Tensor self, Scalar value) -> Tensor
# fill.Tensor(Tensor self, Tensor value) -> Tensor
@map_to(aten.fill.Scalar, aten.fill.Tensor)
def fill(self: TensorValue, value: Operand) -> TensorValue:
    return _filled(value)


def _constant_op(value: int) -> Callable[..., TensorValue]:
    def lowering(*args: Any, **options: Any) -> TensorValue:
        return _filled(value)

    return lowering


# zeros(SymInt[] size, *, ScalarType? dtype=None, …) -> Tensor; the other schemas differ in what gives the shape.
map_to(
    aten.zeros.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    aten.zero.default,
    aten._efficientzerotensor.default,  # a gradient that is zero everywhere, as of sgn
)(_constant_op(0))
map_to(aten.ones.default, aten.ones_like.default, aten.new_ones.default)(_constant_op(1))

# empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, …, MemoryFormat? memory_format=None) -> Tensor
# What stands in an empty tensor is undefined; zeros cost nothing where they are overwritten.
map_to(
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_permuted.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
)(_constant_op(0))


# -- ranges --------------------------------------------------------------------------------------------------------
def _range_dtype(out: DType, device: DeviceRef) -> DType:
    """What torch computes a range in: int64 for integers; float64 for float32 on the CPU, float32 on a GPU."""
    if out.is_integral() or out == DType.bool:
        return DType.int64
    if out == DType.float64 or (out == DType.float32 and device.is_cpu()):
        return DType.float64
    return DType.float32


def _arange(start: Operand, step: Operand) -> TensorValue:
    there = promise()
    dtype = _range_dtype(there.dtype, there.device)
    at = iota(there.shape[0], dtype, there.device)
    if not (isinstance(step, int) and step == 1):
        at = at * tensor(step, dtype, there.device)
    if not (isinstance(start, int) and start == 0):
        at = at + tensor(start, dtype, there.device)
    return cast(at, there.dtype)


# arange(Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None)
@map_to(aten.arange.default)
def arange(end: Operand, **options: Any) -> TensorValue:
    return _arange(0, 1)


# arange.start(Scalar start, Scalar end, *, ScalarType? dtype=None, …) -> Tensor
# arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, …) -> Tensor
@map_to(aten.arange.start, aten.arange.start_step)
def arange_start(start: Operand, end: Operand, step: Operand = 1, **options: Any) -> TensorValue:
    """``start + i * step``; the promise knows how many."""
    return _arange(start, step)


# linspace(Scalar start, Scalar end, int steps, *, ScalarType? dtype=None, …) -> Tensor
@map_to(aten.linspace.default)
def linspace(start: Operand, end: Operand, steps: int, **options: Any) -> TensorValue:
    """Counted from ``start`` in the first half and from ``end`` in the second, so that both are met exactly.

    Torch takes the step in the result's dtype, or in float64 for integers.
    """
    there = promise()
    dtype = DType.float64 if there.dtype.is_integral() else there.dtype
    wide = DType.float32 if dtype in (DType.float16, DType.bfloat16) else dtype
    if steps == 1:
        return _filled(start)
    first, last = (tensor(v, wide, there.device) for v in (start, end))
    step = cast(cast(ops.div(last - first, constant(steps - 1, wide, there.device)), dtype), wide)
    at = iota(steps, wide, there.device)
    left, right = first + step * at, last - step * (constant(steps - 1, wide, there.device) - at)
    half = constant(steps // 2, wide, there.device)
    return cast(ops.where(ops.greater(half, at), left, right), there.dtype)


# -- grids ---------------------------------------------------------------------------------------------------------
# eye(SymInt n, *, ScalarType? dtype=None, …) -> Tensor
# eye.m(SymInt n, SymInt m, *, ScalarType? dtype=None, …) -> Tensor
@map_to(aten.eye.default, aten.eye.m)
def eye(n: int | Dim, m: int | Dim | None = None, **options: Any) -> TensorValue:
    rows, columns = out_shape()
    device = promise().device
    row = reshape(iota(rows, DType.int64, device), [rows, 1])
    column = reshape(iota(columns, DType.int64, device), [1, columns])
    return cast(ops.equal(row, column), out_dtype())


def _indices(rows: np.ndarray, columns: np.ndarray) -> TensorValue:
    """A constant, in torch's order: row by row."""
    there = promise()
    if any(static(d) == 0 for d in there.shape):
        return full(0, there.shape, there.dtype, there.device)
    return ops.constant(np.stack([rows, columns]).astype(there.dtype.to_numpy()), there.dtype, there.device)


# tril_indices(int row, int col, int offset=0, *, ScalarType? dtype=4, …) -> Tensor
@map_to(aten.tril_indices.default)
def tril_indices(row: int, col: int, offset: int = 0, **options: Any) -> TensorValue:
    return _indices(*np.tril_indices(row, offset, col))


# triu_indices(int row, int col, int offset=0, *, ScalarType? dtype=4, …) -> Tensor
@map_to(aten.triu_indices.default)
def triu_indices(row: int, col: int, offset: int = 0, **options: Any) -> TensorValue:
    return _indices(*np.triu_indices(row, offset, col))
