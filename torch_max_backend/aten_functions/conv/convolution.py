"""Convolutions.

On a CPU a kernel of this project convolves images and filters as torch lays them out
(`mojo_kernels/cpu/convolution.mojo`): MAX's needs both with channels last, and compiles again for every shape.
Depthwise filters have kernels of their own (`mojo_kernels/cpu/depthwise_convolution.mojo` and its neighbours), since
their products have one row. On a GPU cuDNN convolves (``support/cudnn_convolution.py``): MAX's own took 4 to 700 times
as long. Everything here is written for any number of spatial sizes.

A transposed convolution is a plain one on a CPU: output ``o`` of stride ``s`` belongs to phase ``o % s``, and every
phase is a convolution of the small image with every ``s``-th filter tap. All phases are computed at once, as channels,
and then interleaved. That needs no kernel of its own, knows groups and every output padding, and multiplies no inserted
zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, Dim, TensorValue, ops

from torch_max_backend.aten_functions.reduce.reductions import sum_axes
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support import cudnn_convolution
from torch_max_backend.aten_functions.support.channels_last import add_per_channel, channels_first, channels_last
from torch_max_backend.aten_functions.support.cudnn_convolution import Spatial
from torch_max_backend.aten_functions.support.dtypes import accumulator
from torch_max_backend.aten_functions.support.integer_convolution import convolve_integers
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import is_used, out_dtype, out_shape, settings
from torch_max_backend.aten_functions.support.row_kernels import spread
from torch_max_backend.aten_functions.support.sliding_windows import cut_axis, spread_axis
from torch_max_backend.aten_functions.support.tensor_ops import cast, full, known, numel, permute, reshape, static
from torch_max_backend.base.errors import Unsupported

Ints = Sequence[int]

FEW_FEATURES = 8
"""With fewer filters in a group, their gradients are not worth a product's panels."""
FEW_CHANNELS = 4
"""With fewer filters that see one channel each, their gradients are not worth a task for each."""
FEW_PIXELS = 32
"""With fewer pixels in a result, an image by itself is not worth a product."""


