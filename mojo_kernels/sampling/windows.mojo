"""Weighted sums of windows along an axis, maxima of random windows, and numbered pairs."""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.gpu.host import DeviceContext
from std.math import sqrt
from std.utils.coord import Coord
from std.utils.numerics import min_or_neg_inf


@extensibility.register("tmb_weighted_windows")
struct WeightedWindows[bits: Int]:
    """`[outer, n, inner]` to `[outer, windows, inner]`: sums of `sizes` elements from `starts` on, times `weights`.

    Weights of bytes are whole numbers, 2 to the power of `bits` times too large; sums are rounded and clamped.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=3, ...],
        x: InputTensor[dtype=result.dtype, rank=3, ...],
        starts: InputTensor[dtype=DType.int64, rank=1, ...],
        sizes: InputTensor[dtype=DType.int64, rank=1, ...],
        weights: InputTensor[rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        def element[
            lanes: Int
        ](at: Coord[...]) {var x, var starts, var sizes, var weights} -> SIMD[result.dtype, lanes]:
            comptime wide = weights.dtype
            var outer = Int(at[0].value())
            var window = Int(at[1].value())
            var inner = Int(at[2].value())
            var start = Int(starts[window])
            var total = Scalar[wide](0)
            comptime if wide.is_integral():
                total = Scalar[wide](1 << (Self.bits - 1))
            for i in range(Int(sizes[window])):
                total += x[outer, start + i, inner].cast[wide]() * weights[window, i]
            comptime if wide.is_integral():
                total = min(max(total >> Scalar[wide](Self.bits), Scalar[wide](0)), Scalar[wide](255))
            return SIMD[result.dtype, lanes](total.cast[result.dtype]())

        foreach[target=target, simd_width=1](element, result, ctx)


def window_start[dtype: DType](sample: Scalar[dtype], i: Int, size: Int, count: Int, kernel: Int) -> Int:
    """Where window `i` of `count` begins; every step is rounded to `dtype`, as torch computes it."""
    comptime wide = DType.float32 if dtype.is_half_float() else dtype
    if i == count - 1:
        return size - kernel
    var whole = Scalar[wide](size - kernel).cast[dtype]().cast[wide]()
    var steps = Scalar[wide](count - 1).cast[dtype]().cast[wide]()
    var alpha = (whole / steps).cast[dtype]().cast[wide]()
    var from_zero = (sample.cast[wide]() * alpha).cast[dtype]()
    var shifted = (Scalar[wide](i).cast[dtype]().cast[wide]() + sample.cast[wide]()).cast[dtype]()
    var place = Int((shifted.cast[wide]() * alpha).cast[dtype]()) - Int(from_zero)
    return min(max(place, 0), size - kernel)


@extensibility.register("tmb_fractional_max_pool")
struct FractionalMaxPool[kd: Int, kh: Int, kw: Int]:
    """The largest element of every window of `[planes, D, H, W]`, and its flat index within the plane.

    Windows begin at pseudo-random places, which the `samples` of a plane and axis, `[planes, 3]`, shift.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        values: OutputTensor[rank=4, ...],
        indices: OutputTensor[dtype=DType.int64, rank=4, ...],
        image: InputTensor[dtype=values.dtype, rank=4, ...],
        samples: InputTensor[dtype=values.dtype, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        var depth = image.dim_size(1)
        var height = image.dim_size(2)
        var width = image.dim_size(3)
        var out_depth = values.dim_size(1)
        var out_height = values.dim_size(2)
        var out_width = values.dim_size(3)

        def element[
            lanes: Int
        ](at: Coord[...]) {
            var image,
            var samples,
            var values,
            var depth,
            var height,
            var width,
            var out_depth,
            var out_height,
            var out_width,
        } -> SIMD[DType.int64, lanes]:
            var plane = Int(at[0].value())
            var od = Int(at[1].value())
            var oh = Int(at[2].value())
            var ow = Int(at[3].value())
            var d0 = window_start(samples[plane, 0], od, depth, out_depth, Self.kd)
            var h0 = window_start(samples[plane, 1], oh, height, out_height, Self.kh)
            var w0 = window_start(samples[plane, 2], ow, width, out_width, Self.kw)
            var best = min_or_neg_inf[values.dtype]()
            var place = (d0 * height + h0) * width + w0
            for d in range(d0, d0 + Self.kd):
                for h in range(h0, h0 + Self.kh):
                    for w in range(w0, w0 + Self.kw):
                        var x = image[plane, d, h, w]
                        if x > best or x != x:
                            best = x
                            place = (d * height + h) * width + w
            values[plane, od, oh, ow] = best
            return SIMD[DType.int64, lanes](place)

        foreach[target=target, simd_width=1](element, indices, ctx)


@extensibility.register("tmb_pairs")
struct Pairs:
    """The pairs `(i, j)` with `i < j < n`, row by row, as two vectors; `n` is the size of the last operand."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        first: OutputTensor[dtype=DType.int64, rank=1, ...],
        second: OutputTensor[dtype=DType.int64, rank=1, ...],
        like: InputTensor[rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        var n = like.dim_size(0)

        def pair[lanes: Int](at: Coord[...]) {var first, var n} -> SIMD[DType.int64, lanes]:
            var k = Int(at[0].value())
            # Row i begins at i * n - i * (i + 1) / 2. The root is near enough to be put right by a step.
            var half = Float64(n) - 0.5
            var i = min(max(Int(half - sqrt(max(half * half - 2.0 * Float64(k), 0.0))), 0), n - 2)
            while i > 0 and i * n - i * (i + 1) // 2 > k:
                i -= 1
            while (i + 1) * n - (i + 1) * (i + 2) // 2 <= k:
                i += 1
            first[k] = Int64(i)
            return SIMD[DType.int64, lanes](k - (i * n - i * (i + 1) // 2) + i + 1)

        foreach[target=target, simd_width=1](pair, second, ctx)
