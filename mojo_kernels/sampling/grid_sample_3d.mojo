"""Sampling of volumes at given places; coordinates are those of `sampling/grid_sample.mojo`, with a depth."""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.gpu.host import DeviceContext
from std.math import floor
from std.utils.coord import Coord

from .grid_sample import clipped, cubic, nearest, position, slope


def placed[dtype: DType, padding: Int, corners: Bool](x: Scalar[dtype], size: Int) -> Scalar[dtype]:
    """A coordinate moved into the volume, as `padding` says; what is no number becomes the last one, as in torch."""
    comptime if padding == 0:
        return x
    var y = x
    comptime if padding == 2:
        y = mirrored[dtype, corners](x, size)
    if y != y:
        return Scalar[dtype](size - 1)
    return min(max(y, Scalar[dtype](0)), Scalar[dtype](size - 1))


def mirrored[dtype: DType, corners: Bool](x: Scalar[dtype], size: Int) -> Scalar[dtype]:
    """A coordinate reflected at the outermost centres or edges until it lies between them; far ones exactly."""
    var low = Scalar[dtype](0)
    var span = Scalar[dtype](size - 1)
    comptime if not corners:
        low = -0.5
        span = Scalar[dtype](size)
    if span == 0:
        return 0
    var distance = abs(x - low)
    if distance != distance or distance > Scalar[dtype](1e30):
        return distance - distance
    var far = distance.cast[DType.float64]()
    var rest = (far - floor(far / span.cast[DType.float64]()) * span.cast[DType.float64]()).cast[dtype]()
    if Int(clipped(floor(distance / span))) % 2 == 0:
        return rest + low
    return span - rest + low


def tap[dtype: DType, padding: Int, corners: Bool](first: Scalar[dtype], i: Int, size: Int) -> Int:
    """The place of one of four neighbours along an axis, of which `first` is the second."""
    return Int(clipped(placed[dtype, padding, corners](first + Scalar[dtype](i - 1), size)))


@extensibility.register("tmb_grid_sampler_3d")
struct GridSampler3d[mode: Int, padding: Int, corners: Bool]:
    """`[N, C, D, H, W]` at the places `[N, OD, OH, OW, 3]`: linear (`mode` 0), nearest (1) or cubic (2)."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=5, ...],
        image: InputTensor[dtype=result.dtype, rank=5, ...],
        grid: InputTensor[dtype=result.dtype, rank=5, ...],
        ctx: DeviceContext,
    ) raises:
        comptime wide = DType.float32 if result.dtype.is_half_float() else result.dtype
        var depth = image.dim_size(2)
        var height = image.dim_size(3)
        var width = image.dim_size(4)

        def element[
            lanes: Int
        ](at: Coord[...]) {var image, var grid, var depth, var height, var width} -> SIMD[result.dtype, lanes]:
            var n = Int(at[0].value())
            var c = Int(at[1].value())
            var od = Int(at[2].value())
            var oh = Int(at[3].value())
            var ow = Int(at[4].value())
            var x = position[wide, Self.corners](grid[n, od, oh, ow, 0].cast[wide](), width)
            var y = position[wide, Self.corners](grid[n, od, oh, ow, 1].cast[wide](), height)
            var z = position[wide, Self.corners](grid[n, od, oh, ow, 2].cast[wide](), depth)
            var total = Scalar[wide](0)
            comptime if Self.mode == 2:
                var left = floor(x)
                var top = floor(y)
                var front = floor(z)
                for k in range(4):
                    var d = tap[wide, Self.padding, Self.corners](front, k, depth)
                    var slice = Scalar[wide](0)
                    for i in range(4):
                        var h = tap[wide, Self.padding, Self.corners](top, i, height)
                        var row = Scalar[wide](0)
                        for j in range(4):
                            var w = tap[wide, Self.padding, Self.corners](left, j, width)
                            if d >= 0 and d < depth and h >= 0 and h < height and w >= 0 and w < width:
                                row += image[n, c, d, h, w].cast[wide]() * cubic[wide](x - left, j)
                        slice += row * cubic[wide](y - top, i)
                    total += slice * cubic[wide](z - front, k)
            else:
                x = placed[wide, Self.padding, Self.corners](x, width)
                y = placed[wide, Self.padding, Self.corners](y, height)
                z = placed[wide, Self.padding, Self.corners](z, depth)
                comptime if Self.mode == 1:
                    var d = nearest(z)
                    var h = nearest(y)
                    var w = nearest(x)
                    if d >= 0 and d < depth and h >= 0 and h < height and w >= 0 and w < width:
                        total = image[n, c, d, h, w].cast[wide]()
                else:
                    var left = Int(floor(clipped(x)))
                    var top = Int(floor(clipped(y)))
                    var front = Int(floor(clipped(z)))
                    for corner in range(8):
                        var d = front + corner // 4
                        var h = top + corner // 2 % 2
                        var w = left + corner % 2
                        if d >= 0 and d < depth and h >= 0 and h < height and w >= 0 and w < width:
                            var across = abs(x - Scalar[wide](2 * left + 1 - w))
                            var down = abs(y - Scalar[wide](2 * top + 1 - h))
                            var inward = abs(z - Scalar[wide](2 * front + 1 - d))
                            total += image[n, c, d, h, w].cast[wide]() * (across * down * inward)
            return SIMD[result.dtype, lanes](total.cast[result.dtype]())

        foreach[target=target, simd_width=1](element, result, ctx)


@extensibility.register("tmb_grid_sampler_3d_image_gradient")
struct GridSampler3dImageGradient[mode: Int, padding: Int, corners: Bool]:
    """The gradient of the volume: one worker per channel adds up what its places give, in their order."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        done: OutputTensor[dtype=DType.bool, rank=2, ...],
        result: OutputTensor[rank=5, ...],
        grad: InputTensor[dtype=result.dtype, rank=5, ...],
        grid: InputTensor[dtype=result.dtype, rank=5, ...],
        ctx: DeviceContext,
    ) raises:
        comptime dtype = result.dtype
        var depth = result.dim_size(2)
        var height = result.dim_size(3)
        var width = result.dim_size(4)

        def channel[
            lanes: Int
        ](at: Coord[...]) {
            var grad, var grid, var result, var depth, var height, var width
        } -> SIMD[DType.bool, lanes]:
            var n = Int(at[0].value())
            var c = Int(at[1].value())
            for d in range(depth):
                for h in range(height):
                    for w in range(width):
                        result[n, c, d, h, w] = 0
            for od in range(grad.dim_size(2)):
                for oh in range(grad.dim_size(3)):
                    for ow in range(grad.dim_size(4)):
                        var x = placed[dtype, Self.padding, Self.corners](
                            position[dtype, Self.corners](grid[n, od, oh, ow, 0], width), width
                        )
                        var y = placed[dtype, Self.padding, Self.corners](
                            position[dtype, Self.corners](grid[n, od, oh, ow, 1], height), height
                        )
                        var z = placed[dtype, Self.padding, Self.corners](
                            position[dtype, Self.corners](grid[n, od, oh, ow, 2], depth), depth
                        )
                        var g = grad[n, c, od, oh, ow]
                        comptime if Self.mode == 1:
                            var d = nearest(z)
                            var h = nearest(y)
                            var w = nearest(x)
                            if d >= 0 and d < depth and h >= 0 and h < height and w >= 0 and w < width:
                                result[n, c, d, h, w] = result[n, c, d, h, w] + g
                        else:
                            var left = Int(floor(clipped(x)))
                            var top = Int(floor(clipped(y)))
                            var front = Int(floor(clipped(z)))
                            for corner in range(8):
                                var d = front + corner // 4
                                var h = top + corner // 2 % 2
                                var w = left + corner % 2
                                if d >= 0 and d < depth and h >= 0 and h < height and w >= 0 and w < width:
                                    var across = abs(x - Scalar[dtype](2 * left + 1 - w))
                                    var down = abs(y - Scalar[dtype](2 * top + 1 - h))
                                    var inward = abs(z - Scalar[dtype](2 * front + 1 - d))
                                    result[n, c, d, h, w] = result[n, c, d, h, w] + g * (across * down * inward)
            return SIMD[DType.bool, lanes](True)

        foreach[target=target, simd_width=1](channel, done, ctx)


