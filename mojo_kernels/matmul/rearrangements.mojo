"""Rearrangements around convolutions and matrix products."""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.gpu.host import DeviceContext
from std.utils.coord import Coord


@extensibility.register("tmb_unfold")
struct Unfold[
    kd: Int, kh: Int, kw: Int, sd: Int, sh: Int, sw: Int, pd: Int, ph: Int, pw: Int, dd: Int, dh: Int, dw: Int
]:
    """What every tap of a filter reads: `[A, B, D, H, W]` as `[A, taps, B * OD, OH, OW]`, zeros in the padding."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        columns: OutputTensor[rank=5, ...],
        image: InputTensor[dtype=columns.dtype, rank=5, ...],
        ctx: DeviceContext,
    ) raises:
        var planes = max(image.dim_size(1), 1)
        var depth = image.dim_size(2)
        var height = image.dim_size(3)
        var width = image.dim_size(4)
        var out_depth = columns.dim_size(2) // planes

        def element[
            lanes: Int
        ](at: Coord[...]) {var image, var depth, var height, var width, var out_depth} -> SIMD[columns.dtype, lanes]:
            var a = Int(at[0].value())
            var tap = Int(at[1].value())
            var plane = Int(at[2].value())
            var d = (plane % out_depth) * Self.sd - Self.pd + (tap // (Self.kh * Self.kw)) * Self.dd
            var h = Int(at[3].value()) * Self.sh - Self.ph + (tap // Self.kw % Self.kh) * Self.dh
            var w = Int(at[4].value()) * Self.sw - Self.pw + (tap % Self.kw) * Self.dw
            if d < 0 or d >= depth or h < 0 or h >= height or w < 0 or w >= width:
                return SIMD[columns.dtype, lanes](0)
            return SIMD[columns.dtype, lanes](image[a, plane // out_depth, d, h, w])

        foreach[target=target, simd_width=1](element, columns, ctx)


@extensibility.register("tmb_first_columns")
struct FirstColumns:
    """The leading columns of a matrix. It reads memory, so MAX cannot fold the cut into whatever made the matrix."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=2, ...],
        matrix: InputTensor[dtype=result.dtype, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        def element[lanes: Int](at: Coord[...]) {var matrix} -> SIMD[result.dtype, lanes]:
            return SIMD[result.dtype, lanes](matrix[Int(at[0].value()), Int(at[1].value())])

        foreach[target=target, simd_width=1](element, result, ctx)
