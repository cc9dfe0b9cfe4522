"""Functions of statistics.

Coefficients by tests/codegen/polynomials.py.
"""
from vectors import *
from .constants import *
from .comparison import *
from .exponential import *
from .logarithm import *


@always_inline("nodebug")
def erf_by_exp2[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """The same two polynomials in one chain, with coefficients chosen by `x`; the second one for a power of two."""
    var a = float_abs(x)
    var most = const[f32, w](4.0)
    var t = select(gt(a, most), most, a)
    var is_near = lt(t, const[f32, w](1))
    var u = select(is_near, mul(t, t), t)
    var p = select(is_near, const[f32, w](0), const[f32, w](-3.12872617e-05))
    p = fma(p, u, select(is_near, const[f32, w](7.8858604e-05), const[f32, w](0.000636710785)))
    p = fma(p, u, select(is_near, const[f32, w](-0.000801994756), const[f32, w](-0.00606588461)))
    p = fma(p, u, select(is_near, const[f32, w](0.0051894444), const[f32, w](0.0363677815)))
    p = fma(p, u, select(is_near, const[f32, w](-0.0268544015), const[f32, w](-0.156414866)))
    p = fma(p, u, select(is_near, const[f32, w](0.112835996), const[f32, w](-0.913543284)))
    p = fma(p, u, select(is_near, const[f32, w](-0.37612626), const[f32, w](-1.62963712)))
    p = fma(p, u, select(is_near, const[f32, w](0.128379166), const[f32, w](0.000271276484)))
    var far = sub(const[f32, w](1), exp2_nearly(p))
    return copysign(select(is_near, fma(p, t, t), far), x)


@always_inline("nodebug")
def erfc_nearly[w: Int](a: Vec[f32, w]) -> Vec[f32, w]:
    """`t p(t) e^(-a^2)` with `t = 1 / (1 + 0.468 a)`, of numbers that are not negative: off by 2e-7."""
    var t = reciprocal_nearly(fma(a, const[f32, w](0.467837125), const[f32, w](1)))
    var p = const[f32, w](-0.220745504)
    p = fma(p, t, const[f32, w](0.750544250))
    p = fma(p, t, const[f32, w](-0.182804927))
    p = fma(p, t, const[f32, w](0.408842027))
    p = fma(p, t, const[f32, w](0.244164065))
    return mul(p, mul(t, exp2_nearly(mul(mul(a, a), const[f32, w](-1.44269502)))))


@always_inline("nodebug")
def erf_nearly[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """1 less what is beyond; two terms of the series near 0."""
    var a = float_abs(x)
    var far = sub(const[f32, w](1), erfc_nearly(a))
    var close = mul(a, fma(mul(a, a), const[f32, w](-0.376126379), const[f32, w](1.12837923)))
    return copysign(select(lt(a, const[f32, w](0.0625)), close, far), x)


@always_inline("nodebug")
def erf[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """A polynomial below 1; above, 1 less the exponential of one."""
    if on_gpu():
        return erf_by_exp2(x)
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
def erf[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["erf"](x)


@always_inline("nodebug")
def one_plus_erf[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """`(1 + s p(s)) e^(-x^2)` with `s = 1 / (1 + 0.45 |x|) - 1`, or 2 less that: off by 2e-7, by less far below zero.

    From -9.38 down the power of two is 0.
    """
    if on_gpu():
        return add(const[f32, w](1), erf(x))
    var one = const[f32, w](1)
    var most = const[f32, w](9.38)
    var a = float_abs(x)
    a = select(gt(a, most), most, a)
    var s = mul(mul(a, const[f32, w](-0.45)), div_plain(one, fma(a, const[f32, w](0.45), one)))
    var p = const[f32, w](-0.262362719)
    p = fma(p, s, const[f32, w](-0.292474478))
    p = fma(p, s, const[f32, w](0.881667137))
    p = fma(p, s, const[f32, w](2.4304378))
    p = fma(p, s, const[f32, w](2.5075016))
    p = fma(p, s, one)
    var bias = const[f32, w](12583039.0)
    var b = mul(mul(a, a), const[f32, w](-1.44269502))
    var n = add(b, bias)
    var r = sub(b, sub(n, bias))
    var y = const[f32, w](0.00134073885)
    y = fma(y, r, const[f32, w](0.00967196875))
    y = fma(y, r, const[f32, w](0.0555030803))
    y = fma(y, r, const[f32, w](0.240222333))
    y = fma(y, r, const[f32, w](0.693147215))
    y = fma(y, r, one)
    var rest = mul(mul(p, y), power_of_two(bitcast[u32](n)))
    return select(lt(x, const[f32, w](0)), rest, sub(const[f32, w](2), rest))


@always_inline("nodebug")
def one_plus_erf[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return add(const[f64, w](1), erf(x))


@always_inline("nodebug")
def one_plus_erf_nearly[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var beyond = erfc_nearly(float_abs(x))
    return select(lt(x, const[f32, w](0)), beyond, sub(const[f32, w](2), beyond))


@always_inline("nodebug")
def erfc[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return libm["erfcf"](x)


@always_inline("nodebug")
def erfc[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["erfc"](x)


@always_inline("nodebug")
def erfinv_nearly[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    """To eight digits or more, by `l = -log(1 - x^2)`, in which it is smooth."""
    var one = const[f64, w](1)
    var a = float_abs(x)
    var l = neg(log(mul(sub(one, a), add(one, a))))
    var u = sub(l, const[f64, w](2.5))
    var near = const[f64, w](-8.590417253266645e-09)
    near = fma(near, u, const[f64, w](2.3184318048121864e-08))
    near = fma(near, u, const[f64, w](4.633812036068788e-07))
    near = fma(near, u, const[f64, w](-3.462115214875325e-06))
    near = fma(near, u, const[f64, w](-4.950465911591612e-06))
    near = fma(near, u, const[f64, w](0.0002183422132707183))
    near = fma(near, u, const[f64, w](-0.001252763794956045))
    near = fma(near, u, const[f64, w](-0.0041773841339702395))
    near = fma(near, u, const[f64, w](0.24664029613598204))
    near = fma(near, u, const[f64, w](1.5014093588046988))
    var root = sqrt(l)
    var v = sub(root, const[f64, w](3))
    var far = const[f64, w](-3.07000771418262e-05)
    far = fma(far, v, const[f64, w](0.00016158969352082444))
    far = fma(far, v, const[f64, w](-0.00027545775119479046))
    far = fma(far, v, const[f64, w](-0.00012148686544374634))
    far = fma(far, v, const[f64, w](0.001473784313644659))
    far = fma(far, v, const[f64, w](-0.003566450064166849))
    far = fma(far, v, const[f64, w](0.005688077420530352))
    far = fma(far, v, const[f64, w](-0.007642860684626367))
    far = fma(far, v, const[f64, w](0.009445264134675196))
    far = fma(far, v, const[f64, w](1.0016752398571285))
    far = fma(far, v, const[f64, w](2.83297680208444))
    var t = sub(root, const[f64, w](5))
    var last = const[f64, w](-2.1585602568871255e-05)
    last = fma(last, t, const[f64, w](8.39308334644232e-05))
    last = fma(last, t, const[f64, w](-0.00021382716251002877))
    last = fma(last, t, const[f64, w](-0.00014203720285559113))
    last = fma(last, t, const[f64, w](1.0103002153649143))
    last = fma(last, t, const[f64, w](4.849906603402835))
    far = select(lt(l, const[f64, w](16)), far, last)
    var r = mul(select(lt(l, const[f64, w](5)), near, far), x)
    return select(eq(a, one), copysign(infinity[f64, w](), x), r)


@always_inline("nodebug")
def erfinv[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    if on_gpu():
        return libm["erfinvf"](x)
    return cast_plain[f32](erfinv_nearly(cast_plain[f64](x)))


@always_inline("nodebug")
def erfinv[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    """One of Halley's steps on erf or, where its error is relative to the distance from 1, on erfc."""
    if on_gpu():
        return libm["erfinv"](x)
    var one = const[f64, w](1)
    var a = float_abs(x)
    var y = float_abs(erfinv_nearly(x))
    var error = select(lt(a, const[f64, w](0.5)), sub(libm["erf"](y), a), sub(sub(one, a), libm["erfc"](y)))
    var step = mul(mul(error, const[f64, w](0.886226925452758)), exp(mul(y, y)))
    y = sub(y, div_plain(step, fma(y, step, one)))
    y = select(eq(a, one), infinity[f64, w](), y)
    return select(lt(a, const[f64, w](1e-150)), mul(x, const[f64, w](0.886226925452758)), copysign(y, x))


@always_inline("nodebug")
def lgamma[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return libm["lgammaf"](x)


@always_inline("nodebug")
def lgamma[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["lgamma"](x)


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
def digamma[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return cast_plain[f32](digamma(cast_plain[f64](x)))
