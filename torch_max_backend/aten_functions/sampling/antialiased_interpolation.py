"""Resizing with an antialiasing filter: every element is a weighted sum of all that the filter covers.

The filter's width follows the scale, and its weights are known from the sizes alone. They are computed in the dtype
that torch takes, step by step: rounding decides which elements a filter covers. Bytes have whole-number weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.dtypes import Operand
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import out_shape
from torch_max_backend.aten_functions.support.tensor_ops import full, known, numel, reshape, static
from torch_max_backend.base.errors import NeedsStatic, Unsupported

Filter = Callable[[np.ndarray], np.ndarray]
Table = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Where every window begins, how many elements it has, and their weights, filled up with zeros."""


# -- filters -----------------------------------------------------------------------------------------------------------
def _linear(x: np.ndarray) -> np.ndarray:
    size = np.abs(x)
    return np.where(size < 1, 1 - size, x.dtype.type(0))


def _cubic(x: np.ndarray) -> np.ndarray:
    a, size = x.dtype.type(-0.5), np.abs(x)
    near = ((a + 2) * size - (a + 3)) * size * size + 1
    far = ((a * size - 5 * a) * size + 8 * a) * size - 4 * a
    return np.where(size < 1, near, np.where(size < 2, far, x.dtype.type(0)))


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where((x >= -3) & (x < 3), np.sinc(x) * np.sinc(x / 3), 0).astype(x.dtype)


def _windows(
    size: int, out: int, scale: float | None, corners: bool, filter: Filter, reach: int, dtype: type[np.floating]
) -> Table:
    """The windows of one axis; ``reach`` is the filter's width in elements of the smaller image."""
    if corners:
        ratio = dtype(size - 1) / dtype(out - 1) if out > 1 else dtype(0)
    else:
        ratio = dtype(1 / scale) if scale else dtype(size) / dtype(out)
    support = dtype(reach * 0.5 * float(ratio)) if ratio >= 1 else dtype(reach * 0.5)
    widest = math.ceil(support) * 2 + 1
    inverse = dtype(1 / float(ratio)) if ratio >= 1 else dtype(1)
    centre = (float(ratio) * (np.arange(out) + 0.5)).astype(dtype)
    start = np.maximum(((centre - support).astype(np.float64) + 0.5).astype(np.int64), 0)
    stop = np.minimum(((centre + support).astype(np.float64) + 0.5).astype(np.int64), size)
    sizes = np.clip(stop - start, 0, widest)
    step = np.arange(widest)
    place = (start[:, None] + step).astype(dtype) - centre[:, None]
    weights = filter(((place.astype(np.float64) + 0.5) * float(inverse)).astype(dtype))
    weights = np.where(step < sizes[:, None], weights, dtype(0)).astype(dtype)
    total = np.zeros(out, dtype)
    for i in range(widest):
        total = total + weights[:, i]
    return start, sizes, weights / np.where(total == 0, dtype(1), total)[:, None]


def _in_bytes(weights: np.ndarray) -> tuple[np.ndarray, int]:
    """Weights as 16-bit numbers, and to which power of two they are too large."""
    bits = 0
    while bits < 22 and int(0.5 + float(weights.max()) * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    scaled = weights * (1 << bits)
    return np.trunc(scaled + np.where(scaled < 0, -0.5, 0.5)).astype(np.int32), bits


def _transposed(table: Table, size: int) -> Table:
    """For every element, the windows that contain it: what carries a gradient back."""
    start, sizes, weights = table
    matrix = np.zeros((len(start), size), weights.dtype)
    for i, (first, count) in enumerate(zip(start, sizes, strict=True)):
        matrix[i, first : first + count] = weights[i, :count]
    columns = [np.flatnonzero(column) for column in matrix.T]
    first = np.array([c[0] if len(c) else 0 for c in columns], np.int64)
    counts = np.array([c[-1] - c[0] + 1 if len(c) else 0 for c in columns], np.int64)
    result = np.zeros((size, max(int(counts.max()), 1)), weights.dtype)
    for i, (begin, count) in enumerate(zip(first, counts, strict=True)):
        result[i, :count] = matrix[begin : begin + count, i]
    return first, counts, result


# -- images ------------------------------------------------------------------------------------------------------------
def _apply(x: TensorValue, axis: int, table: Table) -> TensorValue:
    start, sizes, weights = table
    bits = 0
    if x.dtype == DType.uint8:
        weights, bits = _in_bytes(weights)
    shape = [numel(x.shape[:axis]), x.shape[axis], numel(x.shape[axis + 1 :])]
    wide = DType.int32 if bits else x.dtype
    tables = [ops.constant(t, DType.int64, x.device) for t in (start, sizes)]
    values = [reshape(x, shape), *tables, ops.constant(weights, wide, x.device)]
    out = [shape[0], Dim(len(start)), shape[2]]
    (y,) = mojo_op("tmb_weighted_windows", values, [(x.dtype, out)], {"bits": bits})
    return reshape(y, [*x.shape[:axis], len(start), *x.shape[axis + 1 :]])


def _scale(value: Operand | None) -> float | None:
    if isinstance(value, TensorValue | Dim):
        raise NeedsStatic(f"the scale must be known when the graph is built, got {value}", value)
    return value if value and value > 0 else None


def _resized(
    x: TensorValue, scales: Sequence[Operand | None], corners: bool, filter: Filter, reach: int, backward: bool
) -> TensorValue:
    shape = out_shape()
    if x.dtype not in (DType.float32, DType.float64, DType.uint8):
        raise Unsupported(f"antialiasing is of float32, float64 and uint8 images, got {x.dtype}")
    if any(static(d) == 0 for d in (*shape, *x.shape)):
        return full(0, shape, x.dtype, x.device)
    dtype = np.float32 if x.dtype == DType.float32 else np.float64
    y = x
    for axis in (x.rank - 2, x.rank - 1) if backward else (x.rank - 1, x.rank - 2):
        here, there = (known(d, "the size of an antialiased image") for d in (y.shape[axis], shape[axis]))
        size, out = (there, here) if backward else (here, there)
        table = _windows(size, out, _scale(scales[axis - x.rank]), corners, filter, reach, dtype)
        y = _apply(y, axis, _transposed(table, size) if backward else table)
    return reshape(y, shape)


# _upsample_bilinear2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None,
#   float? scales_w=None) -> Tensor
# _upsample_bilinear2d_aa_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size,
#   bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor
# … and so on for the cubic filter, and for that of Lanczos where torch has it.
def _register(name: str, filter: Filter, reach: int) -> None:
    def forward(
        self: TensorValue,
        output_size: object,
        align_corners: bool,
        scales_h: Operand | None = None,
        scales_w: Operand | None = None,
    ) -> TensorValue:
        return _resized(self, (scales_h, scales_w), align_corners, filter, reach, False)

    def backward(
        grad_output: TensorValue,
        output_size: object,
        input_size: object,
        align_corners: bool,
        scales_h: Operand | None = None,
        scales_w: Operand | None = None,
    ) -> TensorValue:
        return _resized(grad_output, (scales_h, scales_w), align_corners, filter, reach, True)

    for overload, function in ((name, forward), (f"{name}_backward", backward)):
        if hasattr(aten, overload):
            map_to(getattr(aten, overload).default, limits="sizes known at compile time")(function)


_register("_upsample_bilinear2d_aa", _linear, 2)
_register("_upsample_bicubic2d_aa", _cubic, 4)
_register("_upsample_lanczos2d_aa", _lanczos, 6)
