"""Angles. float32: in vectors, but for the C library beyond 100,000. float64: by the C library.

Coefficients by tests/codegen/polynomials.py.
"""
from vectors import *
from .constants import *
from .comparison import *


@always_inline("nodebug")
def quarter_turns[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """`x` in quarters of a turn, rounded, plus 1.5 * 2^23: the low bits are the integer."""
    return fma(x, const[f32, w](0.636619747), const[f32, w](12582912.0))


@always_inline("nodebug")
def rest_of_turns[w: Int](x: Vec[f32, w], turns: Vec[f32, w]) -> Vec[f32, w]:
    """`x` less its quarter turns: the quarter in three parts, of which the first leaves no error."""
    var n = neg(sub(turns, const[f32, w](12582912.0)))
    var a = fma(n, const[f32, w](1.57079637), x)
    return fma(n, const[f32, w](-1.71512451e-15), fma(n, const[f32, w](-4.37113883e-08), a))


@always_inline("nodebug")
def sin_near_zero[w: Int](r: Vec[f32, w], z: Vec[f32, w]) -> Vec[f32, w]:
    var p = const[f32, w](2.71825661e-06)
    p = fma(p, z, const[f32, w](-0.000198393289))
    p = fma(p, z, const[f32, w](0.00833332911))
    p = fma(p, z, const[f32, w](-0.166666672))
    return fma(mul(r, z), p, r)


@always_inline("nodebug")
def cos_near_zero[w: Int](z: Vec[f32, w]) -> Vec[f32, w]:
    var p = const[f32, w](-2.72103279e-07)
    p = fma(p, z, const[f32, w](2.47995231e-05))
    p = fma(p, z, const[f32, w](-0.00138888834))
    p = fma(p, z, const[f32, w](0.0416666679))
    return add(const[f32, w](1), fma(mul(z, z), p, mul(z, const[f32, w](-0.5))))


@always_inline("nodebug")
def sine_from[w: Int](x: Vec[f32, w], quarters: Vec[u32, w]) -> Vec[f32, w]:
    """The sine of `x` and that many quarter turns more."""
    var turns = quarter_turns(x)
    var r = rest_of_turns(x, turns)
    var z = mul(r, r)
    var q = add(bitcast[u32](turns), quarters)
    var odd = ne(bit_and(q, const[u32, w](1)), const[u32, w](0))
    var y = bitcast[u32](select(odd, cos_near_zero(z), sin_near_zero(r, z)))
    return bitcast[f32](bit_xor(y, shl_plain(bit_and(q, const[u32, w](2)), const[u32, w](30))))


@always_inline("nodebug")
def many_turns[w: Int](x: Vec[f32, w]) -> Vec[boolean, w]:
    """Where `x` is too large for `rest_of_turns`."""
    return gt(float_abs(x), const[f32, w](100000))


@always_inline("nodebug")
def sin[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var y = select(eq(x, const[f32, w](0)), x, sine_from(x, const[u32, w](0)))
    if any_lane(many_turns(x)):
        y = select(many_turns(x), libm["sinf"](x), y)
    return y


@always_inline("nodebug")
def sin[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["sin"](x)


@always_inline("nodebug")
def cos[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var y = sine_from(x, const[u32, w](1))
    if any_lane(many_turns(x)):
        y = select(many_turns(x), libm["cosf"](x), y)
    return y


@always_inline("nodebug")
def cos[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["cos"](x)


@always_inline("nodebug")
def tan[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var turns = quarter_turns(x)
    var r = rest_of_turns(x, turns)
    var z = mul(r, r)
    var s = sin_near_zero(r, z)
    var c = cos_near_zero(z)
    var odd = ne(bit_and(bitcast[u32](turns), const[u32, w](1)), const[u32, w](0))
    var y = div_plain(select(odd, neg(c), s), select(odd, s, c))
    y = select(eq(x, const[f32, w](0)), x, y)
    if any_lane(many_turns(x)):
        y = select(many_turns(x), libm["tanf"](x), y)
    return y


@always_inline("nodebug")
def tan[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["tan"](x)


@always_inline("nodebug")
def atan_to_one[w: Int](t: Vec[f32, w]) -> Vec[f32, w]:
    var z = mul(t, t)
    var p = const[f32, w](-0.00182993768)
    p = fma(p, z, const[f32, w](0.0110770445))
    p = fma(p, z, const[f32, w](-0.0314801037))
    p = fma(p, z, const[f32, w](0.0582601726))
    p = fma(p, z, const[f32, w](-0.0842103884))
    p = fma(p, z, const[f32, w](0.10958153))
    p = fma(p, z, const[f32, w](-0.142653644))
    p = fma(p, z, const[f32, w](0.199986517))
    p = fma(p, z, const[f32, w](-0.333333015))
    return fma(mul(t, z), p, t)


@always_inline("nodebug")
def from_right_angle[w: Int](y: Vec[f32, w]) -> Vec[f32, w]:
    """A quarter turn less `y`."""
    return sub(const[f32, w](1.57079637), add(y, const[f32, w](4.37113883e-08)))


@always_inline("nodebug")
def atan[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var a = float_abs(x)
    var steep = gt(a, const[f32, w](1))
    var y = atan_to_one(select(steep, div_plain(const[f32, w](1), a), a))
    return copysign(select(steep, from_right_angle(y), y), x)


@always_inline("nodebug")
def atan[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["atan"](x)


@always_inline("nodebug")
def atan2[w: Int](y: Vec[f32, w], x: Vec[f32, w]) -> Vec[f32, w]:
    var a = float_abs(x)
    var b = float_abs(y)
    var zero = const[f32, w](0)
    var steep = gt(b, a)
    var t = div_plain(select(steep, a, b), select(steep, b, a))
    t = select(eq(b, zero), zero, select(eq(a, b), const[f32, w](1), t))
    var r = atan_to_one(t)
    var left = lt(copysign(const[f32, w](1), x), zero)
    var other = select(left, sub(const[f32, w](3.14159274), add(r, const[f32, w](8.74227766e-08))), r)
    r = select(steep, from_right_angle(select(left, neg(r), r)), other)
    return select(bit_or(is_nan(x), is_nan(y)), add(x, y), copysign(r, y))


@always_inline("nodebug")
def atan2[w: Int](y: Vec[f64, w], x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["atan2"](y, x)


@always_inline("nodebug")
def asin_near_zero[w: Int](t: Vec[f32, w], z: Vec[f32, w]) -> Vec[f32, w]:
    var p = const[f32, w](0.0556702167)
    p = fma(p, z, const[f32, w](-0.0135290185))
    p = fma(p, z, const[f32, w](0.0328780897))
    p = fma(p, z, const[f32, w](0.0285064336))
    p = fma(p, z, const[f32, w](0.0448178463))
    p = fma(p, z, const[f32, w](0.0749923661))
    p = fma(p, z, const[f32, w](0.166666776))
    return fma(mul(t, z), p, t)


@always_inline("nodebug")
def asin[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var half = const[f32, w](0.5)
    var a = float_abs(x)
    var far = gt(a, const[f32, w](0.6))
    var z = select(far, fma(a, const[f32, w](-0.5), half), mul(a, a))
    var y = asin_near_zero(select(far, sqrt(z), a), z)
    return copysign(select(far, from_right_angle(add(y, y)), y), x)


@always_inline("nodebug")
def asin[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["asin"](x)


@always_inline("nodebug")
def acos[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var half = const[f32, w](0.5)
    var a = float_abs(x)
    var far = gt(a, const[f32, w](0.6))
    var z = select(far, fma(a, const[f32, w](-0.5), half), mul(a, a))
    var y = asin_near_zero(select(far, sqrt(z), x), z)
    var twice = add(y, y)
    var left = sub(const[f32, w](3.14159274), add(twice, const[f32, w](8.74227766e-08)))
    var near_end = select(lt(x, const[f32, w](0)), left, twice)
    return select(far, near_end, from_right_angle(y))


@always_inline("nodebug")
def acos[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["acos"](x)
