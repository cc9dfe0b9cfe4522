"""Special functions that MAX has not, composed in float64, so that shorter floats are rounded once.

torch computes most of these one element at a time on a CPU; here they are vectorised and fuse. More of them are in
``bessel.py`` (Bessel and Airy functions), ``gamma.py`` (incomplete gamma, zeta) and ``polynomials.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from max.dtype import DType
from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.pointwise.arithmetic import arithmetic_operands, rounded, unary
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support import chebyshev_tables as tables
from torch_max_backend.aten_functions.support import elementary, float64_math
from torch_max_backend.aten_functions.support.elementary import (
    INF,
    NAN,
    both,
    chebyshev,
    either,
    exp,
    expm1,
    in_float64,
    keep_nan,
    less,
    number,
    polynomial,
    with_sign_of,
)
from torch_max_backend.aten_functions.support.node_context import out_dtype
from torch_max_backend.aten_functions.support.tensor_ops import cast

_add, _sub, _mul, _div = ops.add, ops.sub, ops.mul, ops.div


def _times(x: TensorValue, factor: float) -> TensorValue:
    return _mul(x, number(factor, x))


def _plus(x: TensorValue, term: float) -> TensorValue:
    return _add(x, number(term, x))


def _is(x: TensorValue, value: float) -> TensorValue:
    return ops.equal(x, number(value, x))


def _below(x: TensorValue, value: float) -> TensorValue:
    return less(x, number(value, x))


def _above(x: TensorValue, value: float) -> TensorValue:
    return ops.greater(x, number(value, x))


def _select(condition: TensorValue, value: TensorValue | float, other: TensorValue) -> TensorValue:
    return ops.where(condition, number(value, other) if isinstance(value, float) else value, other)


# -- logarithms and exponentials -----------------------------------------------------------------------------------
def log2(x: TensorValue) -> TensorValue:
    """Exact at powers of two in dtypes shorter than float64."""
    return _times(elementary.log(x), 1 / math.log(2))


def log10(x: TensorValue) -> TensorValue:
    """Exact at powers of ten in dtypes shorter than float64."""
    return _times(elementary.log(x), 1 / math.log(10))


def exp2(x: TensorValue) -> TensorValue:
    """2**x."""
    return exp(_times(x, math.log(2)))


# -- circular functions --------------------------------------------------------------------------------------------
def tan(x: TensorValue) -> TensorValue:
    """sin/cos."""
    return _div(float64_math.sin(x), float64_math.cos(x))


def acos(x: TensorValue) -> TensorValue:
    """acos; MAX's clamps its argument in dtypes shorter than float64."""
    return _select(ops.greater_equal(number(1, x), ops.abs(x)), float64_math.acos(x), number(NAN, x))


_ASIN = (1.0, 1 / 6, 3 / 40, 5 / 112, 35 / 1152)


def asin(x: TensorValue) -> TensorValue:
    """pi/2 - acos, but its series near zero, where the difference cancels."""
    series = _mul(x, polynomial(_mul(x, x), _ASIN))
    return _select(_below(ops.abs(x), 1e-2), series, _sub(number(math.pi / 2, x), acos(x)))


def atan(x: TensorValue) -> TensorValue:
    """By asin below 1, by acos above, each where it is well conditioned."""
    size = ops.abs(x)
    root = ops.sqrt(_plus(_mul(x, x), 1.0))
    far = with_sign_of(acos(_div(number(1, x), root)), x)
    return _select(_above(size, 1.0), far, asin(_div(x, root)))


@in_float64
def _atan2(y: TensorValue, x: TensorValue) -> TensorValue:
    a, b = ops.abs(y), ops.abs(x)
    steep = ops.greater(a, b)
    low, high = ops.where(steep, b, a), ops.where(steep, a, b)
    ratio = _select(ops.equal(low, high), 1.0, _div(low, high))
    angle = atan(_select(_is(high, 0.0), 0.0, ratio))
    angle = ops.where(steep, _sub(number(math.pi / 2, x), angle), angle)
    angle = ops.where(elementary.is_negative(x), _sub(number(math.pi, x), angle), angle)
    angle = with_sign_of(angle, y)
    return keep_nan(x, keep_nan(y, angle))


