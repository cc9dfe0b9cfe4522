"""Elementary functions in float64 that have sixteen digits on every device.

Mojo's own exp has nine digits in float64, and its sin, cos and acos do not compile for GPUs there.
"""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.gpu.host import DeviceContext
from std.math import floor, round, sqrt
from std.utils.coord import Coord
from std.utils.numerics import inf, isinf, isnan, nan

comptime F64 = Float64
comptime PI: F64 = 3.141592653589793


def polynomial[*coefficients: F64](x: F64) -> F64:
    """Horner's rule; the constant term comes first."""
    comptime count = len(coefficients)
    var value: F64 = coefficients[count - 1]
    comptime for i in range(1, count):
        value = value.fma(x, coefficients[count - 1 - i])
    return value


def power_of_two(exponent: Int64) -> F64:
    """`2**exponent` for -1022 to 1023."""
    return F64(from_bits=((exponent + 1023) << 52).cast[DType.uint64]())


def exp(x: F64) -> F64:
    """The exponential function."""
    if isnan(x):
        return x
    if x > 709.79:
        return inf[DType.float64]()
    if x < -745.2:
        return 0
    var turns = round(x * 1.4426950408889634)
    # log(2) in two parts, the first of which has few enough bits for exact products.
    var rest = turns.fma(-0.6931471803691238, x)
    rest = turns.fma(-1.9082149292705877e-10, rest)
    var value = polynomial[
        1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880,
        1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800,
    ](rest)  # fmt: skip
    var half = turns.cast[DType.int64]() >> 1
    return value * power_of_two(half) * power_of_two(turns.cast[DType.int64]() - half)


def atanh_tail(s: F64) -> F64:
    """`atanh(s)/s - 1` for `abs(s)` below 0.18."""
    var z = s * s
    return z * polynomial[
        1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23
    ](z)  # fmt: skip


def log(x: F64) -> F64:
    """The natural logarithm of a normal number that is not negative."""
    if x == 0:
        return -inf[DType.float64]()
    if isnan(x) or isinf(x):
        return x
    var bits = x.to_bits().cast[DType.int64]()
    var exponent = (bits >> 52) - 1023
    var m = F64(from_bits=((bits & 0xFFFFFFFFFFFFF) | (1023 << 52)).cast[DType.uint64]())
    if m > 1.4142135623730951:
        m *= 0.5
        exponent += 1
    var s = (m - 1) / (m + 1)
    var near = (s + s).fma(atanh_tail(s), s + s)
    var e = exponent.cast[DType.float64]()
    return e.fma(0.6931471803691238, e.fma(1.9082149292705877e-10, near))


def log1p_minus(x: F64) -> F64:
    """`log(1 + x) - x` without cancellation, for x > -1."""
    if abs(x) > 0.3:
        return log(1 + x) - x
    var s = x / (2 + x)
    return (s + s) * atanh_tail(s) - x * s


def power(base: F64, exponent: F64) -> F64:
    """`base**exponent`; a negative base takes a whole exponent, the base 0 a positive one."""
    var size = abs(base)
    if size == 1 and not isnan(exponent):
        size = 1
    else:
        size = exp(exponent * log(size))
    var half = exponent * 0.5
    return -size if base < 0 and floor(half) != half else size


def sine(x: F64, quarter_turns: Int) -> F64:
    """The sine of `x + quarter_turns * pi / 2`."""
    if isnan(x) or isinf(x):
        return nan[DType.float64]()
    var rest = x
    var quadrant = F64(quarter_turns)
    # The second round is for arguments whose number of quarter turns has more digits than a float64.
    comptime for _ in range(2):
        var turns = round(rest * 0.6366197723675814)
        rest = turns.fma(-1.5707963267948966, rest)
        rest = turns.fma(-6.123233995736766e-17, rest)
        rest = turns.fma(1.4973849048591833e-33, rest)
        quadrant += turns - 4 * floor(turns * 0.25)
    quadrant -= 4 * floor(quadrant * 0.25)
    var z = rest * rest
    var value: F64
    if quadrant == 1 or quadrant == 3:
        value = polynomial[
            1.0, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200,
            1.0 / 20922789888000, -1.0 / 6402373705728000,
        ](z)  # fmt: skip
    else:
        value = (rest * z).fma(
            polynomial[
                -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800,
                -1.0 / 1307674368000, 1.0 / 355687428096000, -1.0 / 121645100408832000,
            ](z),
            rest,
        )  # fmt: skip
    return -value if quadrant >= 2 else value


def small_asin(x: F64) -> F64:
    """The inverse sine for `abs(x)` up to 0.5."""
    return x * polynomial[
        1.0, 0.16666666666666796, 0.07499999999966611, 0.04464285717686322, 0.030381942642327187,
        0.022372216106072148, 0.017351600625343435, 0.01398088299217101, 0.011398850408440755,
        0.010778675120995992, 0.0037180577483250537, 0.02166805886905636, -0.02093065831518245,
        0.03257934796692842,
    ](x * x)  # fmt: skip


def acos(x: F64) -> F64:
    """The inverse cosine; NaN outside of [-1, 1]."""
    if not (abs(x) <= 1):
        return nan[DType.float64]()
    if abs(x) <= 0.5:
        return PI / 2 - small_asin(x)
    var angle = 2 * small_asin(sqrt(0.5 * (1 - abs(x))))
    return PI - angle if x < 0 else angle


@extensibility.register("tmb_float64")
struct ElementaryFloat64[function: StaticString]:
    """`sin`, `cos` or `acos`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[dtype=DType.float64, ...],
        x: InputTensor[dtype=DType.float64, rank=result.rank, ...],
        ctx: DeviceContext,
    ) raises:
        def element[width: Int](index: Coord[...]) {var x} -> SIMD[DType.float64, width]:
            var values = x.load[width](index)
            comptime for i in range(width):
                comptime if Self.function == "acos":
                    values[i] = acos(values[i])
                else:
                    values[i] = sine(values[i], 1 if Self.function == "cos" else 0)
            return values

        foreach[target=target, simd_width=1](element, result, ctx)
