"""Elementary functions of float64: vectors where a float32 or a common kernel needs them, the C library elsewhere."""
from vectors import *
from .comparison import *
from .constants import *


@always_inline("nodebug")
def exp[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    """As in float32: see `scaled_exp` there."""
    var biases = const[f64, w](6755399441057790.0)
    var high = const[f64, w](750.0)
    var low = const[f64, w](-750.0)
    var a = select(gt(x, high), high, select(lt(x, low), low, x))
    var t = fma(a, const[f64, w](1.4426950408889634), biases)
    var n = neg(sub(t, biases))
    var r = fma(n, const[f64, w](2.3190468138462996e-17), fma(n, const[f64, w](0.6931471805599453), a))
    var p = const[f64, w](2.5117974596107363e-08)
    p = fma(p, r, const[f64, w](2.7631413666881514e-07))
    p = fma(p, r, const[f64, w](2.755721594928865e-06))
    p = fma(p, r, const[f64, w](2.4801489591056036e-05))
    p = fma(p, r, const[f64, w](0.0001984126991776926))
    p = fma(p, r, const[f64, w](0.0013888888947330548))
    p = fma(p, r, const[f64, w](0.00833333333330703))
    p = fma(p, r, const[f64, w](0.04166666666651433))
    p = fma(p, r, const[f64, w](0.166666666666667))
    p = fma(p, r, const[f64, w](0.5000000000000013))
    var y = add(fma(mul(r, r), p, r), const[f64, w](1))
    var both = bitcast[u64](t)
    var one = shr_plain(both, const[u64, w](1))
    var first = bitcast[f64](shl_plain(one, const[u64, w](52)))
    return mul(mul(y, first), bitcast[f64](shl_plain(sub(both, one), const[u64, w](52))))


@always_inline("nodebug")
def sigmoid[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    var one = const[f64, w](1)
    var e = exp(neg(float_abs(x)))
    return div_plain(select(lt(x, const[f64, w](0)), e, one), add(one, e))


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
def positive_pow[w: Int](x: Vec[f64, w], y: Vec[f64, w]) -> Vec[f64, w]:
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
    r = select(bit_and(bit_and(lt(x, zero), is_finite(x)), bit_xor(whole, const[boolean, w](1))), not_a_number[f64, w](), r)
    r = select(bit_and(eq(a, one), is_inf(y)), one, r)
    return select(bit_or(eq(x, one), eq(y, zero)), one, r)


@always_inline("nodebug")
def rsqrt[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return div_plain(const[f64, w](1), sqrt(x))


@always_inline("nodebug")
def erfinv[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    """An approximation, refined by two of Halley's steps on erfc, whose error is relative to the distance from 1."""
    var one = const[f64, w](1)
    var a = float_abs(x)
    var l = neg(log(mul(sub(one, a), add(one, a))))
    var u = sub(l, const[f64, w](2.5))
    var near = const[f64, w](-8.59041727e-09)
    near = fma(near, u, const[f64, w](2.31843185e-08))
    near = fma(near, u, const[f64, w](4.63381213e-07))
    near = fma(near, u, const[f64, w](-3.46211527e-06))
    near = fma(near, u, const[f64, w](-4.95046606e-06))
    near = fma(near, u, const[f64, w](0.000218342218))
    near = fma(near, u, const[f64, w](-0.00125276379))
    near = fma(near, u, const[f64, w](-0.00417738408))
    near = fma(near, u, const[f64, w](0.246640295))
    near = fma(near, u, const[f64, w](1.50140941))
    var root = sqrt(l)
    var v = sub(root, const[f64, w](3))
    var far = const[f64, w](-0.000126658022)
    far = fma(far, v, const[f64, w](5.55323313e-05))
    far = fma(far, v, const[f64, w](0.00124660181))
    far = fma(far, v, const[f64, w](-0.0036278998))
    far = fma(far, v, const[f64, w](0.00578709925))
    far = fma(far, v, const[f64, w](-0.0076344409))
    far = fma(far, v, const[f64, w](0.00943151303))
    far = fma(far, v, const[f64, w](1.00167477))
    far = fma(far, v, const[f64, w](2.83297706))
    var t = sub(root, const[f64, w](5))
    var last = const[f64, w](-2.15856035e-05)
    last = fma(last, t, const[f64, w](8.39308341e-05))
    last = fma(last, t, const[f64, w](-0.000213827167))
    last = fma(last, t, const[f64, w](-0.000142037199))
    last = fma(last, t, const[f64, w](1.01030016))
    last = fma(last, t, const[f64, w](4.84990644))
    far = select(lt(l, const[f64, w](16)), far, last)
    var y = mul(select(lt(l, const[f64, w](5)), near, far), a)
    y = erfinv_step(a, erfinv_step(a, y))
    y = select(eq(a, one), infinity[f64, w](), y)
    return select(lt(a, const[f64, w](1e-150)), mul(x, const[f64, w](0.8862269254527580)), copysign(y, x))


@always_inline("nodebug")
def erfinv_step[w: Int](a: Vec[f64, w], y: Vec[f64, w]) -> Vec[f64, w]:
    var one = const[f64, w](1)
    var below = sub(libm["erf"](y), a)
    var above = sub(sub(one, a), libm["erfc"](y))
    var error = select(lt(a, const[f64, w](0.5)), below, above)
    var step = mul(mul(error, const[f64, w](0.8862269254527580)), exp(mul(y, y)))
    return sub(y, div_plain(step, fma(y, step, one)))


@always_inline("nodebug")
def digamma[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    """The asymptotic series from 10 on; the recurrence to get there; the reflection below 0."""
    var zero = const[f64, w](0)
    var one = const[f64, w](1)
    var ten = const[f64, w](10)
    var left = lt(x, zero)
    var t = select(left, sub(one, x), x)
    var less = zero
    var k = 0
    while k < 10:
        var small = lt(t, ten)
        less = select(small, add(less, div_plain(one, t)), less)
        t = select(small, add(t, one), t)
        k += 1
    var i = div_plain(one, t)
    var z = mul(i, i)
    var p = const[f64, w](0.08333333333333333)
    p = fma(p, z, const[f64, w](-0.021092796092796094))
    p = fma(p, z, const[f64, w](0.007575757575757576))
    p = fma(p, z, const[f64, w](-0.004166666666666667))
    p = fma(p, z, const[f64, w](0.003968253968253968))
    p = fma(p, z, const[f64, w](-0.008333333333333333))
    p = fma(p, z, const[f64, w](0.08333333333333333))
    var y = sub(sub(log(t), mul(i, const[f64, w](0.5))), fma(z, p, less))
    var part = sub(x, trunc(x))
    var turn = div_plain(const[f64, w](3.141592653589793), libm["tan"](mul(part, const[f64, w](3.141592653589793))))
    y = select(left, sub(y, turn), y)
    y = select(bit_and(left, eq(part, zero)), not_a_number[f64, w](), y)
    y = select(eq(x, zero), neg(copysign(infinity[f64, w](), x)), y)
    return select(is_inf(x), select(left, not_a_number[f64, w](), x), y)


@always_inline("nodebug")
def exp2[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["exp2"](x)


@always_inline("nodebug")
def expm1[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["expm1"](x)


@always_inline("nodebug")
def log2[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["log2"](x)


@always_inline("nodebug")
def log10[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["log10"](x)


@always_inline("nodebug")
def log1p[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["log1p"](x)


@always_inline("nodebug")
def sin[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["sin"](x)


@always_inline("nodebug")
def cos[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["cos"](x)


@always_inline("nodebug")
def tan[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["tan"](x)


@always_inline("nodebug")
def asin[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["asin"](x)


@always_inline("nodebug")
def acos[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["acos"](x)


@always_inline("nodebug")
def atan[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["atan"](x)


@always_inline("nodebug")
def sinh[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["sinh"](x)


@always_inline("nodebug")
def cosh[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["cosh"](x)


@always_inline("nodebug")
def tanh[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["tanh"](x)


@always_inline("nodebug")
def asinh[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["asinh"](x)


@always_inline("nodebug")
def acosh[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["acosh"](x)


@always_inline("nodebug")
def atanh[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["atanh"](x)


@always_inline("nodebug")
def erf[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["erf"](x)


@always_inline("nodebug")
def erfc[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["erfc"](x)


@always_inline("nodebug")
def lgamma[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["lgamma"](x)


@always_inline("nodebug")
def atan2[w: Int](y: Vec[f64, w], x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["atan2"](y, x)


@always_inline("nodebug")
def pow[w: Int](x: Vec[f64, w], y: Vec[f64, w]) -> Vec[f64, w]:
    return libm["pow"](x, y)


@always_inline("nodebug")
def hypot[w: Int](x: Vec[f64, w], y: Vec[f64, w]) -> Vec[f64, w]:
    return libm["hypot"](x, y)
