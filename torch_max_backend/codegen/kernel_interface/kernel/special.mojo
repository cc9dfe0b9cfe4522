"""Functions of statistics.

Coefficients by tests/codegen/polynomials.py.
"""
from vectors import *
from .constants import *
from .comparison import *
from .exponential import *
from .logarithm import *


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
def erf[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["erf"](x)


@always_inline("nodebug")
def erfc[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return libm["erfcf"](x)


@always_inline("nodebug")
def erfc[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["erfc"](x)


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
