"""Convolutions of integers, which wrap around as torch's do."""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.gpu.host import DeviceContext
from std.utils.coord import Coord


@extensibility.register("tmb_integer_convolution")
struct IntegerConvolution[
    transposed: Bool, groups: Int, sd: Int, sh: Int, sw: Int, pd: Int, ph: Int, pw: Int, dd: Int, dh: Int, dw: Int
]:
    """`[N, C, D, H, W]` with filters `[F, C / groups, KD, KH, KW]`, or transposed with `[C, F / groups, KD, KH, KW]`.

    Every element of the result gathers what it is the sum of.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=5, ...],
        image: InputTensor[dtype=result.dtype, rank=5, ...],
        filters: InputTensor[dtype=result.dtype, rank=5, ...],
        ctx: DeviceContext,
    ) raises:
        var inputs = image.dim_size(1) // Self.groups
        var outputs = result.dim_size(1) // Self.groups
        var depth = image.dim_size(2)
        var height = image.dim_size(3)
        var width = image.dim_size(4)

        def element[
            lanes: Int
        ](at: Coord[...]) {
            var image, var filters, var inputs, var outputs, var depth, var height, var width
        } -> SIMD[result.dtype, lanes]:
            var n = Int(at[0].value())
            var f = Int(at[1].value())
            var base = f // outputs * inputs
            var total = Scalar[result.dtype](0)
            for kd in range(filters.dim_size(2)):
                var d = source[Self.transposed, Self.sd, Self.pd, Self.dd](Int(at[2].value()), kd, depth)
                for kh in range(filters.dim_size(3)):
                    var h = source[Self.transposed, Self.sh, Self.ph, Self.dh](Int(at[3].value()), kh, height)
                    for kw in range(filters.dim_size(4)):
                        var w = source[Self.transposed, Self.sw, Self.pw, Self.dw](Int(at[4].value()), kw, width)
                        if d < 0 or h < 0 or w < 0:
                            continue
                        for c in range(inputs):
                            var tap: Scalar[result.dtype]
                            comptime if Self.transposed:
                                tap = filters[base + c, f % outputs, kd, kh, kw]
                            else:
                                tap = filters[f, c, kd, kh, kw]
                            total += image[n, base + c, d, h, w] * tap
            return SIMD[result.dtype, lanes](total)

        foreach[target=target, simd_width=1](element, result, ctx)


@always_inline
def source[transposed: Bool, stride: Int, padding: Int, dilation: Int](at: Int, tap: Int, size: Int) -> Int:
    """The element of the image that a tap reads for an element of the result, or -1."""
    var place: Int
    comptime if transposed:
        place = at + padding - tap * dilation
        if place < 0 or place % stride != 0:
            return -1
        place //= stride
    else:
        place = at * stride - padding + tap * dilation
    return place if place >= 0 and place < size else -1
