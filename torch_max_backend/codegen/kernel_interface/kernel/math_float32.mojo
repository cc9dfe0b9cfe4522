"""Elementary functions of float32, in vectors; coefficients by tests/codegen/polynomials.py."""
from vectors import *
from .comparison import *
from .constants import *
from .math_float64 import *


@always_inline("nodebug")
def scaled_exp[w: Int](x: Vec[f32, w], biases: Vec[f32, w]) -> Vec[f32, w]:
    """`e^x` as `e^r * 2^n`; `biases` is 1.5 * 2^23 and the exponent biases of the two factors that 2^n is made of.

    Adding it rounds to an integer and leaves both exponents in the low bits. Two factors, so that results may be
    denormal, or infinite.
    """
    var high = const[f32, w](104.0)
    var low = const[f32, w](-104.0)
    var a = select(gt(x, high), high, select(lt(x, low), low, x))
    var t = fma(a, const[f32, w](1.44269502), biases)
    var n = neg(sub(t, biases))
    var r = fma(n, const[f32, w](-1.90465421e-09), fma(n, const[f32, w](0.693147182), a))
    var p = const[f32, w](0.00139505963)
    p = fma(p, r, const[f32, w](0.00836895313))
    p = fma(p, r, const[f32, w](0.041666206))
    p = fma(p, r, const[f32, w](0.166665182))
    p = fma(p, r, const[f32, w](0.5))
    var y = add(fma(mul(r, r), p, r), const[f32, w](1))
    var both = bitcast[u32](t)
    var one = shr_plain(both, const[u32, w](1))
    return mul(mul(y, power_of_two(one)), power_of_two(sub(both, one)))


@always_inline("nodebug")
def power_of_two[w: Int](biased: Vec[u32, w]) -> Vec[f32, w]:
    return bitcast[f32](shl_plain(biased, const[u32, w](23)))


