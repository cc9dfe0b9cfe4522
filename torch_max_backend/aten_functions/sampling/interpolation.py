"""Resizing of images, sampling at given places, and the rearrangement between images and columns.

Every mode of resizing is separable: along one axis, an output element is a weighted sum of a few input elements at
places known from the sizes alone. So each axis is a few gathers; resizing by a whole factor to the nearest element is
a broadcast. Places and weights are computed in float32 as torch does, since rounding decides which element is nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.conv.convolution import Window, unfold
from torch_max_backend.aten_functions.matmul.products import product
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.dtypes import Operand, accumulator
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import is_used, out_dtype, out_shape
from torch_max_backend.aten_functions.support.sliding_windows import along, fold_axis, repeat_axis, take
from torch_max_backend.aten_functions.support.tensor_ops import cast, full, known, reshape, static
from torch_max_backend.base.errors import NeedsStatic, Unsupported

Ints = Sequence[int]
Taps = list[tuple[np.ndarray, np.ndarray | None]]
"""Places, and weights (``None`` for 1), of what is summed up for every output element of an axis."""
Mode = Callable[[int, int, float | None, bool], Taps]


# -- where output elements come from ---------------------------------------------------------------------------------
def _nearest_places(size: int, out: int, scale: float | None, offset: float) -> Taps:
    f32 = np.float32
    ratio = f32(1 / scale) if scale else f32(size) / f32(out)
    places = np.floor((np.arange(out, dtype=f32) + f32(offset)) * ratio)
    return [(np.minimum(places.astype(np.int64), size - 1), None)]


def _nearest(size: int, out: int, scale: float | None, align_corners: bool) -> Taps:
    return _nearest_places(size, out, scale, 0.0)


def _nearest_exact(size: int, out: int, scale: float | None, align_corners: bool) -> Taps:
    return _nearest_places(size, out, scale, 0.5)


def _positions(size: int, out: int, scale: float | None, align_corners: bool) -> np.ndarray:
    f32 = np.float32
    index = np.arange(out, dtype=f32)
    if align_corners:
        return index * (f32(size - 1) / f32(out - 1) if out > 1 else f32(0))
    ratio = f32(1 / scale) if scale else f32(size) / f32(out)
    return ratio * (index + f32(0.5)) - f32(0.5)


def _linear(size: int, out: int, scale: float | None, align_corners: bool) -> Taps:
    position = np.maximum(_positions(size, out, scale, align_corners), np.float32(0))
    low = np.minimum(position.astype(np.int64), size - 1)
    share = np.clip(position - low.astype(np.float32), 0, 1)
    return [(low, 1 - share), (np.minimum(low + 1, size - 1), share)]


def _cubic(size: int, out: int, scale: float | None, align_corners: bool) -> Taps:
    position = _positions(size, out, scale, align_corners)
    low = np.floor(position)
    t = position - low
    a = np.float32(-0.75)

    def near(x: np.ndarray) -> np.ndarray:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: np.ndarray) -> np.ndarray:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    weights = [far(t + 1), near(t), near(1 - t), far(2 - t)]
    return [(np.clip(low.astype(np.int64) + i - 1, 0, size - 1), w) for i, w in enumerate(weights)]


# -- one axis --------------------------------------------------------------------------------------------------------
def _factor(size: Dim, out: Dim, scale: Operand | None, mode: Mode) -> int | None:
    """The whole number by which an axis grows, if nearest elements are simply repeated; sizes may be symbolic."""
    if mode not in (_nearest, _nearest_exact) or isinstance(scale, TensorValue):
        return None
    candidates = [int(scale)] if scale and scale == int(scale) else [1, 2, 3, 4, 8] if not scale else []
    return next((n for n in candidates if n > 0 and size * n == out), None)


def _resample(
    x: TensorValue, axis: int, out: Dim, scale: Operand | None, mode: Mode, align_corners: bool
) -> TensorValue:
    """``x`` with one axis resized."""
    size = x.shape[axis]
    times = _factor(size, out, scale, mode)
    if times is not None:
        return repeat_axis(x, axis, times)
    taps = mode(*_constants(size, out, scale), align_corners)
    total: TensorValue | None = None
    for places, weights in taps:
        part = take(x, axis, places)
        if weights is not None:
            part = ops.mul(part, along(weights, x, axis, x.dtype))
        total = part if total is None else ops.add(total, part)
    assert total is not None
    return total


def _resample_backward(
    grad: TensorValue, axis: int, size: Dim, scale: Operand | None, mode: Mode, align_corners: bool
) -> TensorValue:
    """The transpose of :func:`_resample`, as a product with the matrix of weights."""
    times = _factor(size, grad.shape[axis], scale, mode)
    if times is not None:
        return fold_axis(grad, axis, times)
    length, out, factor = _constants(size, grad.shape[axis], scale)
    matrix = np.zeros((out, length), np.float64)
    for places, weights in mode(length, out, factor, align_corners):
        np.add.at(matrix, (np.arange(out), places), 1.0 if weights is None else weights)
    values = ops.constant(matrix.astype(grad.dtype.to_numpy()), grad.dtype, grad.device)
    order = [i for i in range(grad.rank) if i != axis] + [axis]
    rows = ops.permute(grad, order)
    lead = Dim(1)
    for d in rows.shape[:-1]:
        lead = lead * d
    result = reshape(product(reshape(rows, [lead, out]), values), [*rows.shape[:-1], length])
    return ops.permute(result, sorted(range(grad.rank), key=order.__getitem__))


def _constants(size: Dim, out: Dim, scale: Operand | None) -> tuple[int, int, float | None]:
    if isinstance(scale, TensorValue | Dim):
        raise NeedsStatic(f"the scale must be known when the graph is built, got {scale}", scale)
    return known(size, "the input's size"), known(out, "the output's size"), scale if scale and scale > 0 else None


# -- whole images ----------------------------------------------------------------------------------------------------
def _upsample(x: TensorValue, scales: Sequence[Operand | None], mode: Mode, align_corners: bool) -> TensorValue:
    shape = out_shape()
    if any(static(d) == 0 for d in shape):
        return full(0, shape, x.dtype, x.device)
    if mode not in (_nearest, _nearest_exact) and not x.dtype.is_float():
        raise Unsupported(f"interpolation is of floating-point numbers, got {x.dtype}")
    y = x if mode in (_nearest, _nearest_exact) else cast(x, accumulator(x.dtype))
    spatial = len(scales)
    for i in reversed(range(spatial)):
        axis = x.rank - spatial + i
        y = _resample(y, axis, shape[axis], scales[i], mode, align_corners)
    return cast(reshape(y, shape), out_dtype())


def _upsample_backward(
    grad: TensorValue, scales: Sequence[Operand | None], mode: Mode, align_corners: bool
) -> TensorValue:
    shape = out_shape()
    if any(static(d) == 0 for d in (*shape, *grad.shape)):
        return full(0, shape, grad.dtype, grad.device)
    y = cast(grad, accumulator(grad.dtype))
    spatial = len(scales)
    for i in range(spatial):
        axis = grad.rank - spatial + i
        y = _resample_backward(y, axis, shape[axis], scales[i], mode, align_corners)
    return cast(reshape(y, shape), out_dtype())


_SCALES = (("scales",), ("scales_h", "scales_w"), ("scales_d", "scales_h", "scales_w"))
# name and mode of the ops without align_corners, then of those with it, and their number of spatial sizes
_FAMILIES: tuple[tuple[str, Mode, bool, int], ...] = (
    ("upsample_nearest1d", _nearest, False, 1),
    ("upsample_nearest2d", _nearest, False, 2),
    ("upsample_nearest3d", _nearest, False, 3),
    ("_upsample_nearest_exact1d", _nearest_exact, False, 1),
    ("_upsample_nearest_exact2d", _nearest_exact, False, 2),
    ("_upsample_nearest_exact3d", _nearest_exact, False, 3),
    ("upsample_linear1d", _linear, True, 1),
    ("upsample_bilinear2d", _linear, True, 2),
    ("upsample_trilinear3d", _linear, True, 3),
    ("upsample_bicubic2d", _cubic, True, 2),
)


# upsample_nearest2d(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None) -> Tensor
# upsample_bilinear2d(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None,
#   float? scales_w=None) -> Tensor
# upsample_nearest2d_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, float? scales_h=None,
#   float? scales_w=None) -> Tensor
# upsample_bilinear2d_backward(Tensor grad_output, SymInt[2] output_size, SymInt[4] input_size, bool align_corners,
#   float? scales_h=None, float? scales_w=None) -> Tensor
# … and so on for one and three sizes, the exact nearest element, and cubic weights.
def _register(name: str, mode: Mode, has_corners: bool, spatial: int) -> None:
    names = _SCALES[spatial - 1]

    def scales_of(rest: Sequence[Operand | None], named: dict[str, Operand | None]) -> list[Operand | None]:
        given = list(rest) + [None] * (spatial - len(rest))
        return [named.get(n, g) for n, g in zip(names, given, strict=True)]

    def forward(self: TensorValue, output_size: object, *rest: Operand | None, **named: Operand | None) -> TensorValue:
        corners = bool(rest[0]) if has_corners and rest else bool(named.pop("align_corners", False))
        return _upsample(self, scales_of(rest[1:] if has_corners else rest, named), mode, corners)

    def backward(
        grad_output: TensorValue,
        output_size: object,
        input_size: object,
        *rest: Operand | None,
        **named: Operand | None,
    ) -> TensorValue:
        corners = bool(rest[0]) if has_corners and rest else bool(named.pop("align_corners", False))
        return _upsample_backward(grad_output, scales_of(rest[1:] if has_corners else rest, named), mode, corners)

    limits = "sizes known at compile time, but for whole factors to the nearest element"
    map_to(getattr(aten, name).default, limits=limits)(forward)
    map_to(getattr(aten, f"{name}_backward").default, limits=limits)(backward)


for _family in _FAMILIES:
    _register(*_family)


# -- sampling --------------------------------------------------------------------------------------------------------
def _check_grid(input: TensorValue, grid: TensorValue) -> None:
    if not input.dtype.is_float() or input.dtype != grid.dtype:
        raise Unsupported(f"an image and a grid of one floating-point dtype, got {input.dtype} and {grid.dtype}")
    if any(static(d) == 0 for d in (*input.shape, *grid.shape)):
        raise Unsupported(f"images and grids that are not empty, got {input.shape} and {grid.shape}")


def _sampler(interpolation_mode: int, padding_mode: int, align_corners: bool) -> dict[str, int | bool]:
    return {"mode": interpolation_mode, "padding": padding_mode, "corners": bool(align_corners)}


def grid_sample(
    kernel: str, input: TensorValue, grid: TensorValue, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> TensorValue:
    """``input`` at the places of ``grid``; ``kernel`` is the Mojo kernel of its number of spatial sizes."""
    _check_grid(input, grid)
    shape = [*input.shape[:2], *grid.shape[1:-1]]
    parameters = _sampler(interpolation_mode, padding_mode, align_corners)
    return mojo_op(kernel, [input, grid], [(input.dtype, shape)], parameters)[0]


def grid_sample_backward(
    kernel: str,
    grad_output: TensorValue,
    input: TensorValue,
    grid: TensorValue,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> list[TensorValue | None]:
    """The gradients of the image and of the grid."""
    _check_grid(input, grid)
    if interpolation_mode == 2:
        raise Unsupported("gradients of linear and nearest sampling, got bicubic")
    wide = accumulator(input.dtype)
    grad, image, places = (cast(x, wide) for x in (grad_output, input, grid))
    parameters = _sampler(interpolation_mode, padding_mode, align_corners)
    results: list[TensorValue | None] = [None, None]
    if output_mask[0] and is_used(0):
        outputs = [(DType.bool, input.shape[:2]), (wide, input.shape)]
        results[0] = mojo_op(f"{kernel}_image_gradient", [grad, places], outputs, parameters)[1]
    if is_used(1) and interpolation_mode == 1:
        results[1] = full(0, grid.shape, wide, grid.device)
    elif is_used(1):
        del parameters["mode"]
        values = [grad, image, places]
        results[1] = mojo_op(f"{kernel}_grid_gradient", values, [(wide, grid.shape)], parameters)[0]
    return [None if r is None else cast(r, input.dtype) for r in results]


# grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor
@map_to(aten.grid_sampler_2d.default)
def grid_sampler_2d(
    input: TensorValue, grid: TensorValue, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> TensorValue:
    return grid_sample("tmb_grid_sampler_2d", input, grid, interpolation_mode, padding_mode, align_corners)


# grid_sampler_2d_backward(Tensor grad_output, Tensor input, Tensor grid, int interpolation_mode, int padding_mode,
#   bool align_corners, bool[2] output_mask) -> (Tensor, Tensor)
@map_to(aten.grid_sampler_2d_backward.default, limits="linear and nearest")
def grid_sampler_2d_backward(
    grad_output: TensorValue,
    input: TensorValue,
    grid: TensorValue,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> list[TensorValue | None]:
    modes = (interpolation_mode, padding_mode, align_corners)
    return grid_sample_backward("tmb_grid_sampler_2d", grad_output, input, grid, *modes, output_mask)


# -- images and columns ----------------------------------------------------------------------------------------------
# im2col(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor
@map_to(aten.im2col.default)
def im2col(self: TensorValue, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints) -> TensorValue:
    shape = out_shape()
    if any(static(d) == 0 for d in shape):
        return full(0, shape, self.dtype, self.device)
    kernel, window = _blocks(kernel_size, dilation, padding, stride)
    sizes = [
        (size + (2 * p - d * (k - 1) - 1)) // s + 1
        for size, k, s, p, d in zip(
            self.shape[-2:], kernel, window.stride, window.padding, window.dilation, strict=True
        )
    ]
    planes = Dim(1)
    for d in self.shape[:-2]:
        planes = planes * d
    columns = unfold(reshape(self, [planes, 1, *self.shape[-2:]]), kernel, window, sizes)
    return reshape(columns, shape)


# col2im(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride)
#   -> Tensor
@map_to(aten.col2im.default)
def col2im(
    self: TensorValue,
    output_size: Sequence[int | Dim],
    kernel_size: Ints,
    dilation: Ints,
    padding: Ints,
    stride: Ints,
) -> TensorValue:
    shape = out_shape()
    if any(static(d) == 0 for d in (*shape, *self.shape)):
        return full(0, shape, self.dtype, self.device)
    kernel, window = _blocks(kernel_size, dilation, padding, stride)
    planes = Dim(1)
    for d in shape[:-2]:
        planes = planes * d
    columns = reshape(self, [planes, kernel[0] * kernel[1], self.shape[-1]])
    parameters = {
        name + axis: value
        for name, values in (("k", kernel), ("s", window.stride), ("p", window.padding), ("d", window.dilation))
        for axis, value in zip("hw", values, strict=True)
    }
    (image,) = mojo_op("tmb_fold", [columns], [(self.dtype, [planes, *shape[-2:]])], parameters)
    return reshape(image, shape)


def _blocks(kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints) -> tuple[tuple[int, ...], Window]:
    def each(values: Ints) -> tuple[int, ...]:
        return tuple(values) * 2 if len(values) == 1 else tuple(values)

    return each(kernel_size), Window(each(stride), each(padding), each(dilation))