@dataclass(frozen=True)
class Window:
    """The geometry of a convolution, one number per spatial size."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1


@dataclass(frozen=True)
class Norm:
    """An inference batch norm: vectors over channels, and what is added to the variance."""

    mean: TensorValue
    variance: TensorValue
    weight: TensorValue | None
    bias: TensorValue | None
    eps: float


@dataclass(frozen=True)
class Epilogue:
    """What a kernel does with a convolution: ``clamp(norm(y) + addend, low, high)``. On a CPU it does so before it
    writes it."""

    norm: Norm | None = None
    addend: TensorValue | None = None
    low: float = -math.inf
    high: float = math.inf


NOTHING = Epilogue()


# -- shapes ----------------------------------------------------------------------------------------------------------
def _ints(name: str, values: Sequence[int | Dim], rank: int) -> tuple[int, ...]:
    """One number per spatial size; torch repeats a single one."""
    found = tuple(known(v, name) for v in values)
    return found * rank if len(found) == 1 else found


# -- the plain convolution ---------------------------------------------------------------------------------------------
def _convolve(
    x: TensorValue,
    weight: TensorValue,
    bias: TensorValue | None,
    window: Window,
    sizes: Sequence[Dim],
    after: tuple[int, ...] | None = None,
    epilogue: Epilogue = NOTHING,
) -> TensorValue:
    """``x [N, C, *S]`` with ``weight [F, C/groups, *K]`` to ``[N, F, *sizes]``; ``after`` pads the far ends, where that
    differs from the near ones."""
    if x.device.is_gpu():
        y = _convolve_gpu(x, weight, window, sizes, after or window.padding)
        if epilogue is not NOTHING:
            return _finished_gpu(y, bias, epilogue)
        return y if bias is None else add_per_channel(y, bias)
    more = [Dim(1)] * (3 - len(window.stride))
    shape = [x.shape[0], weight.shape[0], *more, *sizes]
    image, taps = (reshape(t, [*t.shape[:2], *more, *t.shape[2:]]) for t in (x, weight))
    addend = image if epilogue.addend is None else reshape(epilogue.addend, shape)
    norm = epilogue.norm
    vectors = [bias, *([None] * 4 if norm is None else [norm.mean, norm.variance, norm.weight, norm.bias])]
    absent = full(0, [1], x.dtype, x.device)
    geometry = [1] * len(more) + [*window.stride] + [0] * len(more) + [*window.padding]
    geometry += [1] * len(more) + [*window.dilation]
    present = [bias is not None, norm is not None, *(v is not None for v in vectors[3:]), epilogue.addend is not None]
    bounds = [epilogue.low, epilogue.high, norm.eps if norm else 0.0]
    operands = [absent if v is None else v for v in vectors]
    numbers = ops.constant(np.array([*geometry, *present], np.int64), DType.int64, x.device)
    limits = ops.constant(np.array(bounds), DType.float64, x.device)
    (y,) = mojo_op("tmb_convolve", [image, taps, *operands, addend, limits, numbers], [(x.dtype, shape)])
    return reshape(y, [*shape[:2], *sizes])


def _convolve_gpu(
    x: TensorValue,
    weight: TensorValue,
    window: Window,
    sizes: Sequence[Dim],
    after: tuple[int, ...],
) -> TensorValue:
    spatial = Spatial(window.stride, window.padding, after, window.dilation)
    return cudnn_convolution.convolve(x, weight, spatial, sizes)


def _finished_gpu(y: TensorValue, bias: TensorValue | None, epilogue: Epilogue) -> TensorValue:
    """``y [N, C, *S]`` with its bias and what follows it, by one kernel on images that have their channels last."""
    images = channels_last(y)
    channels = static(y.shape[1])
    assert channels is not None, "the kernel is chosen by the number of channels"
    norm, addend = epilogue.norm, epilogue.addend
    vectors = [bias, *([None] * 4 if norm is None else [norm.mean, norm.variance, norm.weight, norm.bias])]
    operands = [*vectors, None if addend is None else channels_last(addend)]
    bias_, mean, _, weight, shift, other = (v is not None for v in operands)
    parameters = {
        "width": spread(channels, y.dtype).width,
        "has_bias": bias_,
        "has_norm": mean,
        "is_scaled": weight,
        "is_shifted": shift,
        "is_added": other,
    }
    numbers = (epilogue.low, epilogue.high, norm.eps if norm else 0.0)
    limits = [ops.constant(v, DType.float32, DeviceRef.CPU()) for v in numbers]
    present = [images if v is None else v for v in operands]
    (done,) = mojo_op("tmb_finish_channels", [images, *present, *limits], [(y.dtype, images.shape)], parameters)
    return channels_first(done)


# -- the transposed convolution ----------------------------------------------------------------------------------------
def _convolve_transposed(x: TensorValue, weight: TensorValue, window: Window, sizes: Sequence[Dim]) -> TensorValue:
    """``x [N, C, *S]`` with ``weight [C, F/groups, *K]`` to ``[N, F, *sizes]``: the gradient of a convolution.

    ``sizes`` may be any that the geometry allows: it stands for torch's output padding, which is less than the stride
    or the dilation.
    """
    kernel = [known(k, "the filter's size") for k in weight.shape[2:]]
    spare = [max(s, d) - 1 for s, d in zip(window.stride, window.dilation, strict=True)]
    if any(s > 1 and d > 1 for s, d in zip(window.stride, window.dilation, strict=True)):
        x, window = _spread(x, window)
    stride, padding = window.stride, window.padding
    taps = [-(-k // s) for k, s in zip(kernel, stride, strict=True)]
    phases = _phase_filters(weight, window, kernel, taps)
    # Output o + padding = q * stride + phase. Quotients are computed from `first` on, which is where `o = 0` lies.
    reach = [d * (t - 1) for d, t in zip(window.dilation, taps, strict=True)]
    first = [min(p // s, r) for p, s, r in zip(padding, stride, reach, strict=True)]
    before = [r - f for r, f in zip(reach, first, strict=True)]
    ends = [d * (k - 1) + 1 + e - p for d, k, e, p in zip(window.dilation, kernel, spare, padding, strict=True)]
    after = [max(0, -(-end // s) - 1) for end, s in zip(ends, stride, strict=True)]
    ones = (1,) * len(stride)
    inner = Window(ones, tuple(before), window.dilation, window.groups)
    spans = [(t - 1) * d for t, d in zip(taps, window.dilation, strict=True)]
    ends_at = [n + b + a - r for n, b, a, r in zip(x.shape[2:], before, after, spans, strict=True)]
    y = _convolve(x, phases, None, inner, ends_at, tuple(after))
    y = _interleave(y, stride)
    for i, (p, s, f, size) in enumerate(zip(padding, stride, first, sizes, strict=True)):
        y = cut_axis(y, 2 + i, p - s * f, size)
    return y


def _spread(x: TensorValue, window: Window) -> tuple[TensorValue, Window]:
    """``stride - 1`` zeros after every element but the last, and the window of stride 1 that then gives the same."""
    sizes = list(x.shape[2:])
    for axis, (size, stride) in enumerate(zip(sizes, window.stride, strict=True), start=2):
        x = cut_axis(spread_axis(x, axis, stride), axis, 0, (size - 1) * stride + 1)
    return x, Window((1,) * len(sizes), window.padding, window.dilation, window.groups)


def _phase_filters(weight: TensorValue, window: Window, kernel: Ints, taps: Ints) -> TensorValue:
    """``[C, F/g, *K]`` to ``[F * phases, C/g, *taps]``: tap ``m`` of phase ``r`` is ``w[r + s * (taps - 1 - m)]``."""
    stride, groups = window.stride, window.groups
    channels, features = weight.shape[0] // groups, weight.shape[1]
    more = [1] * (3 - len(stride))
    filters = reshape(weight, [*weight.shape[:2], *more, *kernel])
    numbers = ops.constant(np.array([*more, *stride, groups], np.int64), DType.int64, weight.device)
    shape = [features * (groups * _times(stride)), channels, *more, *taps]
    (w,) = mojo_op("tmb_phase_filters", [filters, numbers], [(weight.dtype, shape)])
    return reshape(w, [*shape[:2], *taps])


def _times(numbers: Ints) -> int:
    total = 1
    for n in numbers:
        total *= n
    return total


def _interleave(y: TensorValue, stride: Ints) -> TensorValue:
    """``[N, F * phases, *Q]`` to ``[N, F, *(Q * stride)]``, from the last axis on: its phase changes fastest."""
    for i in reversed(range(len(stride))):
        s, axis = stride[i], 2 + i
        if s == 1:
            continue
        batch, channels, *sizes = y.shape
        y = reshape(y, [batch, channels // s, s, *sizes])
        inside = [n for n in range(3, y.rank) if n <= axis + 1]
        y = permute(y, [0, 1, *inside, 2, *range(axis + 2, y.rank)])
        sizes[i] = sizes[i] * s
        y = reshape(y, [batch, channels // s, *sizes])
    return y


# -- the op ------------------------------------------------------------------------------------------------------------
def _check(x: TensorValue, weight: TensorValue) -> None:
    if not 3 <= x.rank <= 5 or x.rank != weight.rank:
        raise Unsupported(f"1 to 3 spatial sizes with a batch, got {x.rank} and {weight.rank} dimensions")
    if x.dtype == DType.bool:
        raise Unsupported("convolutions are of numbers, got torch.bool")
    if x.device.is_gpu() and x.dtype.is_float() and settings().gpu == "hip":
        raise Unsupported("on a GPU convolutions are NVIDIA's, and torch's own on others")


def _is_empty(*values: TensorValue) -> bool:
    return any(static(d) == 0 for v in values for d in v.shape)


def _computed(x: TensorValue) -> TensorValue:
    """In the dtype to compute in, which on a CPU is float32 for 16-bit floats."""
    return x if x.device.is_gpu() else cast(x, accumulator(x.dtype))


# convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation,
#   bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor
@map_to(aten.convolution.default, limits="1 to 3 spatial sizes")
def convolution(
    input: TensorValue,
    weight: TensorValue,
    bias: TensorValue | None,
    stride: Sequence[int | Dim],
    padding: Sequence[int | Dim],
    dilation: Sequence[int | Dim],
    transposed: bool,
    output_padding: Sequence[int | Dim],
    groups: int,
) -> TensorValue:
    _check(input, weight)
    window = _window(input, stride, padding, dilation, groups)
    x, w = _computed(input), _computed(weight)
    shift = None if bias is None else _computed(bias)
    if _is_empty(input, weight):
        y = full(0, out_shape(), x.dtype, x.device)
        if shift is not None:
            y = ops.add(y, reshape(shift, [shift.shape[0], *[1] * len(window.stride)]))
        return cast(y, out_dtype())
    if not input.dtype.is_float():
        geometry = {"s": window.stride, "p": window.padding, "d": window.dilation}
        return convolve_integers(input, weight, bias, geometry, window.groups, transposed, out_shape())
    if not transposed:
        return cast(_convolve(x, w, shift, window, out_shape()[2:]), out_dtype())
    if x.device.is_gpu():
        y = cudnn_convolution.image_gradient(x, w, _spatial(window), out_shape())
    else:
        y = _convolve_transposed(x, w, window, out_shape()[2:])
    return cast(y if shift is None else add_per_channel(y, shift), out_dtype())


def _spatial(window: Window) -> Spatial:
    return Spatial(window.stride, window.padding, window.padding, window.dilation)


def finished_convolution(arguments: Sequence[Any], epilogue: Epilogue) -> TensorValue:
    """A plain convolution of nothing empty, with what follows it: of long floats on a CPU, of short ones on a GPU."""
    input, weight, bias, stride, padding, dilation, _, _, groups = arguments
    _check(input, weight)
    window = _window(input, stride, padding, dilation, groups)
    return _convolve(input, weight, bias, window, out_shape()[2:], epilogue=epilogue)


def _window(
    x: TensorValue,
    stride: Sequence[int | Dim],
    padding: Sequence[int | Dim],
    dilation: Sequence[int | Dim],
    groups: int | Dim,
) -> Window:
    spatial = x.rank - 2
    (count,) = _ints("groups", [groups], 1)
    steps, pads = _ints("stride", stride, spatial), _ints("padding", padding, spatial)
    return Window(steps, pads, _ints("dilation", dilation, spatial), count)


# convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride,
#   SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask)
#   -> (Tensor, Tensor, Tensor)
@map_to(aten.convolution_backward.default, limits="floating point; 1 to 3 spatial sizes")
def convolution_backward(
    grad_output: TensorValue,
    input: TensorValue,
    weight: TensorValue,
    bias_sizes: Sequence[int | Dim] | None,
    stride: Sequence[int | Dim],
    padding: Sequence[int | Dim],
    dilation: Sequence[int | Dim],
    transposed: bool,
    output_padding: Sequence[int | Dim],
    groups: int,
    output_mask: Sequence[bool],
) -> list[TensorValue | None]:
    _check(input, weight)
    window = _window(input, stride, padding, dilation, groups)
    g, x, w = (_computed(t) for t in (grad_output, input, weight))
    wanted = [m and is_used(i) for i, m in enumerate(output_mask)]
    results: list[TensorValue | None] = [None, None, None]
    if _is_empty(grad_output, input, weight):
        return [full(0, out_shape(i), out_dtype(i), g.device) if m else None for i, m in enumerate(wanted)]
    if g.device.is_gpu():
        results[:2] = _gradients_gpu(g, x, w, window, transposed, wanted)
    elif not transposed and _is_depthwise(x, w, window):
        results[:2] = _depthwise_gradients(g, x, w, window, wanted)
        wanted[1] = False
    elif wanted[0]:
        if transposed:
            results[0] = _convolve(g, w, None, window, x.shape[2:])
        else:
            results[0] = _convolve_transposed(g, w, window, list(x.shape[2:]))
    if wanted[1] and g.device.is_cpu():
        # A transposed convolution is the gradient of the plain one from its output to its input.
        results[1] = _weight_gradient(x, g, w, window) if transposed else _weight_gradient(g, x, w, window)
    if wanted[2]:
        results[2] = reshape(sum_axes(g, [0, *range(2, g.rank)]), [g.shape[1]])
    return [None if r is None else cast(r, out_dtype(i)) for i, r in enumerate(results)]


def _is_depthwise(x: TensorValue, weight: TensorValue, window: Window) -> bool:
    """Whether each of the channels of an image, or of a sequence, has one filter of its own, and they are not few."""
    one_each = static(weight.shape[0]) == static(x.shape[1]) == window.groups
    return weight.rank <= 4 and one_each and window.groups >= FEW_CHANNELS


def _depthwise_gradients(
    g: TensorValue, x: TensorValue, w: TensorValue, window: Window, wanted: Sequence[bool]
) -> list[TensorValue | None]:
    """Those of the image and of the filter, a plane at a time."""
    more = 4 - x.rank

    def in_planes(t: TensorValue) -> TensorValue:
        return reshape(t, [*t.shape[:2], *[Dim(1)] * more, *t.shape[2:]])

    geometry = [1] * more + [*window.stride] + [0] * more + [*window.padding] + [1] * more + [*window.dilation]
    numbers = ops.constant(np.array(geometry, np.int64), DType.int64, x.device)
    found: list[TensorValue | None] = [None, None]
    for i, (name, result, other) in enumerate((("image", x, w), ("filter", w, x))):
        if wanted[i]:
            operands = [in_planes(g), in_planes(other), numbers]
            (y,) = mojo_op(f"tmb_depthwise_{name}_gradient", operands, [(x.dtype, in_planes(result).shape)])
            found[i] = reshape(y, result.shape)
    return found


def _gradients_gpu(
    g: TensorValue, x: TensorValue, w: TensorValue, window: Window, transposed: bool, wanted: Sequence[bool]
) -> list[TensorValue | None]:
    """Those of the image and of the filter. A transposed convolution is the plain one's gradient, so roles change."""
    spatial, of_x, of_w = _spatial(window), None, None
    if wanted[0] and transposed:
        of_x = cudnn_convolution.convolve(g, w, spatial, x.shape[2:])
    elif wanted[0]:
        of_x = cudnn_convolution.image_gradient(g, w, spatial, list(x.shape))
    if wanted[1]:
        small, image = (x, g) if transposed else (g, x)
        of_w = cudnn_convolution.filter_gradient(small, image, spatial, list(w.shape))
    return [of_x, of_w]