@extensibility.register("tmb_grid_sampler_3d_grid_gradient")
struct GridSampler3dGridGradient[padding: Int, corners: Bool]:
    """The gradient of the places, for linear sampling."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=5, ...],
        grad: InputTensor[dtype=result.dtype, rank=5, ...],
        image: InputTensor[dtype=result.dtype, rank=5, ...],
        grid: InputTensor[dtype=result.dtype, rank=5, ...],
        ctx: DeviceContext,
    ) raises:
        comptime dtype = result.dtype
        var depth = image.dim_size(2)
        var height = image.dim_size(3)
        var width = image.dim_size(4)

        def element[
            lanes: Int
        ](at: Coord[...]) {var grad, var image, var grid, var depth, var height, var width} -> SIMD[dtype, lanes]:
            var n = Int(at[0].value())
            var od = Int(at[1].value())
            var oh = Int(at[2].value())
            var ow = Int(at[3].value())
            var axis = Int(at[4].value())
            var raw_x = position[dtype, Self.corners](grid[n, od, oh, ow, 0], width)
            var raw_y = position[dtype, Self.corners](grid[n, od, oh, ow, 1], height)
            var raw_z = position[dtype, Self.corners](grid[n, od, oh, ow, 2], depth)
            var x = placed[dtype, Self.padding, Self.corners](raw_x, width)
            var y = placed[dtype, Self.padding, Self.corners](raw_y, height)
            var z = placed[dtype, Self.padding, Self.corners](raw_z, depth)
            var left = Int(floor(clipped(x)))
            var top = Int(floor(clipped(y)))
            var front = Int(floor(clipped(z)))
            var total = Scalar[dtype](0)
            for c in range(image.dim_size(1)):
                var g = grad[n, c, od, oh, ow]
                for corner in range(8):
                    var k = corner // 4
                    var i = corner // 2 % 2
                    var j = corner % 2
                    var d = front + k
                    var h = top + i
                    var w = left + j
                    if d >= 0 and d < depth and h >= 0 and h < height and w >= 0 and w < width:
                        var across = abs(x - Scalar[dtype](left + 1 - j))
                        var down = abs(y - Scalar[dtype](top + 1 - i))
                        var inward = abs(z - Scalar[dtype](front + 1 - k))
                        if axis == 0:
                            across = Scalar[dtype](2 * j - 1)
                        elif axis == 1:
                            down = Scalar[dtype](2 * i - 1)
                        else:
                            inward = Scalar[dtype](2 * k - 1)
                        total += image[n, c, d, h, w] * (across * down * inward) * g
            if axis == 0:
                total *= slope[dtype, Self.padding, Self.corners](raw_x, width)
            elif axis == 1:
                total *= slope[dtype, Self.padding, Self.corners](raw_y, height)
            else:
                total *= slope[dtype, Self.padding, Self.corners](raw_z, depth)
            return SIMD[dtype, lanes](total)

        foreach[target=target, simd_width=1](element, result, ctx)
