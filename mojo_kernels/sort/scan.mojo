"""Scans that MAX has no op for, along the middle axis of `[outer, n, inner]`: one line after another.

The last output has an element per line; it drives the loop over them and is scratch.
"""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.gpu.host import DeviceContext
from std.math import exp, log1p
from std.utils.coord import Coord
from std.utils.numerics import isinf, isnan, min_or_neg_inf


@always_inline
def log_add_exp[
    dtype: DType
](x: Scalar[dtype], y: Scalar[dtype]) -> Scalar[dtype] where dtype.is_floating_point():
    """`log(exp(x) + exp(y))`; equal infinities stay."""
    if isnan(x) or isnan(y):
        return x + y
    var low = min(x, y)
    var high = max(x, y)
    if low == high and isinf(low):
        return low
    if isinf(high):
        return high
    return log1p(exp(low - high)) + high


@extensibility.register("tmb_scan")
struct Scan[operation: StaticString]:
    """The running product (`prod`) or logarithm of the sum of exponentials (`logsumexp`); 16-bit floats in float32."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        values: OutputTensor[rank=3, ...],
        lines: OutputTensor[dtype=DType.uint8, rank=2, ...],
        x: InputTensor[dtype=values.dtype, rank=3, ...],
        ctx: DeviceContext,
    ) raises:
        comptime wide = DType.float32 if values.dtype.is_half_float() else values.dtype
        var n = x.dim_size(1)

        def line[lanes: Int](at: Coord[...]) {var x, var values, var n} -> SIMD[DType.uint8, lanes]:
            var outer = Int(at[0].value())
            var inner = Int(at[1].value())
            var total = Scalar[wide](1)
            comptime if Self.operation == "logsumexp":
                total = min_or_neg_inf[wide]()
            for i in range(n):
                var element = x[outer, i, inner].cast[wide]()
                comptime if Self.operation == "prod":
                    total *= element
                elif wide.is_floating_point():
                    total = log_add_exp(element, total)
                values[outer, i, inner] = total.cast[values.dtype]()
            return SIMD[DType.uint8, lanes](0)

        foreach[target=target, simd_width=1](line, lines, ctx)


@extensibility.register("tmb_scan_extreme")
struct ScanExtreme[largest: Bool]:
    """The running maximum or minimum and its place: the last of equal elements, the last NaN once there is one."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        values: OutputTensor[rank=3, ...],
        indices: OutputTensor[dtype=DType.int64, rank=3, ...],
        lines: OutputTensor[dtype=DType.uint8, rank=2, ...],
        x: InputTensor[dtype=values.dtype, rank=3, ...],
        ctx: DeviceContext,
    ) raises:
        var n = x.dim_size(1)

        def line[lanes: Int](at: Coord[...]) {var x, var values, var indices, var n} -> SIMD[DType.uint8, lanes]:
            var outer = Int(at[0].value())
            var inner = Int(at[1].value())
            var place = 0
            var best = Scalar[values.dtype](0)
            for i in range(n):
                var element = x[outer, i, inner]
                var better = element <= best
                comptime if Self.largest:
                    better = element >= best
                if i == 0 or element != element or (best == best and better):
                    best = element
                    place = i
                values[outer, i, inner] = best
                indices[outer, i, inner] = Int64(place)
            return SIMD[DType.uint8, lanes](0)

        foreach[target=target, simd_width=1](line, lines, ctx)
