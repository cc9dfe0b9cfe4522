"""Sliding windows along one axis, for pooling and resizing: separable operations go one axis at a time.

A window's elements are strided slices of the padded tensor, one per tap. MAX fuses all of them into one vectorised loop
in torch's own layout, where its pooling kernels would first transpose the image to channels-last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.support.axis_reductions import sum_along
from torch_max_backend.aten_functions.support.tensor_ops import broadcast_to, reshape, static

Ints = Sequence[int]
Combine = Callable[[TensorValue, TensorValue], TensorValue]


def pad_axis(x: TensorValue, axis: int, before: int, after: int, value: float | int = 0) -> TensorValue:
    """``value`` around one axis."""
    if before == 0 and after == 0:
        return x
    paddings = [0] * (2 * x.rank)
    paddings[2 * axis], paddings[2 * axis + 1] = before, after
    return ops.pad(x, paddings, value=value)


def cut_axis(x: TensorValue, axis: int, start: int, size: Dim | int, step: int = 1) -> TensorValue:
    """``size`` elements of one axis from ``start`` on, ``step`` apart."""
    size = Dim(size)
    if start == 0 and step == 1 and x.shape[axis] == size:
        return x
    stop = (size - 1) * step + (start + 1)
    known = static(stop)
    end = ops.reshape(ops.shape_to_tensor([stop]), []) if known is None else known
    index: list[object] = [slice(None)] * x.rank
    index[axis] = (slice(start, end, step), size)
    return ops.slice_tensor(x, index)


def slide(
    x: TensorValue, axis: int, size: Dim | int, kernel: int, stride: int, dilation: int, combine: Combine
) -> TensorValue:
    """Combine the ``kernel`` elements of each of ``size`` windows of an axis that is padded already."""
    return reduce(combine, (cut_axis(x, axis, k * dilation, size, stride) for k in range(kernel)))


def spread_axis(x: TensorValue, axis: int, stride: int) -> TensorValue:
    """``stride - 1`` zeros after every element of an axis."""
    if stride == 1:
        return x
    shape = list(x.shape)
    wide = pad_axis(reshape(x, [*shape[: axis + 1], 1, *shape[axis + 1 :]]), axis + 1, 0, stride - 1)
    return reshape(wide, [*shape[:axis], shape[axis] * stride, *shape[axis + 1 :]])


def repeat_axis(x: TensorValue, axis: int, times: int) -> TensorValue:
    """Every element of an axis ``times`` times."""
    if times == 1:
        return x
    shape = list(x.shape)
    one = reshape(x, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
    wide = broadcast_to(one, [*shape[: axis + 1], times, *shape[axis + 1 :]])
    return reshape(wide, [*shape[:axis], shape[axis] * times, *shape[axis + 1 :]])


def fold_axis(x: TensorValue, axis: int, times: int) -> TensorValue:
    """Sums of ``times`` neighbours of an axis: what :func:`repeat_axis` is transposed."""
    if times == 1:
        return x
    shape = list(x.shape)
    groups = reshape(x, [*shape[:axis], shape[axis] // times, times, *shape[axis + 1 :]])
    return reshape(sum_along(groups, axis=axis + 1), [*shape[:axis], shape[axis] // times, *shape[axis + 1 :]])


def along(values: np.ndarray, x: TensorValue, axis: int, dtype: DType) -> TensorValue:
    """A constant vector, shaped to broadcast along one axis of ``x``."""
    shape = [1] * x.rank
    shape[axis] = len(values)
    return ops.constant(values.astype(dtype.to_numpy()).reshape(shape), dtype, x.device)


def take(x: TensorValue, axis: int, places: np.ndarray) -> TensorValue:
    """Elements of one axis at constant places (which are within it)."""
    size = static(x.shape[axis])
    if size is not None and len(places) == size and (places == np.arange(size)).all():
        return x
    return ops.gather(x, ops.constant(places.astype(np.int64), DType.int64, x.device), axis)
