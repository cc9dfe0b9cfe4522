"""Bitwise operations and shifts of integers."""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.gpu.host import DeviceContext
from std.sys import bit_width_of
from std.utils.coord import Coord


@extensibility.register("tmb_bitwise")
struct Bitwise[operation: StaticString]:
    """`and`, `or` or `xor` of two tensors of one shape."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor,
        a: InputTensor[dtype=result.dtype, rank=result.rank, ...],
        b: InputTensor[dtype=result.dtype, rank=result.rank, ...],
        ctx: DeviceContext,
    ) raises:
        def element[width: Int](index: Coord[...]) {var a, var b} -> SIMD[result.dtype, width]:
            var x = a.load[width](index)
            var y = b.load[width](index)
            comptime if Self.operation == "and":
                return x & y
            elif Self.operation == "or":
                return x | y
            else:
                return x ^ y

        foreach[target=target](element, result, ctx)


@extensibility.register("tmb_bitwise_not")
struct BitwiseNot:
    """All bits inverted."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor,
        a: InputTensor[dtype=result.dtype, rank=result.rank, ...],
        ctx: DeviceContext,
    ) raises:
        def element[width: Int](index: Coord[...]) {var a} -> SIMD[result.dtype, width]:
            return ~a.load[width](index)

        foreach[target=target](element, result, ctx)


@extensibility.register("tmb_shift")
struct Shift[left: Bool]:
    """Shifts by `b` bits. As in torch, shifting by a negative count or by all bits leaves zeros, or the sign."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor,
        a: InputTensor[dtype=result.dtype, rank=result.rank, ...],
        b: InputTensor[dtype=result.dtype, rank=result.rank, ...],
        ctx: DeviceContext,
    ) raises:
        def element[width: Int](index: Coord[...]) {var a, var b} -> SIMD[result.dtype, width]:
            comptime V = SIMD[result.dtype, width]
            comptime last = V(bit_width_of[result.dtype]() - 1)
            var x = a.load[width](index)
            var count = b.load[width](index)
            var outside = count.lt(0) | count.gt(last)
            comptime if Self.left:
                return outside.select(V(0), x << outside.select(V(0), count))
            else:
                comptime if result.dtype.is_signed():
                    return x >> outside.select(last, count)
                else:
                    return outside.select(V(0), x >> outside.select(V(0), count))

        foreach[target=target](element, result, ctx)