@always_inline("nodebug")
def exp[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return scaled_exp(x, const[f32, w](12583166.0))


@always_inline("nodebug")
def exp2[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var biases = const[f32, w](12583166.0)
    var high = const[f32, w](130.0)
    var low = const[f32, w](-152.0)
    var a = select(gt(x, high), high, select(lt(x, low), low, x))
    var t = add(a, biases)
    var r = sub(a, sub(t, biases))
    var p = const[f32, w](0.00015476429)
    p = fma(p, r, const[f32, w](0.00134003686))
    p = fma(p, r, const[f32, w](0.00961800385))
    p = fma(p, r, const[f32, w](0.0555032752))
    p = fma(p, r, const[f32, w](0.240226507))
    p = fma(p, r, const[f32, w](0.693147182))
    var y = fma(p, r, const[f32, w](1))
    var both = bitcast[u32](t)
    var one = shr_plain(both, const[u32, w](1))
    return mul(mul(y, power_of_two(one)), power_of_two(sub(both, one)))


@always_inline("nodebug")
def expm1[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """`2 * ((e^r - 1) * h + (h - 1/2))` with `h = 2^(n-1)`, which neither overflows nor cancels."""
    var high = const[f32, w](89.0)
    var low = const[f32, w](-20.0)
    var bias = const[f32, w](12583038.0)
    var a = select(gt(x, high), high, select(lt(x, low), low, x))
    var t = fma(a, const[f32, w](1.44269502), bias)
    var n = neg(sub(t, bias))
    var r = fma(n, const[f32, w](-1.90465421e-09), fma(n, const[f32, w](0.693147182), a))
    var p = const[f32, w](0.000199142713)
    p = fma(p, r, const[f32, w](0.00139410631))
    p = fma(p, r, const[f32, w](0.00833327323))
    p = fma(p, r, const[f32, w](0.041666355))
    p = fma(p, r, const[f32, w](0.166666672))
    p = fma(p, r, const[f32, w](0.5))
    var h = power_of_two(bitcast[u32](t))
    var y = fma(fma(mul(r, r), p, r), h, sub(h, const[f32, w](0.5)))
    return copysign(add(y, y), x)


@always_inline("nodebug")
def tanh[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """`m / (m + 2)` with `m = e^(2|x|) - 1`."""
    var a = float_abs(x)
    var most = const[f32, w](15.0)
    a = select(gt(a, most), most, a)
    var m = expm1(add(a, a))
    return copysign(div_plain(m, add(m, const[f32, w](2))), x)


@always_inline("nodebug")
def sigmoid[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var one = const[f32, w](1)
    var e = exp(neg(float_abs(x)))
    return div_plain(select(lt(x, const[f32, w](0)), e, one), add(one, e))


@always_inline("nodebug")
def sinh[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var a = float_abs(x)
    var z = mul(a, a)
    var p = const[f32, w](2.8174818e-06)
    p = fma(p, z, const[f32, w](0.000198360605))
    p = fma(p, z, const[f32, w](0.00833335053))
    p = fma(p, z, const[f32, w](0.166666672))
    var near = fma(mul(a, z), p, a)
    var e = scaled_exp(a, const[f32, w](12583165.0))
    var far = sub(e, div_plain(const[f32, w](0.25), e))
    return copysign(select(lt(a, const[f32, w](1)), near, far), x)


@always_inline("nodebug")
def cosh[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var e = scaled_exp(float_abs(x), const[f32, w](12583165.0))
    return add(e, div_plain(const[f32, w](0.25), e))


@always_inline("nodebug")
def exponent_of[w: Int](x: Vec[f32, w]) -> Vec[i32, w]:
    """The bits of `x` over those of the root of 1/2: the exponent of `x = m * 2^e`, m from there to the root of 2, and m.
    """
    return sub(bitcast[i32](x), const[i32, w](0x3F3504F3))


@always_inline("nodebug")
def fraction_of[w: Int](bits: Vec[i32, w]) -> Vec[f32, w]:
    """`m - 1`."""
    var m = add(bit_and(bits, const[i32, w](0x7FFFFF)), const[i32, w](0x3F3504F3))
    return sub(bitcast[f32](m), const[f32, w](1))


@always_inline("nodebug")
def log_of_near_one[w: Int](f: Vec[f32, w], rest: Vec[f32, w]) -> Vec[f32, w]:
    """`log(1 + f) + rest`, where `rest` is small."""
    var p = const[f32, w](0.0691943541)
    p = fma(p, f, const[f32, w](-0.117870808))
    p = fma(p, f, const[f32, w](0.118694715))
    p = fma(p, f, const[f32, w](-0.123846896))
    p = fma(p, f, const[f32, w](0.142192572))
    p = fma(p, f, const[f32, w](-0.166692451))
    p = fma(p, f, const[f32, w](0.200021908))
    p = fma(p, f, const[f32, w](-0.249999866))
    p = fma(p, f, const[f32, w](0.333333105))
    var s = mul(f, f)
    return add(f, fma(s, const[f32, w](-0.5), fma(mul(s, f), p, rest)))


@always_inline("nodebug")
def log_limits[w: Int](x: Vec[f32, w], r: Vec[f32, w]) -> Vec[f32, w]:
    """`r`, the logarithm of `x`, but where `x` is zero, negative, infinite or no number."""
    var zero = const[f32, w](0)
    var y = select(lt(x, infinity[f32, w]()), r, x)
    y = select(lt(x, zero), not_a_number[f32, w](), y)
    return select(eq(x, zero), neg(infinity[f32, w]()), y)


@always_inline("nodebug")
def normal_of[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """`x`, times 2^23 if it is denormal."""
    return select(lt(x, const[f32, w](1.17549435e-38)), mul(x, const[f32, w](8388608)), x)


@always_inline("nodebug")
def whole_exponent[w: Int](x: Vec[f32, w], bits: Vec[i32, w]) -> Vec[f32, w]:
    """The exponent for `bits = exponent_of(normal_of(x))`."""
    var e = cast_plain[f32](shr_plain(bits, const[i32, w](23)))
    return select(lt(x, const[f32, w](1.17549435e-38)), sub(e, const[f32, w](23)), e)


@always_inline("nodebug")
def log[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var bits = exponent_of(normal_of(x))
    var e = whole_exponent(x, bits)
    var y = log_of_near_one(fraction_of(bits), mul(e, const[f32, w](-1.90465421e-09)))
    return log_limits(x, fma(e, const[f32, w](0.693147182), y))


@always_inline("nodebug")
def log2[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var bits = exponent_of(normal_of(x))
    var y = log_of_near_one(fraction_of(bits), const[f32, w](0))
    var r = fma(y, const[f32, w](1.44269502), fma(y, const[f32, w](1.92596303e-08), whole_exponent(x, bits)))
    return log_limits(x, r)


@always_inline("nodebug")
def log10[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var bits = exponent_of(normal_of(x))
    var e = whole_exponent(x, bits)
    var y = log_of_near_one(fraction_of(bits), const[f32, w](0))
    var r = fma(e, const[f32, w](-1.43209888e-08), mul(y, const[f32, w](0.434294492)))
    return log_limits(x, fma(e, const[f32, w](0.30103001), r))


@always_inline("nodebug")
def log1p[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """The logarithm of the rounded `1 + x`, and of what the rounding lost."""
    var one = const[f32, w](1)
    var zero = const[f32, w](0)
    var u = add(one, x)
    var bits = exponent_of(u)
    var exponent = shr_plain(bits, const[i32, w](23))
    var e = cast_plain[f32](exponent)
    var lost = select(gt(x, one), sub(one, sub(u, x)), sub(x, sub(u, one)))
    lost = select(gt(x, const[f32, w](16777216)), zero, lost)
    var down = power_of_two(sub(const[u32, w](127), bitcast[u32](exponent)))
    var f = select(eq(e, zero), x, fma(lost, down, fraction_of(bits)))
    var y = log_of_near_one(f, mul(e, const[f32, w](-1.90465421e-09)))
    return select(eq(x, zero), x, log_limits(u, fma(e, const[f32, w](0.693147182), y)))


@always_inline("nodebug")
def quarter_turns[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """`x` in quarters of a turn, rounded, plus 1.5 * 2^23: the low bits are the integer."""
    return fma(x, const[f32, w](0.636619747), const[f32, w](12582912.0))


@always_inline("nodebug")
def rest_of_turns[w: Int](x: Vec[f32, w], turns: Vec[f32, w]) -> Vec[f32, w]:
    """`x` less its quarter turns: the quarter in three parts, and the rounding of the second made good."""
    var n = neg(sub(turns, const[f32, w](12582912.0)))
    var a = fma(n, const[f32, w](1.57079637), x)
    var b = fma(n, const[f32, w](-4.37113883e-08), a)
    var lost = fma(n, const[f32, w](-4.37113883e-08), sub(a, b))
    return add(b, fma(n, const[f32, w](-1.71512451e-15), lost))


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
def many_turns[w: Int](x: Vec[f32, w]) -> Bool:
    """Whether a lane is too large for `rest_of_turns`."""
    return any_lane(gt(float_abs(x), const[f32, w](100000)))


@always_inline("nodebug")
def sin[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    if many_turns(x):
        return libm["sinf"](x)
    return select(eq(x, const[f32, w](0)), x, sine_from(x, const[u32, w](0)))


@always_inline("nodebug")
def cos[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    if many_turns(x):
        return libm["cosf"](x)
    return sine_from(x, const[u32, w](1))


@always_inline("nodebug")
def tan[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    if many_turns(x):
        return libm["tanf"](x)
    var turns = quarter_turns(x)
    var r = rest_of_turns(x, turns)
    var z = mul(r, r)
    var s = sin_near_zero(r, z)
    var c = cos_near_zero(z)
    var odd = ne(bit_and(bitcast[u32](turns), const[u32, w](1)), const[u32, w](0))
    var y = div_plain(select(odd, neg(c), s), select(odd, s, c))
    return select(eq(x, const[f32, w](0)), x, y)


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
def atan2[w: Int](y: Vec[f32, w], x: Vec[f32, w]) -> Vec[f32, w]:
    var a = float_abs(x)
    var b = float_abs(y)
    var zero = const[f32, w](0)
    var steep = gt(b, a)
    var t = div_plain(select(steep, a, b), select(steep, b, a))
    t = select(eq(b, zero), zero, select(eq(a, b), const[f32, w](1), t))
    var r = atan_to_one(t)
    r = select(steep, from_right_angle(r), r)
    var left = lt(copysign(const[f32, w](1), x), zero)
    r = select(left, sub(const[f32, w](3.14159274), add(r, const[f32, w](8.74227766e-08))), r)
    return select(bit_or(is_nan(x), is_nan(y)), add(x, y), copysign(r, y))


@always_inline("nodebug")
def asin_to_half[w: Int](t: Vec[f32, w], z: Vec[f32, w]) -> Vec[f32, w]:
    var p = const[f32, w](0.0375367217)
    p = fma(p, z, const[f32, w](0.0144262705))
    p = fma(p, z, const[f32, w](0.031810198))
    p = fma(p, z, const[f32, w](0.0445167981))
    p = fma(p, z, const[f32, w](0.0750050396))
    p = fma(p, z, const[f32, w](0.166666597))
    return fma(mul(t, z), p, t)


@always_inline("nodebug")
def asin[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var half = const[f32, w](0.5)
    var a = float_abs(x)
    var far = gt(a, half)
    var z = select(far, fma(a, const[f32, w](-0.5), half), mul(a, a))
    var y = asin_to_half(select(far, sqrt(z), a), z)
    return copysign(select(far, from_right_angle(add(y, y)), y), x)


@always_inline("nodebug")
def acos[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var half = const[f32, w](0.5)
    var a = float_abs(x)
    var far = gt(a, half)
    var z = select(far, fma(a, const[f32, w](-0.5), half), mul(a, a))
    var y = asin_to_half(select(far, sqrt(z), x), z)
    var twice = add(y, y)
    var left = sub(const[f32, w](3.14159274), add(twice, const[f32, w](8.74227766e-08)))
    var near_end = select(lt(x, const[f32, w](0)), left, twice)
    return select(far, near_end, from_right_angle(y))


@always_inline("nodebug")
def erf[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """A polynomial below 1; above, 1 less the exponential of one."""
    var a = float_abs(x)
    var most = const[f32, w](4.0)
    var t = select(gt(a, most), most, a)
    var z = mul(t, t)
    var near = const[f32, w](7.8858604e-05)
    near = fma(near, z, const[f32, w](-0.000801994756))
    near = fma(near, z, const[f32, w](0.0051894444))
    near = fma(near, z, const[f32, w](-0.0268544015))
    near = fma(near, z, const[f32, w](0.112835996))
    near = fma(near, z, const[f32, w](-0.37612626))
    near = fma(near, z, const[f32, w](0.128379166))
    near = fma(near, t, t)
    var l = const[f32, w](-2.16866774e-05)
    l = fma(l, t, const[f32, w](0.000441334269))
    l = fma(l, t, const[f32, w](-0.00420455076))
    l = fma(l, t, const[f32, w](0.0252082255))
    l = fma(l, t, const[f32, w](-0.108418524))
    l = fma(l, t, const[f32, w](-0.633219957))
    l = fma(l, t, const[f32, w](-1.12957835))
    l = fma(l, t, const[f32, w](0.000188034523))
    var far = sub(const[f32, w](1), exp(l))
    return copysign(select(lt(t, const[f32, w](1)), near, far), x)


@always_inline("nodebug")
def rsqrt[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return div_plain(const[f32, w](1), sqrt(x))


@always_inline("nodebug")
def pow[w: Int](x: Vec[f32, w], y: Vec[f32, w]) -> Vec[f32, w]:
    return cast_plain[f32](positive_pow(cast_plain[f64](x), cast_plain[f64](y)))


@always_inline("nodebug")
def hypot[w: Int](x: Vec[f32, w], y: Vec[f32, w]) -> Vec[f32, w]:
    var a = cast_plain[f64](x)
    var b = cast_plain[f64](y)
    var r = cast_plain[f32](sqrt(fma(a, a, mul(b, b))))
    return select(bit_or(is_inf(x), is_inf(y)), infinity[f32, w](), r)


@always_inline("nodebug")
def erfinv[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """By `l = -log(1 - x^2)`, in which it is smooth."""
    var one = const[f32, w](1)
    var a = float_abs(x)
    var l = neg(log(mul(sub(one, a), add(one, a))))
    var u = sub(l, const[f32, w](2.5))
    var near = const[f32, w](-8.59041727e-09)
    near = fma(near, u, const[f32, w](2.31843185e-08))
    near = fma(near, u, const[f32, w](4.63381213e-07))
    near = fma(near, u, const[f32, w](-3.46211527e-06))
    near = fma(near, u, const[f32, w](-4.95046606e-06))
    near = fma(near, u, const[f32, w](0.000218342218))
    near = fma(near, u, const[f32, w](-0.00125276379))
    near = fma(near, u, const[f32, w](-0.00417738408))
    near = fma(near, u, const[f32, w](0.246640295))
    near = fma(near, u, const[f32, w](1.50140941))
    var v = sub(sqrt(l), const[f32, w](3))
    var far = const[f32, w](-0.000126658022)
    far = fma(far, v, const[f32, w](5.55323313e-05))
    far = fma(far, v, const[f32, w](0.00124660181))
    far = fma(far, v, const[f32, w](-0.0036278998))
    far = fma(far, v, const[f32, w](0.00578709925))
    far = fma(far, v, const[f32, w](-0.0076344409))
    far = fma(far, v, const[f32, w](0.00943151303))
    far = fma(far, v, const[f32, w](1.00167477))
    far = fma(far, v, const[f32, w](2.83297706))
    var r = mul(select(lt(l, const[f32, w](5)), near, far), x)
    return select(eq(a, one), copysign(infinity[f32, w](), x), r)


@always_inline("nodebug")
def digamma[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return cast_plain[f32](digamma(cast_plain[f64](x)))


@always_inline("nodebug")
def asinh[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return libm["asinhf"](x)


@always_inline("nodebug")
def acosh[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return libm["acoshf"](x)


@always_inline("nodebug")
def atanh[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return libm["atanhf"](x)


@always_inline("nodebug")
def erfc[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return libm["erfcf"](x)


@always_inline("nodebug")
def lgamma[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return libm["lgammaf"](x)