# -- hyperbolic functions ------------------------------------------------------------------------------------------
def _half_exp(x: TensorValue) -> TensorValue:
    """e**x / 2 for results up to the largest float."""
    root = exp(_times(x, 0.5))
    return _mul(_times(root, 0.5), root)


def sinh(x: TensorValue) -> TensorValue:
    """By expm1 near zero."""
    size = ops.abs(x)
    e = expm1(size)
    near = _times(_add(e, _div(e, _plus(e, 1.0))), 0.5)
    return with_sign_of(
        keep_nan(x, _select(_below(size, 2.0), near, _sub(_half_exp(size), _half_exp(ops.negate(size))))), x
    )


def cosh(x: TensorValue) -> TensorValue:
    """The mean of e**x and e**-x."""
    return _add(_half_exp(x), _half_exp(ops.negate(x)))


def asinh(x: TensorValue) -> TensorValue:
    """log(x + sqrt(x² + 1)) without cancellation or overflow."""
    a = ops.abs(x)
    square = _mul(a, a)
    near = ops.log1p(_add(a, _div(square, _plus(ops.sqrt(_plus(square, 1.0)), 1.0))))
    return with_sign_of(_select(_above(a, 1e10), _plus(ops.log(a), math.log(2)), near), x)


def acosh(x: TensorValue) -> TensorValue:
    """log(x + sqrt(x² - 1)) without cancellation or overflow."""
    t = _plus(x, -1.0)
    near = ops.log1p(_add(t, ops.sqrt(_add(_add(t, t), _mul(t, t)))))
    return _select(_below(x, 1.0), NAN, _select(_above(x, 1e10), _plus(ops.log(x), math.log(2)), near))


# -- the error function --------------------------------------------------------------------------------------------
def _erfcx_positive(x: TensorValue) -> TensorValue:
    t = _sub(number(1, x), _div(number(7.5, x), _plus(x, 3.75)))
    return _div(chebyshev(t, tables.ERFCX), _plus(_add(x, x), 1.0))


def erfcx(x: TensorValue) -> TensorValue:
    """e**(x²) * erfc(x)."""
    size = ops.abs(x)
    positive = _erfcx_positive(size)
    return _select(_below(x, 0.0), _sub(_times(exp(_mul(x, x)), 2.0), positive), positive)


def erfc(x: TensorValue) -> TensorValue:
    """1 - erf(x) with its tail."""
    size = ops.abs(x)
    tail = _mul(exp(ops.negate(_mul(x, x))), _erfcx_positive(size))
    far = _select(_below(x, 0.0), _sub(number(2, x), tail), tail)
    return _select(_below(size, 0.5), _sub(number(1, x), ops.erf(x)), far)


_WINITZKI = 0.147  # the constant of the closed form that starts the iteration, good to three digits
_ERFINV = tuple(c * math.sqrt(math.pi) / 2 for c in (1.0, math.pi / 12, 7 * math.pi**2 / 480))


def _erfc_inverse(q: TensorValue) -> TensorValue:
    """The y >= 0 with erfc(y) = q, for 0 < q <= 1: Halley's iteration, which triples the digits at each step."""
    log = ops.log(_mul(q, _sub(number(2, q), q)))
    w = _plus(_times(log, 0.5), 2 / (math.pi * _WINITZKI))
    root = ops.sqrt(_sub(_mul(w, w), _times(log, 1 / _WINITZKI)))
    y = ops.sqrt(elementary.relu(_sub(root, w)))
    for _ in range(3):
        step = _times(_sub(_erfcx_positive(y), _mul(q, exp(_mul(y, y)))), math.sqrt(math.pi) / 2)
        y = _add(y, _div(step, _sub(number(1, y), _mul(step, y))))
    return y


