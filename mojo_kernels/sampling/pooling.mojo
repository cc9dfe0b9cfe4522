"""Pooling over up to three spatial sizes: images are `[planes, D, H, W]`, with sizes of 1 where an op has fewer.

Windows are compile-time parameters. The backward kernel gathers: every input element sums over the windows that
contain it, so nothing is added atomically, and the sum has one order on every device.
"""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.algorithm.functional import elementwise
from max.gpu.host import DeviceContext
from std.math import ceildiv
from std.memory import unsafe_stack_allocation
from std.utils.coord import Coord
from std.utils.numerics import isnan, min_or_neg_inf


@extensibility.register("tmb_max_pool")
struct MaxPool[
    kd: Int, kh: Int, kw: Int, sd: Int, sh: Int, sw: Int, pd: Int, ph: Int, pw: Int, dd: Int, dh: Int, dw: Int
]:
    """The largest element of every window, and its flat index within the plane, in any integer dtype that has it.

    As in torch, of equal elements the first one wins, and the last NaN wins over everything.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        values: OutputTensor[rank=4, ...],
        indices: OutputTensor[rank=4, ...],
        image: InputTensor[dtype=values.dtype, rank=4, ...],
        ctx: DeviceContext,
    ) raises:
        var depth = image.dim_size(1)
        var height = image.dim_size(2)
        var width = image.dim_size(3)

        def element[
            lanes: Int
        ](at: Coord[...]) {var image, var values, var depth, var height, var width} -> SIMD[indices.dtype, lanes]:
            var plane = Int(at[0].value())
            var d0 = Int(at[1].value()) * Self.sd - Self.pd
            var h0 = Int(at[2].value()) * Self.sh - Self.ph
            var w0 = Int(at[3].value()) * Self.sw - Self.pw
            var d1 = min(d0 + (Self.kd - 1) * Self.dd + 1, depth)
            var h1 = min(h0 + (Self.kh - 1) * Self.dh + 1, height)
            var w1 = min(w0 + (Self.kw - 1) * Self.dw + 1, width)
            while d0 < 0:
                d0 += Self.dd
            while h0 < 0:
                h0 += Self.dh
            while w0 < 0:
                w0 += Self.dw
            var best = min_or_neg_inf[values.dtype]()
            var place = (d0 * height + h0) * width + w0
            for d in range(d0, d1, Self.dd):
                for h in range(h0, h1, Self.dh):
                    for w in range(w0, w1, Self.dw):
                        var x = image[plane, d, h, w]
                        if x > best or x != x:
                            best = x
                            place = (d * height + h) * width + w
            values[plane, Int(at[1].value()), Int(at[2].value()), Int(at[3].value())] = best
            return SIMD[indices.dtype, lanes](place)

        foreach[target=target, simd_width=1](element, indices, ctx)


@extensibility.register("tmb_max_pool_last")
struct MaxPoolLast[
    kd: Int, kh: Int, kw: Int, sd: Int, sh: Int, sw: Int, pd: Int, ph: Int, pw: Int, dd: Int, dh: Int, dw: Int
]:
    """The largest element of every window of images `[N, D, H, W, C]`, NaN where the window has one."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        values: OutputTensor[rank=5, ...],
        image: InputTensor[dtype=values.dtype, rank=5, ...],
        ctx: DeviceContext,
    ) raises:
        var depth = image.dim_size(1)
        var height = image.dim_size(2)
        var width = image.dim_size(3)
        var channels = image.dim_size(4)
        var pixels = image.unsafe_ptr()

        def element[
            lanes: Int
        ](at: Coord[...]) {var pixels, var depth, var height, var width, var channels} -> SIMD[values.dtype, lanes]:
            var d0 = Int(at[1].value()) * Self.sd - Self.pd
            var h0 = Int(at[2].value()) * Self.sh - Self.ph
            var w0 = Int(at[3].value()) * Self.sw - Self.pw
            var first = Int(at[0].value()) * depth * height * width * channels + Int(at[4].value())
            var best = SIMD[values.dtype, lanes](min_or_neg_inf[values.dtype]())
            comptime for kd in range(Self.kd):
                comptime for kh in range(Self.kh):
                    comptime for kw in range(Self.kw):
                        var d = d0 + kd * Self.dd
                        var h = h0 + kh * Self.dh
                        var w = w0 + kw * Self.dw
                        if 0 <= d < depth and 0 <= h < height and 0 <= w < width:
                            var place = first + ((d * height + h) * width + w) * channels
                            var x = pixels.unsafe_load[width=lanes](place)
                            best = (x.gt(best) | isnan(x)).select(x, best)
            return best

        foreach[target=target](element, values, ctx)


