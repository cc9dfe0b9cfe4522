"""Sampling of images at given places, and the sum of columns back into images.

Coordinates follow torch's definitions: -1 and 1 are the outermost element centres (`corners`) or edges; what lies
outside counts as 0 (`padding` 0), as the nearest border element (1), or as the mirror image (2).
"""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.gpu.host import DeviceContext
from std.math import floor
from std.utils.coord import Coord


def position[dtype: DType, corners: Bool](x: Scalar[dtype], size: Int) -> Scalar[dtype]:
    """A normalised coordinate in elements."""
    var n = Scalar[dtype](size)
    comptime if corners:
        return ((x + 1) / 2) * (n - 1)
    else:
        return ((x + 1) * n - 1) / 2


def bounded[dtype: DType, padding: Int, corners: Bool](x: Scalar[dtype], size: Int) -> Scalar[dtype]:
    """A coordinate moved into the image, as `padding` says."""
    comptime if padding == 0:
        return x
    var y = x
    comptime if padding == 2:
        y = mirrored[dtype, corners](x, size)
    return min(max(y, Scalar[dtype](0)), Scalar[dtype](size - 1))


def mirrored[dtype: DType, corners: Bool](x: Scalar[dtype], size: Int) -> Scalar[dtype]:
    """A coordinate reflected at the outermost centres or edges until it lies between them."""
    var low = Scalar[dtype](0)
    var span = Scalar[dtype](size - 1)
    comptime if not corners:
        low = -0.5
        span = Scalar[dtype](size)
    if span == 0:
        return 0
    var distance = abs(x - low)
    var turns = floor(distance / span)
    var rest = distance - turns * span
    if Int(clipped(turns)) % 2 == 0:
        return rest + low
    return span - rest + low


def slope[dtype: DType, padding: Int, corners: Bool](x: Scalar[dtype], size: Int) -> Scalar[dtype]:
    """The derivative of the bounded coordinate by the normalised one."""
    var rate = Scalar[dtype](size) / 2
    comptime if corners:
        rate = Scalar[dtype](size - 1) / 2
    comptime if padding == 0:
        return rate
    var y = x
    comptime if padding == 2:
        var low = Scalar[dtype](0)
        var span = Scalar[dtype](size - 1)
        comptime if not corners:
            low = -0.5
            span = Scalar[dtype](size)
        if span == 0:
            return 0
        if x < low:
            rate = -rate
        if Int(clipped(floor(abs(x - low) / span))) % 2 != 0:
            rate = -rate
        y = mirrored[dtype, corners](x, size)
    if y <= 0 or y >= Scalar[dtype](size - 1):
        return 0
    return rate


def clipped[dtype: DType](x: Scalar[dtype]) -> Scalar[dtype]:
    """A number that converts to an integer; NaN and what is too large lie outside of every image."""
    if x != x or x > 1e9 or x < -1e9:
        return -100
    return x


def nearest[dtype: DType](x: Scalar[dtype]) -> Int:
    """The nearest integer, of two the even one."""
    var y = clipped(x)
    var low = floor(y)
    var place = Int(low)
    var rest = y - low
    if rest > 0.5 or (rest == 0.5 and place % 2 != 0):
        return place + 1
    return place


def cubic[dtype: DType](t: Scalar[dtype], tap: Int) -> Scalar[dtype]:
    """The weight of one of four neighbours at a distance of `t` from the second."""
    comptime a = Scalar[dtype](-0.75)
    var x = t + 1
    if tap == 1:
        x = t
    elif tap == 2:
        x = 1 - t
    elif tap == 3:
        x = 2 - t
    if tap == 1 or tap == 2:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


