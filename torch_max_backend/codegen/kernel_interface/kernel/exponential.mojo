"""Exponentials and what is made of them.

float32: in vectors. float64: `exp` and `sigmoid` in vectors, the rest by the C library.

Coefficients by tests/codegen/polynomials.py.
"""
from vectors import *
from .constants import *


@always_inline("nodebug")
def scaled_exp[w: Int](x: Vec[f32, w], biases: Vec[f32, w]) -> Vec[f32, w]:
    """`e^x` as `e^r * 2^n`; `biases` is 1.5 * 2^23 and the exponent biases of the two factors that 2^n is made of.

    Adding it rounds to an integer and leaves both exponents in the low bits. Two factors, so that results may be
    denormal, or infinite. At the lower end both are 0: a processor takes long for products that are rounded to 0.
    """
    var high = const[f32, w](104.0)
    var low = const[f32, w](-176.1)
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
def exp_by_exp2[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """`2^r * 2^n`, where n is no further than 126 from 0 and r is the rest: hardly more than 1/2, but for the extremes.

    `x` is brought between 0 and 1 first, which an instruction does. Of 1.5 * 2^23 + 127 + n the low bits are the exponent
    of 2^n.
    """
    var s = saturated(fma(x, const[f32, w](0.0057249801), const[f32, w](0.5)))
    var t = fma(s, const[f32, w](252), const[f32, w](12582913.0))
    var n = neg(sub(t, const[f32, w](12583039.0)))
    var r = fma(x, const[f32, w](1.92596303e-08), fma(x, const[f32, w](1.44269502), n))
    return mul(exp2_nearly(r), power_of_two(bitcast[u32](t)))


@always_inline("nodebug")
def power_of_two[w: Int](biased: Vec[u32, w]) -> Vec[f32, w]:
    return bitcast[f32](shl_plain(biased, const[u32, w](23)))


@always_inline("nodebug")
def exp[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    if on_gpu():
        return exp_by_exp2(x)
    return scaled_exp(x, const[f32, w](12583166.0))


@always_inline("nodebug")
def exp[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    """As in float32: see `scaled_exp` there."""
    var biases = const[f64, w](6755399441057790.0)
    var high = const[f64, w](750.0)
    var low = const[f64, w](-1418.3)
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
def exp2[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var biases = const[f32, w](12583166.0)
    var high = const[f32, w](130.0)
    var low = const[f32, w](-254.0)
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
def exp2[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["exp2"](x)


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
def expm1[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["expm1"](x)


@always_inline("nodebug")
def exp_nearly[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """To 17 bits at the ends of the range, to 22 near 0: enough for results of 16 bits."""
    return exp2_nearly(mul(x, const[f32, w](1.44269502)))


@always_inline("nodebug")
def sigmoid_nearly[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """As accurate as `exp_nearly`."""
    return reciprocal_nearly(add(const[f32, w](1), exp2_nearly(mul(x, const[f32, w](-1.44269502)))))


@always_inline("nodebug")
def tanh_nearly[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """As accurate as `exp_nearly`."""
    var a = float_abs(x)
    var e = exp2_nearly(mul(a, const[f32, w](2.88539004)))
    var far = fma(const[f32, w](-2), reciprocal_nearly(add(e, const[f32, w](1))), const[f32, w](1))
    return copysign(select(lt(a, const[f32, w](0.55)), tanh_near_zero(a), far), x)


@always_inline("nodebug")
def tanh[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """A polynomial below 0.55; above, `1 - 2 / (e^(2|x|) + 1)`."""
    var one = const[f32, w](1)
    var a = float_abs(x)
    var far = sub(one, div_nearly(const[f32, w](2), add(exp(add(a, a)), one)))
    return copysign(select(lt(a, const[f32, w](0.55)), tanh_near_zero(a), far), x)


@always_inline("nodebug")
def tanh_near_zero[w: Int](a: Vec[f32, w]) -> Vec[f32, w]:
    var z = mul(a, a)
    var p = const[f32, w](-0.00628433237)
    p = fma(p, z, const[f32, w](0.0210792981))
    p = fma(p, z, const[f32, w](-0.0538543053))
    p = fma(p, z, const[f32, w](0.133326069))
    p = fma(p, z, const[f32, w](-0.333333194))
    return fma(mul(a, z), p, a)


@always_inline("nodebug")
def tanh[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["tanh"](x)


@always_inline("nodebug")
def sigmoid[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """With `e = e^-|x|`: `1 / (1 + e)` or `e / (1 + e)`, and what rounding the divisor lost."""
    var one = const[f32, w](1)
    if on_gpu():
        return div_nearly(one, add(one, exp(neg(x))))
    var e = exp(neg(float_abs(x)))
    var d = add(one, e)
    var y = div_plain(select(lt(x, const[f32, w](0)), e, one), d)
    var lost = sub(e, sub(d, one))
    return fma(mul(lost, y), fma(e, const[f32, w](0.5), neg(one)), y)


@always_inline("nodebug")
def sigmoid[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    var one = const[f64, w](1)
    var e = exp(neg(float_abs(x)))
    return div_plain(select(lt(x, const[f64, w](0)), e, one), add(one, e))


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
def sinh[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["sinh"](x)


@always_inline("nodebug")
def cosh[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    var e = scaled_exp(float_abs(x), const[f32, w](12583165.0))
    return add(e, div_plain(const[f32, w](0.25), e))


@always_inline("nodebug")
def cosh[w: Int](x: Vec[f64, w]) -> Vec[f64, w]:
    return libm["cosh"](x)