def _weight_gradient(small: TensorValue, image: TensorValue, weight: TensorValue, window: Window) -> TensorValue:
    """``[F, C/groups, *K]`` from ``small [N, F, *O]`` and the ``image [N, C, *S]`` that gave it.

    Every tap's gradient is a sum over the batch and all positions; the taps are laid side by side, so that all of them
    are one product of matrices.
    """
    kernel = [known(k, "the filter's size") for k in weight.shape[2:]]
    groups, sizes = window.groups, list(small.shape[2:])
    features, channels = small.shape[1] // groups, image.shape[1] // groups
    if _times(kernel) > 1:
        enough = static(features), static(numel(sizes))
        if (enough[0] or FEW_FEATURES) >= FEW_FEATURES and (enough[1] or FEW_PIXELS) >= FEW_PIXELS:
            return _filter_gradients(small, image, kernel, window)
    shape = [Dim(groups), features, channels * _times(kernel)]
    return reshape(_of_window("tmb_filter_gradients_at_once", small, image, kernel, window, shape), weight.shape)


def _filter_gradients(small: TensorValue, image: TensorValue, kernel: Ints, window: Window) -> TensorValue:
    """:func:`_weight_gradient` by a kernel that lays the image out for each column of taps, and not for each tap."""
    groups, features, channels = window.groups, small.shape[1] // window.groups, image.shape[1] // window.groups
    *outer, last = kernel
    shape = [Dim(groups), Dim(_times(outer)), channels * last, features]
    y = _of_window("tmb_filter_gradients", small, image, kernel, window, shape)
    y = reshape(y, [groups, _times(outer), channels, last, features])
    return reshape(permute(y, [0, 4, 2, 1, 3]), [small.shape[1], channels, *kernel])