@extensibility.register("tmb_grid_sampler_2d")
struct GridSampler2d[mode: Int, padding: Int, corners: Bool]:
    """`[N, C, H, W]` at the places `[N, OH, OW, 2]`: linear (`mode` 0), nearest (1) or cubic (2)."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=4, ...],
        image: InputTensor[dtype=result.dtype, rank=4, ...],
        grid: InputTensor[dtype=result.dtype, rank=4, ...],
        ctx: DeviceContext,
    ) raises:
        comptime wide = DType.float32 if result.dtype.is_half_float() else result.dtype
        var height = image.dim_size(2)
        var width = image.dim_size(3)

        def element[
            lanes: Int
        ](at: Coord[...]) {var image, var grid, var height, var width} -> SIMD[result.dtype, lanes]:
            var n = Int(at[0].value())
            var c = Int(at[1].value())
            var oh = Int(at[2].value())
            var ow = Int(at[3].value())
            var x = position[wide, Self.corners](grid[n, oh, ow, 0].cast[wide](), width)
            var y = position[wide, Self.corners](grid[n, oh, ow, 1].cast[wide](), height)
            var total = Scalar[wide](0)
            comptime if Self.mode == 2:
                var left = floor(x)
                var top = floor(y)
                for i in range(4):
                    var row = Scalar[wide](0)
                    var h = Int(
                        clipped(bounded[wide, Self.padding, Self.corners](top + Scalar[wide](i - 1), height))
                    )
                    for j in range(4):
                        var w = Int(
                            clipped(bounded[wide, Self.padding, Self.corners](left + Scalar[wide](j - 1), width))
                        )
                        if h >= 0 and h < height and w >= 0 and w < width:
                            row += image[n, c, h, w].cast[wide]() * cubic[wide](x - left, j)
                    total += row * cubic[wide](y - top, i)
            else:
                x = bounded[wide, Self.padding, Self.corners](x, width)
                y = bounded[wide, Self.padding, Self.corners](y, height)
                comptime if Self.mode == 1:
                    var h = nearest(y)
                    var w = nearest(x)
                    if h >= 0 and h < height and w >= 0 and w < width:
                        total = image[n, c, h, w].cast[wide]()
                else:
                    var left = Int(floor(clipped(x)))
                    var top = Int(floor(clipped(y)))
                    for i in range(2):
                        for j in range(2):
                            var h = top + i
                            var w = left + j
                            if h >= 0 and h < height and w >= 0 and w < width:
                                var across = abs(x - Scalar[wide](left + 1 - j))
                                var down = abs(y - Scalar[wide](top + 1 - i))
                                total += image[n, c, h, w].cast[wide]() * (across * down)
            return SIMD[result.dtype, lanes](total.cast[result.dtype]())

        foreach[target=target, simd_width=1](element, result, ctx)


@extensibility.register("tmb_grid_sampler_2d_image_gradient")
struct GridSampler2dImageGradient[mode: Int, padding: Int, corners: Bool]:
    """The gradient of the image: one worker per plane adds up what its places give, in their order."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        done: OutputTensor[dtype=DType.bool, rank=2, ...],
        result: OutputTensor[rank=4, ...],
        grad: InputTensor[dtype=result.dtype, rank=4, ...],
        grid: InputTensor[dtype=result.dtype, rank=4, ...],
        ctx: DeviceContext,
    ) raises:
        var height = result.dim_size(2)
        var width = result.dim_size(3)

        def plane[
            lanes: Int
        ](at: Coord[...]) {var grad, var grid, var result, var height, var width} -> SIMD[DType.bool, lanes]:
            comptime dtype = result.dtype
            var n = Int(at[0].value())
            var c = Int(at[1].value())
            for h in range(height):
                for w in range(width):
                    result[n, c, h, w] = 0
            for oh in range(grad.dim_size(2)):
                for ow in range(grad.dim_size(3)):
                    var x = bounded[dtype, Self.padding, Self.corners](
                        position[dtype, Self.corners](grid[n, oh, ow, 0], width), width
                    )
                    var y = bounded[dtype, Self.padding, Self.corners](
                        position[dtype, Self.corners](grid[n, oh, ow, 1], height), height
                    )
                    var g = grad[n, c, oh, ow]
                    comptime if Self.mode == 1:
                        var h = nearest(y)
                        var w = nearest(x)
                        if h >= 0 and h < height and w >= 0 and w < width:
                            result[n, c, h, w] = result[n, c, h, w] + g
                    else:
                        var left = Int(floor(clipped(x)))
                        var top = Int(floor(clipped(y)))
                        for i in range(2):
                            for j in range(2):
                                var h = top + i
                                var w = left + j
                                if h >= 0 and h < height and w >= 0 and w < width:
                                    var across = abs(x - Scalar[dtype](left + 1 - j))
                                    var down = abs(y - Scalar[dtype](top + 1 - i))
                                    result[n, c, h, w] = result[n, c, h, w] + g * (across * down)
            return SIMD[DType.bool, lanes](True)

        foreach[target=target, simd_width=1](plane, done, ctx)


