"""Hurwitz's zeta function and the incomplete gamma functions, in float64."""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.gpu.host import DeviceContext
from std.math import floor, sqrt
from std.utils.coord import Coord
from std.utils.numerics import inf, isinf, isnan, nan

from .float64 import F64, exp, log, log1p_minus, polynomial, power

comptime EPSILON: F64 = 1.1102230246251565e-16
comptime SQRT_TWO_PI: F64 = 2.5066282746310002


# -- Hurwitz's zeta function ---------------------------------------------------------------------------------------
def zeta(x: F64, q: F64) -> F64:
    """The sum of `(q + k)**-x` over k >= 0: some terms, and the rest by the formula of Euler and Maclaurin."""
    if x == 1:
        return inf[DType.float64]()
    if x < 1:
        return nan[DType.float64]()
    if q <= 0:
        if q == floor(q):
            return inf[DType.float64]()
        if x != floor(x):
            return nan[DType.float64]()
    var total = power(q, -x)
    var term = F64(0)
    var base = q
    var count = 0
    while count < 9 or base <= 9:
        count += 1
        base += 1
        term = power(base, -x)
        total += term
        if abs(term) < EPSILON * total:
            return total
    total += term * base / (x - 1) - 0.5 * term
    comptime factors: List[F64] = [
        0.08333333333333333, -0.001388888888888889, 3.306878306878307e-05, -8.267195767195768e-07,
        2.08767569878681e-08, -5.284190138687493e-10, 1.3382536530684679e-11, -3.3896802963225827e-13,
        8.586062056277845e-15, -2.174868698558062e-16, 5.5090028283602295e-18, -1.3954464685812522e-19,
    ]  # fmt: skip
    # Bernoulli's numbers over (2j)!, times the derivatives of odd order.
    var derivative = x * (term / base)
    comptime for j in range(12):
        comptime factor = factors[j]
        var step = derivative * factor
        total += step
        if abs(step / total) < EPSILON:
            return total
        derivative *= (x + F64(2 * j + 1)) * ((x + F64(2 * j + 2)) / (base * base))
    return total


@extensibility.register("tmb_zeta")
struct Zeta:
    """Hurwitz's zeta function."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[dtype=DType.float64, ...],
        x: InputTensor[dtype=DType.float64, rank=result.rank, ...],
        q: InputTensor[dtype=DType.float64, rank=result.rank, ...],
        ctx: DeviceContext,
    ) raises:
        def element[width: Int](index: Coord[...]) {var x, var q} -> SIMD[DType.float64, width]:
            var left = x.load[width](index)
            var right = q.load[width](index)
            var values = SIMD[DType.float64, width]()
            comptime for i in range(width):
                values[i] = zeta(left[i], right[i])
            return values

        foreach[target=target, simd_width=1](element, result, ctx)


# -- incomplete gamma functions ------------------------------------------------------------------------------------
def stirling(x: F64) -> F64:
    """What Stirling's formula for log(gamma(x)) leaves out, for x >= 10."""
    var y = 1 / x
    return y * polynomial[
        1.0 / 12, -1.0 / 360, 1.0 / 1260, -1.0 / 1680, 1.0 / 1188, -691.0 / 360360, 1.0 / 156, -3617.0 / 122400
    ](y * y)  # fmt: skip


def leading_factor(a: F64, x: F64) -> F64:
    """`x**a * e**-x / gamma(a + 1)`."""
    if a >= 10:
        return exp(a * log1p_minus(x / a - 1) - stirling(a)) / (SQRT_TWO_PI * sqrt(a))
    var product = a + 1
    comptime for k in range(2, 10):
        product *= a + F64(k)
    var big = a + 10
    var log_gamma = (big - 0.5) * log(big) - big + stirling(big)
    return exp(a * log(x) - x - log_gamma) * (product / SQRT_TWO_PI)


def lower_series(a: F64, x: F64) -> F64:
    """The lower function by its series, for x up to about a."""
    var term = F64(1)
    var total = F64(1)
    var n = a
    for _ in range(2000):
        n += 1
        term *= x / n
        total += term
        if not (term > EPSILON * total):
            break
    return total * leading_factor(a, x)


