"""Pooling over one to three spatial sizes, with or without a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.axis_reductions import mean_along
from torch_max_backend.aten_functions.support.channels_last import channels_first, channels_last, is_channels_last
from torch_max_backend.aten_functions.support.dtypes import accumulator
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import is_used, out_shape
from torch_max_backend.aten_functions.support.sliding_windows import (
    along,
    fold_axis,
    pad_axis,
    repeat_axis,
    slide,
    spread_axis,
    take,
)
from torch_max_backend.aten_functions.support.tensor_ops import (
    before_widening,
    broadcast_to,
    cast,
    constant,
    full,
    iota,
    known,
    numel,
    reshape,
    static,
)
from torch_max_backend.base.errors import NeedsStatic, Unsupported

Ints = Sequence[int]

FAR = 1 << 30  # more than any spatial size
_AT_ONCE = 8
"""Channels that fill an access to memory."""


@dataclass(frozen=True)
class Pool:
    """The geometry of a pooling op: one number per spatial size, the last axes of the tensor."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool = False

    @classmethod
    def of(
        cls,
        spatial: int,
        kernel_size: Ints,
        stride: Ints,
        padding: Ints | int,
        dilation: Ints | int = 1,
        ceil_mode: bool = False,
    ) -> Pool:
        """From the arguments of the schema: one number stands for all sizes, no stride for the kernel's size."""

        def each(values: Ints | int) -> tuple[int, ...]:
            numbers = [values] if isinstance(values, int) else list(values)
            return tuple(numbers * spatial if len(numbers) == 1 else numbers)

        kernel = each(kernel_size)
        return cls(kernel, each(stride) if stride else kernel, each(padding), each(dilation), ceil_mode)

    @property
    def spatial(self) -> int:
        """How many spatial sizes there are."""
        return len(self.kernel)

    def after(self, i: int) -> int:
        """Padding that every window fits in: with ``ceil_mode`` the last one may begin within the last stride."""
        return self.padding[i] + (self.stride[i] - 1 if self.ceil_mode else 0)

    def parameters(self) -> dict[str, int]:
        """The compile-time parameters of the Mojo kernels, which have three spatial sizes."""
        more = 3 - self.spatial
        named = (("k", self.kernel, 1), ("s", self.stride, 1), ("p", self.padding, 0), ("d", self.dilation, 1))
        return {
            name + axis: number
            for name, numbers, neutral in named
            for axis, number in zip("dhw", [neutral] * more + list(numbers), strict=True)
        }


def _planes(x: TensorValue, spatial: int) -> TensorValue:
    """``[..., *S]`` as ``[planes, D, H, W]``."""
    lead = numel(x.shape[: x.rank - spatial])
    return reshape(x, [lead, *[1] * (3 - spatial), *x.shape[x.rank - spatial :]])


def _images(x: TensorValue, spatial: int) -> TensorValue:
    """``[N, C, *S]`` with its channels last, ``[N, D, H, W, C]``."""
    batch, *sizes, channels = channels_last(x).shape
    return reshape(channels_last(x), [batch, *[Dim(1)] * (3 - spatial), *sizes, channels])


def _together(images: TensorValue) -> int:
    """How many channels a thread looks at."""
    channels = static(images.shape[-1])
    return _AT_ONCE if channels and channels % _AT_ONCE == 0 else 1


def _is_empty(shape: Sequence[Dim]) -> bool:
    return any(static(d) == 0 for d in shape)


# -- max pooling -----------------------------------------------------------------------------------------------------
def _larger(a: TensorValue, b: TensorValue) -> TensorValue:
    """The larger one, or NaN if either is: MAX's own maximum ignores NaN."""
    wins = ops.greater(b, a)
    if b.dtype.is_float():
        wins = ops.logical_or(wins, ops.is_nan(b))
    return ops.where(wins, b, a)


def _lowest(dtype: DType) -> float | int:
    if dtype.is_float():
        return -float("inf")
    return int(np.iinfo(dtype.to_numpy()).min)