@always_inline
def inside_of(place: Int, size: Int) -> Int:
    """The nearest place in the image."""
    return max(0, min(place, size - 1))


@always_inline
def inside[dilation: Int](begin: Int) -> Int:
    """The first place of a window that is not in front of the image."""
    return begin if begin >= 0 else begin + ceildiv(-begin, dilation) * dilation


@extensibility.register("tmb_max_pool_last_with_places")
struct MaxPoolLastWithPlaces[
    kd: Int, kh: Int, kw: Int, sd: Int, sh: Int, sw: Int, pd: Int, ph: Int, pw: Int, dd: Int, dh: Int, dw: Int, together: Int
]:
    """`tmb_max_pool` of images `[N, D, H, W, C]`, `together` channels at a time."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        values: OutputTensor[rank=5, ...],
        indices: OutputTensor[rank=5, ...],
        image: InputTensor[dtype=values.dtype, rank=5, ...],
        ctx: DeviceContext,
    ) raises:
        var depth = image.dim_size(1)
        var height = image.dim_size(2)
        var width = image.dim_size(3)
        var channels = image.dim_size(4)
        var out_depth = values.dim_size(1)
        var out_height = values.dim_size(2)
        var out_width = values.dim_size(3)
        var pixels = image.unsafe_ptr()
        var largest = values.unsafe_ptr()

        def element[
            lanes: Int
        ](at: Coord[...]) {
            var pixels,
            var largest,
            var depth,
            var height,
            var width,
            var channels,
            var out_depth,
            var out_height,
            var out_width,
        } -> SIMD[indices.dtype, lanes]:
            var od = Int(at[1].value())
            var oh = Int(at[2].value())
            var ow = Int(at[3].value())
            var d0 = od * Self.sd - Self.pd
            var h0 = oh * Self.sh - Self.ph
            var w0 = ow * Self.sw - Self.pw
            var image = Int(at[0].value())
            var channel = Int(at[4].value())
            var first = image * depth * height * width * channels + channel
            var best = SIMD[values.dtype, lanes](min_or_neg_inf[values.dtype]())
            var d1, h1, w1 = inside[Self.dd](d0), inside[Self.dh](h0), inside[Self.dw](w0)
            var places = SIMD[DType.int32, lanes]((d1 * height + h1) * width + w1)
            comptime for line in range(Self.kd * Self.kh):
                var d = d0 + line // Self.kh * Self.dd
                var h = h0 + line % Self.kh * Self.dh
                var row = inside_of(d, depth) * height + inside_of(h, height)
                var held = unsafe_stack_allocation[Self.kw, SIMD[values.dtype, lanes]]()
                comptime for kw in range(Self.kw):  # all are read, without a branch, before any is looked at
                    var place = row * width + inside_of(w0 + kw * Self.dw, width)
                    held[unsafe_offset=kw] = pixels.unsafe_load[width=lanes](first + place * channels)
                comptime for kw in range(Self.kw):
                    var w = w0 + kw * Self.dw
                    if 0 <= d < depth and 0 <= h < height and 0 <= w < width:
                        var x = held[unsafe_offset=kw]
                        var wins = x.gt(best) | isnan(x)
                        best = wins.select(x, best)
                        places = wins.select(SIMD[DType.int32, lanes]((d * height + h) * width + w), places)
            var place = ((image * out_depth + od) * out_height + oh) * out_width + ow
            largest.unsafe_store(place * channels + channel, best)
            return places.cast[indices.dtype]()

        foreach[target=target, simd_width=Self.together](element, indices, ctx)


@extensibility.register("tmb_max_pool_backward")
struct MaxPoolBackward[
    kd: Int, kh: Int, kw: Int, sd: Int, sh: Int, sw: Int, pd: Int, ph: Int, pw: Int, dd: Int, dh: Int, dw: Int
]:
    """Every input element's sum of the gradients of those windows that chose it."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=4, ...],
        grad: InputTensor[dtype=result.dtype, rank=4, ...],
        indices: InputTensor[rank=4, ...],
        ctx: DeviceContext,
    ) raises:
        var height = result.dim_size(2)
        var width = result.dim_size(3)
        var out_depth = grad.dim_size(1)
        var out_height = grad.dim_size(2)
        var out_width = grad.dim_size(3)

        def element[
            lanes: Int
        ](at: Coord[...]) {
            var grad, var indices, var height, var width, var out_depth, var out_height, var out_width
        } -> SIMD[result.dtype, lanes]:
            comptime wide = DType.float32 if result.dtype.is_half_float() else result.dtype
            var plane = Int(at[0].value())
            var d = Int(at[1].value())
            var h = Int(at[2].value())
            var w = Int(at[3].value())
            var place = Scalar[indices.dtype]((d * height + h) * width + w)
            var d0 = max(ceildiv(d + Self.pd - (Self.kd - 1) * Self.dd, Self.sd), 0)
            var h0 = max(ceildiv(h + Self.ph - (Self.kh - 1) * Self.dh, Self.sh), 0)
            var w0 = max(ceildiv(w + Self.pw - (Self.kw - 1) * Self.dw, Self.sw), 0)
            var d1 = min((d + Self.pd) // Self.sd + 1, out_depth)
            var h1 = min((h + Self.ph) // Self.sh + 1, out_height)
            var w1 = min((w + Self.pw) // Self.sw + 1, out_width)
            var total = Scalar[wide](0)
            for od in range(d0, d1):
                for oh in range(h0, h1):
                    for ow in range(w0, w1):
                        if indices[plane, od, oh, ow] == place:
                            total += grad[plane, od, oh, ow].cast[wide]()
            return SIMD[result.dtype, lanes](total.cast[result.dtype]())

        foreach[target=target, simd_width=1](element, result, ctx)


@extensibility.register("tmb_max_pool_last_backward")
struct MaxPoolLastBackward[
    kd: Int, kh: Int, kw: Int, sd: Int, sh: Int, sw: Int, pd: Int, ph: Int, pw: Int, dd: Int, dh: Int, dw: Int, together: Int
]:
    """`tmb_max_pool_backward` of images `[N, D, H, W, C]`, `together` channels at a time.

    Where windows have no gaps and overlap few others, a thread computes all elements that lie between the beginnings of
    two windows, and so reads a window once for all of them.
    """

    comptime in_depth = (Self.kd - 1) // Self.sd + 1
    comptime in_height = (Self.kh - 1) // Self.sh + 1
    comptime in_width = (Self.kw - 1) // Self.sw + 1
    comptime windows = Self.in_depth * Self.in_height * Self.in_width
    comptime is_tiled = (
        Self.dd == Self.dh == Self.dw == 1 and Self.windows <= 9 and Self.sd * Self.sh * Self.sw <= 9
    )

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=5, ...],
        grad: InputTensor[dtype=result.dtype, rank=5, ...],
        indices: InputTensor[rank=5, ...],
        ctx: DeviceContext,
    ) raises:
        comptime wide = DType.float32 if result.dtype.is_half_float() else result.dtype
        var depth = result.dim_size(1)
        var height = result.dim_size(2)
        var width = result.dim_size(3)
        var channels = result.dim_size(4)
        var out_depth = grad.dim_size(1)
        var out_height = grad.dim_size(2)
        var out_width = grad.dim_size(3)
        var grads = grad.unsafe_ptr()
        var chosen = indices.unsafe_ptr()
        var pixels = result.unsafe_ptr()

        def tile[
            lanes: Int, alignment: Int = 1
        ](at: Coord) {
            var grads,
            var chosen,
            var pixels,
            var depth,
            var height,
            var width,
            var channels,
            var out_depth,
            var out_height,
            var out_width,
        }:
            var image, channel = Int(at[0].value()), Int(at[4].value())
            var td, th, tw = Int(at[1].value()), Int(at[2].value()), Int(at[3].value())
            var first = image * out_depth * out_height * out_width * channels + channel
            var held = unsafe_stack_allocation[Self.windows, SIMD[result.dtype, lanes]]()
            var read = unsafe_stack_allocation[Self.windows, SIMD[indices.dtype, lanes]]()
            var places = unsafe_stack_allocation[Self.windows, SIMD[DType.int32, lanes]]()
            var is_there = unsafe_stack_allocation[Self.windows, Bool]()
            comptime for i in range(Self.windows):  # all are read, without a branch, before any is looked at
                var od = td - i // (Self.in_height * Self.in_width)
                var oh = th - i // Self.in_width % Self.in_height
                var ow = tw - i % Self.in_width
                is_there[unsafe_offset=i] = 0 <= od < out_depth and 0 <= oh < out_height and 0 <= ow < out_width
                od, oh, ow = inside_of(od, out_depth), inside_of(oh, out_height), inside_of(ow, out_width)
                var window = first + ((od * out_height + oh) * out_width + ow) * channels
                held[unsafe_offset=i] = grads.unsafe_load[width=lanes](window)
                read[unsafe_offset=i] = chosen.unsafe_load[width=lanes](window)
            comptime for i in range(Self.windows):
                var place = read[unsafe_offset=i].cast[DType.int32]()
                places[unsafe_offset=i] = place if is_there[unsafe_offset=i] else SIMD[DType.int32, lanes](-1)
            comptime for r in range(Self.sd * Self.sh * Self.sw):
                comptime rd = r // (Self.sh * Self.sw)
                comptime rh = r // Self.sw % Self.sh
                comptime rw = r % Self.sw
                var d, h, w = td * Self.sd - Self.pd + rd, th * Self.sh - Self.ph + rh, tw * Self.sw - Self.pw + rw
                if 0 <= d < depth and 0 <= h < height and 0 <= w < width:
                    var place = (d * height + h) * width + w
                    var total = SIMD[wide, lanes](0)
                    comptime for last in range(Self.windows):
                        comptime i = Self.windows - 1 - last  # in the order of the windows
                        comptime jd = i // (Self.in_height * Self.in_width)
                        comptime jh = i // Self.in_width % Self.in_height
                        comptime jw = i % Self.in_width
                        comptime if (
                            jd * Self.sd + rd < Self.kd and jh * Self.sh + rh < Self.kh and jw * Self.sw + rw < Self.kw
                        ):
                            var is_chosen = places[unsafe_offset=i].eq(Int32(place))
                            total += is_chosen.select(held[unsafe_offset=i].cast[wide](), SIMD[wide, lanes](0))
                    var at_pixel = (image * depth * height * width + place) * channels + channel
                    pixels.unsafe_store(at_pixel, total.cast[result.dtype]())

        def element[
            lanes: Int
        ](at: Coord[...]) {
            var grads,
            var chosen,
            var height,
            var width,
            var channels,
            var out_depth,
            var out_height,
            var out_width,
        } -> SIMD[result.dtype, lanes]:
            var d = Int(at[1].value())
            var h = Int(at[2].value())
            var w = Int(at[3].value())
            var place = SIMD[indices.dtype, lanes]((d * height + h) * width + w)
            var first = Int(at[0].value()) * out_depth * out_height * out_width * channels + Int(at[4].value())
            var d0 = max(ceildiv(d + Self.pd - (Self.kd - 1) * Self.dd, Self.sd), 0)
            var h0 = max(ceildiv(h + Self.ph - (Self.kh - 1) * Self.dh, Self.sh), 0)
            var w0 = max(ceildiv(w + Self.pw - (Self.kw - 1) * Self.dw, Self.sw), 0)
            var d1 = min((d + Self.pd) // Self.sd + 1, out_depth)
            var h1 = min((h + Self.ph) // Self.sh + 1, out_height)
            var w1 = min((w + Self.pw) // Self.sw + 1, out_width)
            var total = SIMD[wide, lanes](0)
            for od in range(d0, d1):
                for oh in range(h0, h1):
                    for ow in range(w0, w1):
                        var window = first + ((od * out_height + oh) * out_width + ow) * channels
                        var x = grads.unsafe_load[width=lanes](window).cast[wide]()
                        var is_chosen = chosen.unsafe_load[width=lanes](window).eq(place)
                        total += is_chosen.select(x, SIMD[wide, lanes](0))
            return total.cast[result.dtype]()

        comptime if Self.is_tiled:
            var tiles = Coord(
                result.dim_size(0),
                ceildiv(depth + Self.pd, Self.sd),
                ceildiv(height + Self.ph, Self.sh),
                ceildiv(width + Self.pw, Self.sw),
                channels,
            )
            elementwise[simd_width=Self.together, target=target](tile, tiles, ctx)
        else:
            foreach[target=target, simd_width=Self.together](element, result, ctx)


@extensibility.register("tmb_adaptive_max_pool")
struct AdaptiveMaxPool:
    """The largest element of every bin of an even division of the image, and its flat index within the plane."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        values: OutputTensor[rank=4, ...],
        indices: OutputTensor[dtype=DType.int64, rank=4, ...],
        image: InputTensor[dtype=values.dtype, rank=4, ...],
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
            var image, var values, var depth, var height, var width, var out_depth, var out_height, var out_width
        } -> SIMD[DType.int64, lanes]:
            var plane = Int(at[0].value())
            var od = Int(at[1].value())
            var oh = Int(at[2].value())
            var ow = Int(at[3].value())
            var d0 = od * depth // out_depth
            var h0 = oh * height // out_height
            var w0 = ow * width // out_width
            var best = min_or_neg_inf[values.dtype]()
            var place = (d0 * height + h0) * width + w0
            for d in range(d0, ceildiv((od + 1) * depth, out_depth)):
                for h in range(h0, ceildiv((oh + 1) * height, out_height)):
                    for w in range(w0, ceildiv((ow + 1) * width, out_width)):
                        var x = image[plane, d, h, w]
                        if x > best or x != x:
                            best = x
                            place = (d * height + h) * width + w
            values[plane, od, oh, ow] = best
            return SIMD[DType.int64, lanes](place)

        foreach[target=target, simd_width=1](element, indices, ctx)