def erfinv(x: TensorValue) -> TensorValue:
    """The inverse of erf; its series near zero."""
    size = ops.abs(x)
    near = _mul(size, polynomial(_mul(x, x), _ERFINV))
    inverse = _select(_below(size, 1e-3), near, _erfc_inverse(_sub(number(1, x), size)))
    inverse = _select(_is(size, 1.0), INF, inverse)
    return with_sign_of(keep_nan(x, _select(_above(size, 1.0), NAN, inverse)), x)


def ndtri(p: TensorValue) -> TensorValue:
    """The quantile of the standard normal distribution."""
    one = number(1, p)
    upper = _above(p, 0.5)
    tail = ops.where(upper, _sub(one, p), p)
    quantile = _times(_erfc_inverse(_add(tail, tail)), math.sqrt(2))
    quantile = _select(_is(tail, 0.0), INF, quantile)
    signed = ops.where(upper, quantile, ops.negate(quantile))
    return keep_nan(p, _select(either(_below(p, 0.0), _above(p, 1.0)), NAN, signed))


# -- the gamma function --------------------------------------------------------------------------------------------
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
_SHIFT = 8  # from here on the asymptotic series has sixteen digits


def _fraction(x: TensorValue) -> TensorValue:
    """The distance to the nearest integer, so that sin(pi * x) is exact in its zeros."""
    return _sub(x, ops.round(x))


def lgamma(x: TensorValue) -> TensorValue:
    """log |gamma(x)|: Stirling's series, shifted up below 8 and reflected below 0."""
    negative = _below(x, 0.0)
    z = ops.where(negative, _sub(number(1, x), x), x)
    small = _below(z, float(_SHIFT))
    product = z
    for k in range(1, _SHIFT):
        product = _mul(product, _plus(z, float(k)))
    big = ops.where(small, _plus(z, float(_SHIFT)), z)
    inverse = _div(number(1, x), big)
    series = polynomial(_mul(inverse, inverse), [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1)])
    value = _add(_sub(_mul(_plus(big, -0.5), ops.log(big)), big), _mul(inverse, series))
    value = _plus(value, 0.5 * math.log(2 * math.pi))
    value = ops.where(small, _sub(value, ops.log(product)), value)
    sine = ops.abs(float64_math.sin(_times(_fraction(x), math.pi)))
    reflected = _sub(_sub(number(math.log(math.pi), x), ops.log(sine)), value)
    value = ops.where(negative, reflected, value)
    pole = both(ops.greater_equal(number(0, x), x), ops.equal(x, ops.round(x)))
    value = _select(either(_is(x, 1.0), _is(x, 2.0)), 0.0, value)
    return _select(either(ops.is_inf(x), pole), INF, value)


# special_entr(Tensor self) -> Tensor
def entr(x: TensorValue) -> TensorValue:
    """-x log x, 0 at zero, -inf below."""
    value = _select(_is(x, 0.0), 0.0, ops.negate(_mul(x, ops.log(x))))
    return keep_nan(x, _select(_below(x, 0.0), -INF, value))


# special_log_ndtr(Tensor self) -> Tensor
def log_ndtr(x: TensorValue) -> TensorValue:
    """The logarithm of the normal distribution function: by erfcx far below zero, where that function vanishes."""
    root = _times(x, math.sqrt(0.5))
    far = _sub(ops.log(_times(erfcx(ops.negate(root)), 0.5)), _mul(root, root))
    return _select(_below(x, -1.0), far, ops.log1p(_times(erfc(root), -0.5)))