def _dtype_of_places(x: TensorValue, pool: Pool) -> DType:
    """What a kernel writes places in a plane of ``x`` in: torch's int64 is made of it, for those that read it."""
    pixels = static(numel(x.shape[x.rank - pool.spatial :]))
    return DType.int16 if pixels is not None and pixels <= 2**15 else DType.int64


def _max_pool(x: TensorValue, pool: Pool) -> tuple[TensorValue | None, TensorValue | None]:
    shape = out_shape(0)
    if _is_empty(shape):
        return full(0, shape, x.dtype, x.device), full(0, shape, DType.int64, x.device)
    if is_channels_last(x) and x.rank == pool.spatial + 2 and x.dtype.is_float():
        image, sizes = _images(x, pool.spatial), shape[2:]
        wide = [image.shape[0], *[Dim(1)] * (3 - pool.spatial), *sizes, image.shape[-1]]
        back = [image.shape[0], *sizes, image.shape[-1]]
        if not is_used(1):
            (values,) = mojo_op("tmb_max_pool_last", [image], [(x.dtype, wide)], pool.parameters())
            return channels_first(reshape(values, back)), None
        outputs = [(x.dtype, wide), (_dtype_of_places(x, pool), wide)]
        parameters = {**pool.parameters(), "together": _together(image)}
        found = mojo_op("tmb_max_pool_last_with_places", [image], outputs, parameters)
        values, places = (channels_first(reshape(v, back)) for v in found)
        return values, cast(places, DType.int64)
    if is_used(1):
        image = _planes(x, pool.spatial)
        wide = [image.shape[0], *[Dim(1)] * (3 - pool.spatial), *shape[len(shape) - pool.spatial :]]
        outputs = [(x.dtype, wide), (_dtype_of_places(x, pool), wide)]
        values, places = mojo_op("tmb_max_pool", [image], outputs, pool.parameters())
        return reshape(values, shape), cast(reshape(places, shape), DType.int64)
    for i in range(pool.spatial):
        axis = x.rank - pool.spatial + i
        x = pad_axis(x, axis, pool.padding[i], pool.after(i), _lowest(x.dtype))
        x = slide(x, axis, shape[axis], pool.kernel[i], pool.stride[i], pool.dilation[i], _larger)
    return x, None


# max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1,
#   bool ceil_mode=False) -> (Tensor, Tensor)
@map_to(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    self: TensorValue,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints | int = 0,
    dilation: Ints | int = 1,
    ceil_mode: bool = False,
) -> tuple[TensorValue | None, TensorValue | None]:
    return _max_pool(self, Pool.of(2, kernel_size, stride, padding, dilation, ceil_mode))


# max_pool3d_with_indices(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1,
#   bool ceil_mode=False) -> (Tensor, Tensor)
@map_to(aten.max_pool3d_with_indices.default)
def max_pool3d_with_indices(
    self: TensorValue,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints | int = 0,
    dilation: Ints | int = 1,
    ceil_mode: bool = False,
) -> tuple[TensorValue | None, TensorValue | None]:
    return _max_pool(self, Pool.of(3, kernel_size, stride, padding, dilation, ceil_mode))


def _max_pool_backward(grad: TensorValue, x: TensorValue, indices: TensorValue, pool: Pool) -> TensorValue:
    shape = out_shape()
    if _is_empty(shape) or _is_empty(grad.shape):
        return full(0, shape, grad.dtype, grad.device)
    if is_channels_last(indices) and x.rank == pool.spatial + 2:
        values = [_images(grad, pool.spatial), before_widening(_images(indices, pool.spatial))]
        batch, channels, *sizes = shape
        wide = [batch, *[Dim(1)] * (3 - pool.spatial), *sizes, channels]
        parameters = {**pool.parameters(), "together": _together(values[0])}
        (result,) = mojo_op("tmb_max_pool_last_backward", values, [(grad.dtype, wide)], parameters)
        return channels_first(reshape(result, [batch, *sizes, channels]))
    image = _planes(x, pool.spatial).shape
    values = [_planes(grad, pool.spatial), before_widening(_planes(indices, pool.spatial))]
    (result,) = mojo_op("tmb_max_pool_backward", values, [(grad.dtype, image)], pool.parameters())
    return reshape(result, shape)