def upper_fraction(a: F64, x: F64) -> F64:
    """The upper function by its continued fraction, for x above 1.1 and a."""
    var b = x + 1 - a
    var c = F64(1e300)
    var d = 1 / b
    var value = d
    for i in range(1, 2000):
        var k = F64(i)
        var numerator = k * (a - k)
        b += 2
        d = 1 / (numerator * d + b)
        c = b + numerator / c
        var change = c * d
        value *= change
        if not (abs(change - 1) > 2 * EPSILON):
            break
    return value * a * leading_factor(a, x)


def ratio[upper: Bool](a: F64, x: F64) -> F64:
    """The lower or upper function by series and fraction."""
    if x > 1.1 and x > a:
        var value = upper_fraction(a, x)
        return value if upper else 1 - value
    var value = lower_series(a, x)
    return 1 - value if upper else value


def uniform[upper: Bool](a: F64, x: F64) -> F64:
    """Temme's uniform expansion, for a > 1000 and x within 15 percent of it."""
    var half_square = -log1p_minus(x / a - 1)
    var root = sqrt(2 * half_square)
    var eta = root if x >= a else -root
    comptime C0 = polynomial[
        -0.3333333333333333, 0.08333333333333333, -0.014814814814814815, 0.0011574074074074073,
        0.0003527336860670194, -0.0001787551440329218, 3.919263178522438e-05, -2.185448510679992e-06,
        -1.85406221071516e-06, 8.296711340953087e-07, -1.7665952736826078e-07, 6.707853543401498e-09,
    ]  # fmt: skip
    comptime C1 = polynomial[
        -0.001851851851851852, -0.003472222222222222, 0.0026455026455026454, -0.0009902263374485596,
        0.00020576131687242798, -4.018775720164609e-07, -1.8098550334489977e-05, 7.64916091608111e-06,
        -1.6120900894563446e-06,
    ]  # fmt: skip
    comptime C2 = polynomial[
        0.004133597883597883, -0.0026813271604938273, 0.0007716049382716049, 2.0093878600823047e-06,
        -0.0001073665322636516, 5.2923448829120125e-05, -1.2760635188618728e-05,
    ]  # fmt: skip
    comptime C3 = polynomial[
        0.0006494341563786008, 0.00022947209362139917, -0.0004691894943952557, 0.00026772063206283885,
        -7.561801671883977e-05,
    ]  # fmt: skip
    var series = C0(eta) + (C1(eta) + (C2(eta) + C3(eta) / a) / a) / a
    var rest = exp(-a * half_square) / (SQRT_TWO_PI * sqrt(a)) * series
    # erfc(z) is the upper function of 1/2 and z*z.
    var tail = 0.5 * ratio[True](0.5, a * half_square)
    var value = tail if (eta > 0) == upper else 1 - tail
    return value + rest if upper else value - rest


def incomplete_gamma[upper: Bool](a: F64, x: F64) -> F64:
    """The regularized lower or upper incomplete gamma function, at its limits as in torch."""
    comptime none = F64(0) if upper else F64(1)  # where all of the mass is below x
    if x < 0 or a < 0:
        return nan[DType.float64]()
    if a == 0:
        return none if x > 0 else nan[DType.float64]()
    if x == 0:
        return 1 - none
    if isinf(a):
        return nan[DType.float64]() if isinf(x) else 1 - none
    if isinf(x):
        return none
    if isnan(a) or isnan(x):
        return a + x
    if a > 1000 and abs(x - a) < 0.15 * a:
        return uniform[upper](a, x)
    return ratio[upper](a, x)


@extensibility.register("tmb_incomplete_gamma")
struct IncompleteGamma[upper: Bool]:
    """The regularized incomplete gamma functions."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[dtype=DType.float64, ...],
        a: InputTensor[dtype=DType.float64, rank=result.rank, ...],
        x: InputTensor[dtype=DType.float64, rank=result.rank, ...],
        ctx: DeviceContext,
    ) raises:
        def element[width: Int](index: Coord[...]) {var a, var x} -> SIMD[DType.float64, width]:
            var left = a.load[width](index)
            var right = x.load[width](index)
            var values = SIMD[DType.float64, width]()
            comptime for i in range(width):
                values[i] = incomplete_gamma[Self.upper](left[i], right[i])
            return values

        foreach[target=target, simd_width=1](element, result, ctx)