def digamma(x: TensorValue) -> TensorValue:
    """The logarithmic derivative of gamma; an infinity at 0, NaN at the other poles."""
    negative = _below(x, 0.0)
    z = ops.where(negative, _sub(number(1, x), x), x)
    value = number(0, x)
    for k in range(_SHIFT):
        value = _sub(value, _div(number(1, x), _plus(z, float(k))))
    big = _plus(z, float(_SHIFT))
    inverse = _div(number(1, x), big)
    square = _mul(inverse, inverse)
    series = _mul(square, polynomial(square, [b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)]))
    value = _add(value, _sub(_sub(ops.log(big), _times(inverse, 0.5)), series))
    turn = _times(_fraction(x), math.pi)
    reflected = _sub(value, _div(_times(float64_math.cos(turn), math.pi), float64_math.sin(turn)))
    value = _select(both(negative, ops.equal(x, ops.round(x))), NAN, ops.where(negative, reflected, value))
    value = _select(both(ops.is_inf(x), ops.logical_not(negative)), INF, value)
    return _select(_is(x, 0.0), with_sign_of(number(INF, x), ops.negate(x)), value)


def trigamma(x: TensorValue) -> TensorValue:
    """The derivative of digamma."""
    low = _below(x, 0.5)
    z = ops.where(low, _sub(number(1, x), x), x)
    value = number(0, x)
    for k in range(_SHIFT):
        term = _plus(z, float(k))
        value = _add(value, _div(number(1, x), _mul(term, term)))
    inverse = _div(number(1, x), _plus(z, float(_SHIFT)))
    square = _mul(inverse, inverse)
    series = _mul(_mul(square, inverse), polynomial(square, _BERNOULLI))
    value = _add(value, _add(_add(inverse, _times(square, 0.5)), series))
    sine = float64_math.sin(_times(_fraction(x), math.pi))
    return ops.where(low, _sub(_div(number(math.pi**2, x), _mul(sine, sine)), value), value)


# -- modified Bessel functions -------------------------------------------------------------------------------------
def _scaled_bessel(x: TensorValue, near: tuple[float, ...], far: tuple[float, ...]) -> tuple[TensorValue, TensorValue]:
    size = ops.abs(x)
    low = chebyshev(_plus(_times(elementary.at_most(size, number(6, x)), 1 / 3), -1.0), near)
    high = elementary.at_least(size, number(6, x))
    return low, _div(chebyshev(_plus(_div(number(12, x), high), -1.0), far), ops.sqrt(high))


def i0e(x: TensorValue) -> TensorValue:
    """e**-|x| * I0(x)."""
    near, far = _scaled_bessel(x, tables.I0_NEAR, tables.I0_FAR)
    return _select(_above(ops.abs(x), 6.0), far, near)


def i1e(x: TensorValue) -> TensorValue:
    """e**-|x| * I1(x)."""
    near, far = _scaled_bessel(x, tables.I1_NEAR, tables.I1_FAR)
    return _select(_above(ops.abs(x), 6.0), with_sign_of(far, x), _mul(x, near))


def i0(x: TensorValue) -> TensorValue:
    """The modified Bessel function of order 0."""
    return _scaled_up(i0e(x), x)


def i1(x: TensorValue) -> TensorValue:
    """The modified Bessel function of order 1."""
    return _scaled_up(i1e(x), x)


def _scaled_up(scaled: TensorValue, x: TensorValue) -> TensorValue:
    root = exp(_times(ops.abs(x), 0.5))
    return _mul(_mul(scaled, root), root)


# name(Tensor self) -> Tensor
unary(aten.expm1.default, expm1)
unary(aten.tan.default, tan, integers=False)
for _op, _function in (
    (aten.log2.default, log2),
    (aten.log10.default, log10),
    (aten.exp2.default, exp2),
    (aten.acos.default, acos),
    (aten.asin.default, asin),
    (aten.atan.default, atan),
    (aten.asinh.default, asinh),
    (aten.acosh.default, acosh),
    (aten.erfc.default, erfc),
    (aten.erfinv.default, erfinv),
    (aten.special_ndtri.default, ndtri),
    (aten.lgamma.default, lgamma),
):
    unary(_op, in_float64(_function))