# max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding,
#   int[2] dilation, bool ceil_mode, Tensor indices) -> Tensor
@map_to(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_with_indices_backward(
    grad_output: TensorValue,
    self: TensorValue,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    indices: TensorValue,
) -> TensorValue:
    return _max_pool_backward(grad_output, self, indices, Pool.of(2, kernel_size, stride, padding, dilation, ceil_mode))


# max_pool3d_with_indices_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, int[3] padding,
#   int[3] dilation, bool ceil_mode, Tensor indices) -> Tensor
@map_to(aten.max_pool3d_with_indices_backward.default)
def max_pool3d_with_indices_backward(
    grad_output: TensorValue,
    self: TensorValue,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    indices: TensorValue,
) -> TensorValue:
    return _max_pool_backward(grad_output, self, indices, Pool.of(3, kernel_size, stride, padding, dilation, ceil_mode))


# -- average pooling -------------------------------------------------------------------------------------------------
def _window_sizes(x: TensorValue, size: Dim, out: Dim, pool: Pool, i: int, include_pad: bool) -> TensorValue:
    """How many elements each window of spatial size ``i`` counts, as a vector of the dtype of ``x``."""
    device, dtype = x.device, DType.int64
    k, s, p = pool.kernel[i], pool.stride[i], pool.padding[i]
    length = static(size)
    if length is None:
        end = cast(ops.reshape(ops.shape_to_tensor([size]), []).to(device), dtype)
    else:
        end = constant(length, dtype, device)
    start = iota(out, dtype, device) * constant(s, dtype, device) - constant(p, dtype, device)
    stop = ops.min(start + constant(k, dtype, device), end + constant(p, dtype, device))
    if not include_pad:
        start, stop = ops.max(start, constant(0, dtype, device)), ops.min(stop, end)
    return cast(stop - start, x.dtype)


def _quotient(x: TensorValue, y: TensorValue) -> TensorValue:
    """``x / y``; of integers rounded towards zero, and by no elements 1."""
    if x.dtype.is_float():
        return ops.div(x, y)
    zero, one = constant(0, x.dtype, x.device), constant(1, x.dtype, x.device)
    y = ops.where(ops.equal(y, zero), one, y)
    floor = ops.floor_div(x, y)
    inexact = ops.not_equal(ops.mul(floor, y), x)
    opposite = ops.not_equal(ops.greater(zero, x), ops.greater(zero, y))
    return ops.where(ops.logical_and(inexact, opposite), floor + one, floor)


def _averaged(
    x: TensorValue,
    sizes: Sequence[Dim],
    outs: Sequence[Dim],
    pool: Pool,
    include_pad: bool,
    override: int | None,
    last: bool = False,
) -> TensorValue:
    """Sums of windows, whose spatial sizes are ``outs``, divided by what each window counts.

    ``last`` tells that another axis, of channels, comes behind those sizes.
    """
    whole = 1
    for k in pool.kernel:
        whole *= k
    if override is not None or (include_pad and not pool.ceil_mode) or not (any(pool.padding) or pool.ceil_mode):
        return _quotient(x, constant(override or whole, x.dtype, x.device))
    # With symbolic sizes MAX fuses these divisors wrongly: a window gets another one's.
    for number in (*sizes, *outs):
        known(number, "the size of an image whose windows count different numbers of elements")
    counts = []
    for i, (size, out) in enumerate(zip(sizes, outs, strict=True)):
        vector = _window_sizes(x, size, out, pool, i, include_pad)
        counts.append(reshape(vector, [*[1] * i, out, *[1] * (pool.spatial - 1 - i + int(last))]))
    return _quotient(x, reduce(ops.mul, counts))


def _check_floating(x: TensorValue) -> None:
    if not x.dtype.is_float():
        raise Unsupported(f"averages are of floating-point numbers, got {x.dtype}")


def _tiles(size: Dim, out: Dim, pool: Pool, i: int) -> bool:
    """Whether the windows of spatial size ``i`` cover the axis without overlap, gap or padding."""
    return pool.kernel[i] == pool.stride[i] and pool.padding[i] == 0 and out * pool.kernel[i] == size


def _avg_pool(x: TensorValue, pool: Pool, include_pad: bool, override: int | None) -> TensorValue:
    if x.dtype != DType.int64:
        _check_floating(x)
    shape = out_shape()
    if _is_empty(shape):
        return full(0, shape, x.dtype, x.device)
    y, lead, last = (
        cast(x, accumulator(x.dtype)),
        x.rank - pool.spatial,
        is_channels_last(x) and x.rank == pool.spatial + 2,
    )
    sizes, outs = list(x.shape[lead:]), shape[lead:]
    y = channels_last(y) if last else y
    for i in reversed(range(pool.spatial)):
        k, axis = pool.kernel[i], lead + i - int(last)
        if k >= 8 and _tiles(sizes[i], outs[i], pool, i):
            y = fold_axis(y, axis, k)
            continue
        y = pad_axis(y, axis, pool.padding[i], pool.after(i))
        y = slide(y, axis, outs[i], k, pool.stride[i], 1, ops.add)
    y = cast(_averaged(y, sizes, outs, pool, include_pad, override, last), x.dtype)
    return channels_first(y) if last else y


def _avg_pool_backward(
    grad: TensorValue, x: TensorValue, pool: Pool, include_pad: bool, override: int | None
) -> TensorValue:
    _check_floating(x)
    shape, lead = out_shape(), x.rank - pool.spatial
    if _is_empty(shape) or _is_empty(grad.shape):
        return full(0, shape, grad.dtype, grad.device)
    y = cast(grad, accumulator(grad.dtype))
    sizes, outs = shape[lead:], list(grad.shape[lead:])
    y = _averaged(y, sizes, outs, pool, include_pad, override)
    for i in range(pool.spatial):
        k, p, axis = pool.kernel[i], pool.padding[i], lead + i
        if _tiles(sizes[i], outs[i], pool, i):
            y = repeat_axis(y, axis, k)
            continue
        # Element h gets the windows that begin at h + p, h + p - 1, … h + p - (k - 1).
        y = pad_axis(spread_axis(y, axis, pool.stride[i]), axis, k - 1 - p, k - 1 + pool.stride[i])
        y = slide(y, axis, sizes[i], k, 1, 1, ops.add)
    return cast(reshape(y, shape), grad.dtype)


# avg_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0], bool ceil_mode=False,
#   bool count_include_pad=True) -> Tensor
@map_to(aten.avg_pool1d.default)
def avg_pool1d(
    self: TensorValue,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints | int = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> TensorValue:
    return _avg_pool(self, Pool.of(1, kernel_size, stride, padding, 1, ceil_mode), count_include_pad, None)


# avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False,
#   bool count_include_pad=True, int? divisor_override=None) -> Tensor
@map_to(aten.avg_pool2d.default)
def avg_pool2d(
    self: TensorValue,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints | int = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> TensorValue:
    return _avg_pool(self, Pool.of(2, kernel_size, stride, padding, 1, ceil_mode), count_include_pad, divisor_override)


# avg_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, bool ceil_mode=False,
#   bool count_include_pad=True, int? divisor_override=None) -> Tensor
@map_to(aten.avg_pool3d.default)
def avg_pool3d(
    self: TensorValue,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints | int = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> TensorValue:
    return _avg_pool(self, Pool.of(3, kernel_size, stride, padding, 1, ceil_mode), count_include_pad, divisor_override)


# avg_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding,
#   bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor
@map_to(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(
    grad_output: TensorValue,
    self: TensorValue,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> TensorValue:
    pool = Pool.of(2, kernel_size, stride, padding, 1, ceil_mode)
    return _avg_pool_backward(grad_output, self, pool, count_include_pad, divisor_override)


# avg_pool3d_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, int[3] padding,
#   bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor
@map_to(aten.avg_pool3d_backward.default)
def avg_pool3d_backward(
    grad_output: TensorValue,
    self: TensorValue,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> TensorValue:
    pool = Pool.of(3, kernel_size, stride, padding, 1, ceil_mode)
    return _avg_pool_backward(grad_output, self, pool, count_include_pad, divisor_override)


# -- adaptive pooling ------------------------------------------------------------------------------------------------
def _bins(size: Dim, out: Dim) -> tuple[np.ndarray, np.ndarray] | None:
    """First element and length of each bin; ``None`` if they are equal tiles, for which sizes may be symbolic."""
    s, o = static(size), static(out)
    if o == 1 or size == out or (s is not None and o is not None and s % o == 0):
        return None
    if s is None or o is None:
        problem = f"an adaptive size must be 1 or known with its input's when the graph is built, got {out} of {size}"
        raise NeedsStatic(problem, size, out)
    start = np.arange(o) * s // o
    return start, -(-(np.arange(1, o + 1) * s) // o) - start


def _tile(size: Dim, out: Dim) -> int | None:
    """Length of equal bins, if it is known."""
    s, o = static(size), static(out)
    return 1 if size == out else s // o if s is not None and o else None


def _adaptive_avg(x: TensorValue, spatial: int) -> TensorValue:
    _check_floating(x)
    shape = out_shape()
    if _is_empty(shape):
        return full(0, shape, x.dtype, x.device)
    y = cast(x, accumulator(x.dtype))
    for axis in reversed(range(x.rank - spatial, x.rank)):
        bins, tile = _bins(y.shape[axis], shape[axis]), _tile(y.shape[axis], shape[axis])
        if bins is not None:
            start, length = bins
            total = None
            for k in range(int(length.max())):
                inside = along(k < length, y, axis, DType.bool)
                part = take(y, axis, np.minimum(start + k, start + length - 1))
                part = ops.where(broadcast_to(inside, part.shape), part, constant(0, y.dtype, y.device))
                total = part if total is None else ops.add(total, part)
            assert total is not None
            y = ops.div(total, along(length, y, axis, y.dtype))
        elif tile is None:
            y = mean_along(y, axis=axis)
        elif tile > 1:
            y = ops.div(fold_axis(y, axis, tile), constant(tile, y.dtype, y.device))
    return cast(reshape(y, shape), x.dtype)


def _adaptive_avg_backward(grad: TensorValue, x: TensorValue, spatial: int) -> TensorValue:
    _check_floating(x)
    shape = out_shape()
    if _is_empty(shape):
        return full(0, shape, grad.dtype, grad.device)
    y = cast(grad, accumulator(grad.dtype))
    for axis in range(x.rank - spatial, x.rank):
        bins, tile = _bins(shape[axis], y.shape[axis]), _tile(shape[axis], y.shape[axis])
        if bins is not None:
            y = _from_bins(y, axis, int(shape[axis]), *bins)
        elif tile is None:
            size = cast(ops.reshape(ops.shape_to_tensor([shape[axis]]), []).to(y.device), y.dtype)
            y = broadcast_to(ops.div(y, size), [*y.shape[:axis], shape[axis], *y.shape[axis + 1 :]])
        elif tile > 1:
            y = repeat_axis(ops.div(y, constant(tile, y.dtype, y.device)), axis, tile)
    return cast(reshape(y, shape), grad.dtype)


def _from_bins(y: TensorValue, axis: int, size: int, start: np.ndarray, length: np.ndarray) -> TensorValue:
    """Every element's sum over the bins that contain it: at most one more than overlap anywhere."""
    y = ops.div(y, along(length, y, axis, y.dtype))
    places = np.arange(size)
    owners = [[b for b in range(len(start)) if start[b] <= h < start[b] + length[b]] for h in places]
    total = None
    for k in range(max(len(o) for o in owners)):
        has = np.array([k < len(o) for o in owners])
        which = np.array([o[k] if k < len(o) else o[0] for o in owners])
        part = take(y, axis, which)
        part = ops.where(
            broadcast_to(along(has, y, axis, DType.bool), part.shape), part, constant(0, y.dtype, y.device)
        )
        total = part if total is None else ops.add(total, part)
    assert total is not None
    return total


# _adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor
@map_to(aten._adaptive_avg_pool2d.default)
def _adaptive_avg_pool2d(self: TensorValue, output_size: Sequence[int | Dim]) -> TensorValue:
    return _adaptive_avg(self, 2)


# _adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor
@map_to(aten._adaptive_avg_pool3d.default)
def _adaptive_avg_pool3d(self: TensorValue, output_size: Sequence[int | Dim]) -> TensorValue:
    return _adaptive_avg(self, 3)


# _adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) -> Tensor
@map_to(aten._adaptive_avg_pool2d_backward.default)
def _adaptive_avg_pool2d_backward(grad_output: TensorValue, self: TensorValue) -> TensorValue:
    return _adaptive_avg_backward(grad_output, self, 2)


# _adaptive_avg_pool3d_backward(Tensor grad_output, Tensor self) -> Tensor
@map_to(aten._adaptive_avg_pool3d_backward.default)
def _adaptive_avg_pool3d_backward(grad_output: TensorValue, self: TensorValue) -> TensorValue:
    return _adaptive_avg_backward(grad_output, self, 3)


def _adaptive_max(x: TensorValue, spatial: int) -> tuple[TensorValue, TensorValue]:
    shape = out_shape(0)
    if _is_empty(shape):
        return full(0, shape, x.dtype, x.device), full(0, shape, DType.int64, x.device)
    image = _planes(x, spatial)
    wide = [image.shape[0], *[Dim(1)] * (3 - spatial), *shape[len(shape) - spatial :]]
    values, indices = mojo_op("tmb_adaptive_max_pool", [image], [(x.dtype, wide), (DType.int64, wide)])
    return reshape(values, shape), reshape(indices, shape)


# adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)
@map_to(aten.adaptive_max_pool2d.default)
def adaptive_max_pool2d(self: TensorValue, output_size: Ints) -> tuple[TensorValue, TensorValue]:
    return _adaptive_max(self, 2)


# adaptive_max_pool3d(Tensor self, int[3] output_size) -> (Tensor, Tensor)
@map_to(aten.adaptive_max_pool3d.default)
def adaptive_max_pool3d(self: TensorValue, output_size: Ints) -> tuple[TensorValue, TensorValue]:
    return _adaptive_max(self, 3)


def _adaptive_max_backward(grad: TensorValue, x: TensorValue, indices: TensorValue, spatial: int) -> TensorValue:
    # Seen as sliding windows that reach over every image: any bin may have chosen any element.
    ones = (1,) * spatial
    return _max_pool_backward(grad, x, indices, Pool((2 * FAR,) * spatial, ones, (FAR,) * spatial, ones))


# adaptive_max_pool2d_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor
@map_to(aten.adaptive_max_pool2d_backward.default)
def adaptive_max_pool2d_backward(grad_output: TensorValue, self: TensorValue, indices: TensorValue) -> TensorValue:
    return _adaptive_max_backward(grad_output, self, indices, 2)


# adaptive_max_pool3d_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor
@map_to(aten.adaptive_max_pool3d_backward.default)
def adaptive_max_pool3d_backward(grad_output: TensorValue, self: TensorValue, indices: TensorValue) -> TensorValue:
    return _adaptive_max_backward(grad_output, self, indices, 3)
