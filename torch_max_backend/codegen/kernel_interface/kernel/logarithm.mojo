"""Logarithms, and inverse hyperbolic functions by the C library.

Coefficients by tests/codegen/polynomials.py.
"""
from vectors import *
from .constants import *
from .exponential import *


@always_inline("nodebug")
def exponent_of[w: Int](x: Vec[f32, w]) -> Vec[i32, w]:
    """The bits of `x` over those of the root of 1/2: e and m of `x = m * 2^e`, with m from there to the root of 2."""
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
def log_by_quotient[w: Int](f: Vec[f32, w]) -> Vec[f32, w]:
    """`log(1 + f)`: with `s = f / (2 + f)` it is `f - s * (f - p s^2)`, in which what `s` is off by hardly counts."""
    var s = mul(f, reciprocal_nearly(add(f, const[f32, w](2))))
    var z = mul(s, s)
    var p = const[f32, w](0.298743427)
    p = fma(p, z, const[f32, w](0.399774551))
    p = fma(p, z, const[f32, w](0.666667759))
    return fma(neg(s), fma(neg(z), p, f), f)


@always_inline("nodebug")
def log_limits[w: Int](x: Vec[f32, w], r: Vec[f32, w]) -> Vec[f32, w]:
    """`r`, the logarithm of `x`, but where `x` is zero, negative, infinite or no number; on a GPU it is not denormal."""
    var zero = const[f32, w](0)
    if on_gpu():
        var nearly = log2_nearly(x)
        return select(lt(float_abs(nearly), const[f32, w](256)), r, nearly)
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
    var normal = normal_of(x)
    var bits = exponent_of(normal)
    var e = whole_exponent(x, bits)
    if on_gpu():
        return log_limits(normal, fma(e, const[f32, w](0.693147182), log_by_quotient(fraction_of(bits))))
    var y = log_of_near_one(fraction_of(bits), mul(e, const[f32, w](-1.90465421e-09)))
    return log_limits(x, fma(e, const[f32, w](0.693147182), y))


@always_inline("nodebug")
def log[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    """`log(m * 2^e)` with `m = (1 + s) / (1 - s)`."""
    var zero = const[f64, w](0)
    var tiny = lt(x, const[f64, w](2.2250738585072014e-308))
    var normal = select(tiny, mul(x, const[f64, w](4503599627370496.0)), x)
    var bits = sub(bitcast[i64](normal), const[i64, w](0x3FE6A09E667F3BCD))
    var e = cast_plain[f64](shr_plain(bits, const[i64, w](52)))
    e = select(tiny, sub(e, const[f64, w](52)), e)
    var m = add(bit_and(bits, const[i64, w](0xFFFFFFFFFFFFF)), const[i64, w](0x3FE6A09E667F3BCD))
    var f = sub(bitcast[f64](m), const[f64, w](1))
    var s = div_plain(f, add(f, const[f64, w](2)))
    var z = mul(s, s)
    var p = const[f64, w](0.14798873156070433)
    p = fma(p, z, const[f64, w](0.15313779105300063))
    p = fma(p, z, const[f64, w](0.18183574061251384))
    p = fma(p, z, const[f64, w](0.2222219840436203))
    p = fma(p, z, const[f64, w](0.2857142874382905))
    p = fma(p, z, const[f64, w](0.39999999999409286))
    p = fma(p, z, const[f64, w](0.6666666666666735))
    # 2s is f - s * f; the second term is small beside the first
    var y = sub(f, fma(e, const[f64, w](-2.3190468138462996e-17), mul(s, fma(neg(z), p, f))))
    var r = fma(e, const[f64, w](0.6931471805599453), y)
    r = select(lt(x, infinity[f64, w]()), r, x)
    r = select(lt(x, zero), not_a_number[f64, w](), r)
    return select(eq(x, zero), neg(infinity[f64, w]()), r)


@always_inline("nodebug")
def log2[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var normal = normal_of(x)
    var bits = exponent_of(normal)
    var y = log_of_near_one(fraction_of(bits), const[f32, w](0))
    var r = fma(y, const[f32, w](1.44269502), fma(y, const[f32, w](1.92596303e-08), whole_exponent(x, bits)))
    return log_limits(normal, r)


@always_inline("nodebug")
def log2[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["log2"](x)


@always_inline("nodebug")
def log10[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var normal = normal_of(x)
    var bits = exponent_of(normal)
    var e = whole_exponent(x, bits)
    var y = log_of_near_one(fraction_of(bits), const[f32, w](0))
    var r = fma(e, const[f32, w](-1.43209888e-08), mul(y, const[f32, w](0.434294492)))
    return log_limits(normal, fma(e, const[f32, w](0.30103001), r))


@always_inline("nodebug")
def log10[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["log10"](x)


@always_inline("nodebug")
def log1p[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """With `1 + x = (1 + f) * 2^e`, f is `x * 2^-e + (2^-e - 1)`: both parts are exact where they are large."""
    var u = add(const[f32, w](1), x)
    var bits = exponent_of(u)
    var shift = bit_and(bits, const[i32, w](-8388608))
    var down = bitcast[f32](sub(const[i32, w](0x40800000), shift))  # 4 * 2^-e, which is no denormal
    var part = bitcast[f32](sub(bitcast[i32](x), shift))
    var f = add(part, fma(down, const[f32, w](0.25), const[f32, w](-1)))
    if on_gpu():
        var r = fma(cast_plain[f32](shift), const[f32, w](8.26295832e-08), log_by_quotient(f))
        return copysign(log_limits(u, r), x)
    var e = cast_plain[f32](shr_plain(bits, const[i32, w](23)))
    var y = log_of_near_one(f, mul(e, const[f32, w](-1.90465421e-09)))
    return select(eq(x, const[f32, w](0)), x, log_limits(u, fma(e, const[f32, w](0.693147182), y)))


@always_inline("nodebug")
def log_nearly[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """To 18 bits: a polynomial near 1, where `log2_nearly` is right to fewer."""
    var small = log1p_near_zero(sub(x, const[f32, w](1)))
    var normal = mul(log2_of_all(x), const[f32, w](0.693147182))
    return select(lt(float_abs(sub(x, const[f32, w](1))), const[f32, w](0.125)), small, normal)


@always_inline("nodebug")
def log1p_nearly[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """As accurate as `log_nearly`."""
    var far = mul(log2_nearly(add(x, const[f32, w](1))), const[f32, w](0.693147182))
    return select(lt(float_abs(x), const[f32, w](0.125)), log1p_near_zero(x), far)


@always_inline("nodebug")
def log1p_near_zero[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var p = const[f32, w](0.204002113)
    p = fma(p, x, const[f32, w](-0.253322552))
    p = fma(p, x, const[f32, w](0.333303908))
    p = fma(p, x, const[f32, w](-0.499986863))
    return mul(x, fma(p, x, const[f32, w](1.00000004)))


@always_inline("nodebug")
def log1p[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["log1p"](x)


@always_inline("nodebug")
def asinh[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return libm["asinhf"](x)


@always_inline("nodebug")
def asinh[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["asinh"](x)


@always_inline("nodebug")
def acosh[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return libm["acoshf"](x)


@always_inline("nodebug")
def acosh[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["acosh"](x)


@always_inline("nodebug")
def atanh[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return libm["atanhf"](x)


@always_inline("nodebug")
def atanh[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["atanh"](x)
