"""Pointwise arithmetic that needs a loop, the bits of a float, or an error for a zero divisor."""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.gpu.host import DeviceContext
from std.math import trunc
from std.utils.coord import Coord
from std.utils.numerics import isinf, isnan, nan


def same_width_int[dtype: DType]() -> DType:
    """The signed integer that has the bits of the float `dtype`."""
    comptime if dtype == DType.float64:
        return DType.int64
    elif dtype == DType.float32:
        return DType.int32
    else:
        return DType.int16


def fmod[dtype: DType](x: Scalar[dtype], y: Scalar[dtype]) -> Scalar[dtype]:
    """The exact remainder of `x / y` with the sign of `x`, in float32 or float64."""
    var rest = abs(x)
    var divisor = abs(y)
    if isnan(x) or isnan(y) or isinf(x) or divisor == 0:
        return nan[dtype]()
    if rest < divisor:
        return x
    comptime if dtype == DType.float32:
        # The float64 quotient of two float32 numbers cannot round across an integer below 2**29, and the product fits.
        var wide = rest.cast[DType.float64]()
        var quotient = trunc(wide / divisor.cast[DType.float64]())
        if quotient < 536870912.0:
            rest = (wide - quotient * divisor.cast[DType.float64]()).cast[dtype]()
            return -rest if x < 0 else rest
    # Long division: every difference is exact, because step <= rest < 2 * step.
    var step = divisor
    while step <= rest * 0.5:
        step += step
    while step >= divisor and rest >= divisor:
        if rest >= step:
            rest -= step
        step *= 0.5
    return -rest if x < 0 or (x == 0 and 1 / x < 0) else rest


@extensibility.register("tmb_fmod")
struct FMod:
    """C's fmod."""

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
            var rest = SIMD[result.dtype, width]()
            comptime for i in range(width):
                rest[i] = fmod(x[i], y[i])
            return rest

        foreach[target=target, simd_width=1](element, result, ctx)


@extensibility.register("tmb_signbit")
struct SignBit:
    """Whether the sign bit of a float is set, that of a NaN too."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[dtype=DType.bool, ...],
        a: InputTensor[rank=result.rank, ...],
        ctx: DeviceContext,
    ) raises:
        def element[width: Int](index: Coord[...]) {var a} -> SIMD[result.dtype, width]:
            comptime bits = same_width_int[a.dtype]()
            var sign = a.load[width](index).to_bits().cast[bits]().lt(0)
            return rebind[SIMD[result.dtype, width]](sign)

        foreach[target=target](element, result, ctx)


@extensibility.register("tmb_nextafter")
struct NextAfter:
    """The neighbour of `a` towards `b`."""

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
            comptime I = same_width_int[result.dtype]()
            comptime lowest = Scalar[I].MIN
            var x = a.load[width](index)
            var y = b.load[width](index)
            var bits = x.to_bits().cast[I]()
            var goal = y.to_bits().cast[I]()
            # Numbers as integers in their order: negative floats count down from zero.
            var from_ = bits.lt(0).select(lowest - bits, bits)
            var to = goal.lt(0).select(lowest - goal, goal)
            var next = from_ + to.gt(from_).cast[I]() - to.lt(from_).cast[I]()
            var back = next.lt(0).select(lowest - next, next)
            var value = SIMD[result.dtype, width](from_bits=back.cast[_unsigned[I]()]())
            var none = isnan(x) | isnan(y)
            return none.select(x + y, (x.eq(y)).select(y, value))

        foreach[target=target](element, result, ctx)


def _unsigned[dtype: DType]() -> DType:
    comptime if dtype == DType.int64:
        return DType.uint64
    elif dtype == DType.int32:
        return DType.uint32
    else:
        return DType.uint16


@extensibility.register("tmb_integer_divide")
struct IntegerDivide[operation: StaticString]:
    """Quotients (`floor`, `trunc`) and remainders (`remainder`, `fmod`) of integers.

    On a CPU a zero divisor (`zeros` holds their number) is an error, as in torch; on a GPU, where torch defines no
    result, it counts as one.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor,
        a: InputTensor[dtype=result.dtype, rank=result.rank, ...],
        b: InputTensor[dtype=result.dtype, rank=result.rank, ...],
        zeros: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if target == "cpu":
            if zeros[0] != 0:
                raise Error("ZeroDivisionError: integer division or modulo by zero")

        def element[width: Int](index: Coord[...]) {var a, var b} -> SIMD[result.dtype, width]:
            comptime V = SIMD[result.dtype, width]
            var x = a.load[width](index)
            var y = b.load[width](index)
            # The quotient by -1 of the smallest integer traps on a CPU: it is a negation that wraps.
            var negate = y.lt(0) & (y + 1).eq(0)
            var divisor = (y.eq(0) | negate).select(V(1), y)
            var floor = negate.select(V(0) - x, x // divisor)
            var rest = x - floor * y
            var truncated = floor + (rest.ne(0) & (x.lt(0) ^ y.lt(0))).cast[result.dtype]()
            comptime if Self.operation == "floor":
                return floor
            elif Self.operation == "trunc":
                return truncated
            elif Self.operation == "remainder":
                return rest
            else:
                return x - truncated * y

        foreach[target=target](element, result, ctx)


@extensibility.register("tmb_integer_pow")
struct IntegerPow:
    """Integer powers that wrap around; a negative exponent leaves 0, but for the bases 1 and -1."""

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
            var powers = SIMD[result.dtype, width]()
            var bases = a.load[width](index)
            var exponents = b.load[width](index)
            comptime for i in range(width):
                var base = bases[i]
                var n = exponents[i]
                var power = Scalar[result.dtype](1)
                if n < 0:
                    if base + 1 == 0:
                        power = base if n & 1 != 0 else power
                    elif base != 1:
                        power = 0
                else:
                    while n > 0:
                        if n & 1 != 0:
                            power *= base
                        base *= base
                        n >>= 1
                powers[i] = power
            return powers

        foreach[target=target, simd_width=1](element, result, ctx)


@extensibility.register("tmb_gcd")
struct GCD:
    """The greatest common divisor, not negative."""

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
            var divisors = SIMD[result.dtype, width]()
            var left = a.load[width](index)
            var right = b.load[width](index)
            comptime for i in range(width):
                divisors[i] = gcd(left[i], right[i])
            return divisors

        foreach[target=target, simd_width=1](element, result, ctx)


def gcd[dtype: DType](x: Scalar[dtype], y: Scalar[dtype]) -> Scalar[dtype]:
    """Euclid's algorithm on sizes; the lowest integer, which has none, counts as itself."""
    var a = x if x >= 0 else 0 - x
    var b = y if y >= 0 else 0 - y
    while b != 0:
        # A remainder by -1 cannot occur: b is not negative, or it is the lowest integer.
        var rest = a - (a // b) * b
        a = b
        b = rest if rest >= 0 else 0 - rest
    return a