@extensibility.register("tmb_grid_sampler_2d_grid_gradient")
struct GridSampler2dGridGradient[padding: Int, corners: Bool]:
    """The gradient of the places, for linear sampling."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=4, ...],
        grad: InputTensor[dtype=result.dtype, rank=4, ...],
        image: InputTensor[dtype=result.dtype, rank=4, ...],
        grid: InputTensor[dtype=result.dtype, rank=4, ...],
        ctx: DeviceContext,
    ) raises:
        var height = image.dim_size(2)
        var width = image.dim_size(3)

        def element[
            lanes: Int
        ](at: Coord[...]) {var grad, var image, var grid, var height, var width} -> SIMD[result.dtype, lanes]:
            comptime dtype = result.dtype
            var n = Int(at[0].value())
            var oh = Int(at[1].value())
            var ow = Int(at[2].value())
            var is_x = Int(at[3].value()) == 0
            var raw_x = position[dtype, Self.corners](grid[n, oh, ow, 0], width)
            var raw_y = position[dtype, Self.corners](grid[n, oh, ow, 1], height)
            var x = bounded[dtype, Self.padding, Self.corners](raw_x, width)
            var y = bounded[dtype, Self.padding, Self.corners](raw_y, height)
            var left = Int(floor(clipped(x)))
            var top = Int(floor(clipped(y)))
            var total = Scalar[dtype](0)
            for c in range(image.dim_size(1)):
                var g = grad[n, c, oh, ow]
                for i in range(2):
                    for j in range(2):
                        var h = top + i
                        var w = left + j
                        if h >= 0 and h < height and w >= 0 and w < width:
                            var share = abs(y - Scalar[dtype](top + 1 - i))
                            var sign = Scalar[dtype](2 * j - 1)
                            if not is_x:
                                share = abs(x - Scalar[dtype](left + 1 - j))
                                sign = Scalar[dtype](2 * i - 1)
                            total += image[n, c, h, w] * share * sign * g
            if is_x:
                total *= slope[dtype, Self.padding, Self.corners](raw_x, width)
            else:
                total *= slope[dtype, Self.padding, Self.corners](raw_y, height)
            return SIMD[dtype, lanes](total)

        foreach[target=target, simd_width=1](element, result, ctx)


@extensibility.register("tmb_fold")
struct Fold[kh: Int, kw: Int, sh: Int, sw: Int, ph: Int, pw: Int, dh: Int, dw: Int]:
    """`[planes, taps, blocks]` summed into `[planes, H, W]`: every element is the sum of the taps that lie on it."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=3, ...],
        columns: InputTensor[dtype=result.dtype, rank=3, ...],
        ctx: DeviceContext,
    ) raises:
        comptime wide = DType.float32 if result.dtype.is_half_float() else result.dtype
        var rows = (result.dim_size(1) + 2 * Self.ph - Self.dh * (Self.kh - 1) - 1) // Self.sh + 1
        var across = (result.dim_size(2) + 2 * Self.pw - Self.dw * (Self.kw - 1) - 1) // Self.sw + 1

        def element[
            lanes: Int
        ](at: Coord[...]) {var columns, var rows, var across} -> SIMD[result.dtype, lanes]:
            var plane = Int(at[0].value())
            var total = Scalar[wide](0)
            for i in range(Self.kh):
                var h = Int(at[1].value()) + Self.ph - i * Self.dh
                if h < 0 or h % Self.sh != 0 or h // Self.sh >= rows:
                    continue
                for j in range(Self.kw):
                    var w = Int(at[2].value()) + Self.pw - j * Self.dw
                    if w < 0 or w % Self.sw != 0 or w // Self.sw >= across:
                        continue
                    var block = h // Self.sh * across + w // Self.sw
                    total += columns[plane, i * Self.kw + j, block].cast[wide]()
            return SIMD[result.dtype, lanes](total.cast[result.dtype]())

        foreach[target=target, simd_width=1](element, result, ctx)