for _op, _function in (
    (aten.sinh.default, sinh),
    (aten.cosh.default, cosh),
    (aten.special_erfcx.default, erfcx),
    (aten.digamma.default, digamma),
    (aten.special_log_ndtr.default, log_ndtr),
    (aten.i0.default, i0),
    (aten.special_i0e.default, i0e),
    (aten.special_i1.default, i1),
    (aten.special_i1e.default, i1e),
):
    unary(_op, in_float64(_function), integers=False)


def _entr_in_steps(x: TensorValue) -> TensorValue:
    """-x log x with the logarithm rounded before the product, as torch does."""
    logarithm = cast(ops.log(cast(x, DType.float64)), x.dtype)
    value = _select(_is(x, 0.0), 0.0, _mul(ops.negate(x), logarithm))
    return _select(_below(x, 0.0), -INF, value)


unary(aten.special_entr.default, in_float64(entr), integers=_entr_in_steps)


# -- two operands --------------------------------------------------------------------------------------------------
def _binary(op: object, function: Callable[[TensorValue, TensorValue], TensorValue]) -> None:
    def lowering(self: TensorValue, other: TensorValue) -> TensorValue:
        return rounded(function(*arithmetic_operands(self, other, wide=True)))

    lowering.__name__ = lowering.__qualname__ = str(op).split(".")[1]
    map_to(op)(lowering)


@in_float64
def _hypot(x: TensorValue, y: TensorValue) -> TensorValue:
    a, b = ops.abs(x), ops.abs(y)
    low, high = elementary.minimum(a, b), elementary.maximum(a, b)
    ratio = _div(low, _select(_is(high, 0.0), 1.0, high))
    length = _mul(high, ops.sqrt(_plus(_mul(ratio, ratio), 1.0)))
    return _select(either(ops.is_inf(x), ops.is_inf(y)), INF, length)


@in_float64
def _logaddexp(x: TensorValue, y: TensorValue) -> TensorValue:
    high, low = elementary.maximum(x, y), elementary.minimum(x, y)
    total = _add(high, ops.log1p(exp(_sub(low, high))))
    return _select(both(ops.is_inf(x), ops.equal(x, y)), x, total)


def _logaddexp2(x: TensorValue, y: TensorValue) -> TensorValue:
    wide = (_times(cast(v, DType.float64), math.log(2)) for v in (x, y))
    return cast(_times(_logaddexp(*wide), 1 / math.log(2)), x.dtype)


# name(Tensor self, Tensor other) -> Tensor
_binary(aten.atan2.default, _atan2)
_binary(aten.hypot.default, _hypot)
_binary(aten.logaddexp.default, _logaddexp)
_binary(aten.logaddexp2.default, _logaddexp2)


# ldexp.Tensor(Tensor self, Tensor other) -> Tensor
@map_to(aten.ldexp.Tensor)
def ldexp(self: TensorValue, other: TensorValue) -> TensorValue:
    """``self * 2**other``, with the power rounded to the promised dtype first, as in torch."""
    x, y = arithmetic_operands(self, other, wide=True)
    power = cast(cast(elementary.pow_of_positive(2.0, y), out_dtype()), x.dtype)
    return rounded(_mul(x, power))


# sinc(Tensor self) -> Tensor
def sinc(x: TensorValue) -> TensorValue:
    """sin(pi x) / (pi x), 1 at zero."""
    turn = _times(x, math.pi)
    return _select(_is(x, 0.0), 1.0, _div(float64_math.sin(turn), turn))


def _sinc_in_steps(x: TensorValue) -> TensorValue:
    """sin(pi x) / (pi x) with the product and the sine rounded before the quotient, as torch does."""
    turn = _times(x, math.pi)
    sine = cast(float64_math.sin(cast(turn, DType.float64)), x.dtype)
    return _select(_is(x, 0.0), 1.0, _div(sine, turn))


unary(aten.sinc.default, sinc, integers=_sinc_in_steps)
