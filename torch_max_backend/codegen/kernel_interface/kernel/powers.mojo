"""Powers and roots.

Coefficients by tests/codegen/polynomials.py.
"""
from vectors import *
from .constants import *
from .comparison import *
from .exponential import *
from .logarithm import *


@always_inline("nodebug")
def real_power[w: Int](x: Vec[f64, w], y: Vec[f64, w]) -> Vec[f64, w]:
    """`x^y`, with the bits that float32 needs, and its special cases."""
    var zero = const[f64, w](0)
    var one = const[f64, w](1)
    var a = float_abs(x)
    var r = exp(mul(y, log(a)))
    var half = mul(y, const[f64, w](0.5))
    var whole = eq(trunc(y), y)
    var odd = bit_and(whole, ne(trunc(half), half))
    var negative = lt(copysign(one, x), zero)
    r = select(bit_and(negative, odd), neg(r), r)
    var impossible = bit_and(bit_and(lt(x, zero), is_finite(x)), ne(trunc(y), y))
    r = select(impossible, not_a_number[f64, w](), r)
    r = select(bit_and(eq(a, one), is_inf(y)), one, r)
    return select(bit_or(eq(x, one), eq(y, zero)), one, r)


@always_inline("nodebug")
def power[w: Int](x: Vec[f64, w], y: Vec[f64, w]) -> Vec[f64, w]:
    return libm["pow"](x, y)


@always_inline("nodebug")
def power[w: Int](x: Vec[f32, w], y: Vec[f32, w]) -> Vec[f32, w]:
    if on_gpu():
        return libm["powf"](x, y)
    return cast_plain[f32](real_power(cast_plain[f64](x), cast_plain[f64](y)))


@always_inline("nodebug")
def integer_power[d: DType, w: Int](x: Vec[d, w], y: Vec[d, w]) -> Vec[d, w]:
    """Squares, by the bits of the exponent; with a negative one 0, but for 1 and -1."""
    var zero = const[d, w](0)
    var one = const[d, w](1)
    var negative = lt(y, zero)
    var left = select(negative, zero, y)
    var square = x
    var result = one
    while any_lane(ne(left, zero)):
        result = select(ne(bit_and(left, one), zero), mul(result, square), result)
        square = mul(square, square)
        left = shr_plain(left, one)
    var is_unit = bit_or(eq(x, one), eq(x, sub(zero, one)))
    var of_unit = select(ne(bit_and(y, one), zero), x, one)
    return select(negative, select(is_unit, of_unit, zero), result)


@always_inline("nodebug")
def rsqrt[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return rsqrt_nearly(x)


@always_inline("nodebug")
def rsqrt[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return div_plain(const[f64, w](1), sqrt(x))


@always_inline("nodebug")
def hypot[w: Int](x: Vec[f32, w], y: Vec[f32, w]) -> Vec[f32, w]:
    if on_gpu():
        return libm["hypotf"](x, y)
    var a = cast_plain[f64](x)
    var b = cast_plain[f64](y)
    var r = cast_plain[f32](sqrt(fma(a, a, mul(b, b))))
    return select(bit_or(is_inf(x), is_inf(y)), infinity[f32, w](), r)


@always_inline("nodebug")
def hypot[w: Int](x: Vec[f64, w], y: Vec[f64, w]) -> Vec[f64, w]:
    return libm["hypot"](x, y)