def _of_window(
    kernel_name: str, small: TensorValue, image: TensorValue, kernel: Ints, window: Window, shape: Sequence[Dim]
) -> TensorValue:
    """What a kernel of ours gives for a result's gradient, an image, and where the filters lie."""
    more = 3 - len(kernel)
    numbers = [1] * more + [*window.stride] + [0] * more + [*window.padding] + [1] * more + [*window.dilation]
    geometry = ops.constant(np.array([*numbers, *[1] * more, *kernel], np.int64), DType.int64, small.device)
    g, x = (reshape(t, [*t.shape[:2], *[Dim(1)] * more, *t.shape[2:]]) for t in (small, image))
    return mojo_op(kernel_name, [g, x, geometry], [(small.dtype, shape)])[0]


def unfold(x: TensorValue, kernel: Ints, window: Window, sizes: Sequence[Dim]) -> TensorValue:
    """What every filter tap reads: ``x [A, B, *S]`` as ``[A, taps, B, positions]``, zeros where it is padding."""
    more = 3 - len(kernel)
    image = reshape(x, [x.shape[0], x.shape[1], *[1] * more, *x.shape[2:]])
    parameters: dict[str, int] = {}
    for name, values, one in (
        ("k", kernel, 1), ("s", window.stride, 1), ("p", window.padding, 0), ("d", window.dilation, 1),
    ):  # fmt: skip
        parameters |= {name + axis: v for axis, v in zip("dhw", [one] * more + list(values), strict=True)}
    wide = [Dim(1)] * more + list(sizes)
    shape = [x.shape[0], Dim(_times(kernel)), x.shape[1] * wide[0], wide[1], wide[2]]
    (columns,) = mojo_op("tmb_unfold", [image], [(x.dtype, shape)], parameters)
    return reshape(columns, [x.shape[0], _times(kernel), x.shape[1], numel(sizes)])
