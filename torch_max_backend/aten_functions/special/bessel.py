"""Bessel and Airy functions, composed in float64 of Chebyshev series, so that shorter floats are rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable

from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.pointwise.arithmetic import unary
from torch_max_backend.aten_functions.registry import aten
from torch_max_backend.aten_functions.special import special_functions
from torch_max_backend.aten_functions.support import bessel_tables as tables
from torch_max_backend.aten_functions.support import float64_math
from torch_max_backend.aten_functions.support.elementary import (
    INF,
    NAN,
    at_least,
    at_most,
    chebyshev,
    exp,
    in_float64,
    is_negative,
    keep_nan,
    less,
    number,
    polynomial,
)

Function = Callable[[TensorValue], TensorValue]
Table = tuple[float, ...]

_add, _sub, _mul, _div = ops.add, ops.sub, ops.mul, ops.div


def _times(x: TensorValue, factor: float) -> TensorValue:
    return _mul(x, number(factor, x))


def _plus(x: TensorValue, term: float) -> TensorValue:
    return _add(x, number(term, x))


def _select(condition: TensorValue, value: TensorValue | float, other: TensorValue) -> TensorValue:
    return ops.where(condition, number(value, other) if isinstance(value, float) else value, other)


def _above(x: TensorValue, value: float) -> TensorValue:
    return ops.greater(x, number(value, x))


def _below(x: TensorValue, value: float) -> TensorValue:
    return less(x, number(value, x))


# -- oscillating functions -----------------------------------------------------------------------------------------
_SPLIT = 8.0  # a series in x**2 up to here, modulus and phase from here on
_TWO_OVER_PI = 2 / math.pi


def _near(size: TensorValue, table: Table) -> TensorValue:
    low = at_most(size, number(_SPLIT, size))
    return chebyshev(_plus(_times(_mul(low, low), 2 / _SPLIT**2), -1.0), table)


def _far(size: TensorValue, order: int, second: bool) -> TensorValue:
    """J, or Y if ``second``, beyond the split: sqrt(2 / (pi x)) times a circular function of a shifted phase."""
    x = at_least(size, number(_SPLIT, size))
    t = _plus(_div(number(2 * _SPLIT**2, x), _mul(x, x)), -1.0)
    p = chebyshev(t, (tables.P0_FAR, tables.P1_FAR)[order])
    q = _div(chebyshev(t, (tables.Q0_FAR, tables.Q1_FAR)[order]), x)
    sine, cosine = float64_math.sin(x), float64_math.cos(x)
    # sqrt(2) times cosine and sine of the phase x - (2 * order + 1) * pi / 4, by the addition theorem.
    total, distance = _add(sine, cosine), _sub(sine, cosine)
    cos_phase, sin_phase = (total, distance) if order == 0 else (distance, ops.negate(total))
    wave = _add(_mul(p, sin_phase), _mul(q, cos_phase)) if second else _sub(_mul(p, cos_phase), _mul(q, sin_phase))
    return _div(wave, ops.sqrt(_times(x, math.pi)))


def bessel_j0(x: TensorValue) -> TensorValue:
    """The Bessel function of the first kind of order 0."""
    size = ops.abs(x)
    return _select(_above(size, _SPLIT), _far(size, 0, False), _near(size, tables.J0_NEAR))


def bessel_j1(x: TensorValue) -> TensorValue:
    """The Bessel function of the first kind of order 1."""
    size = ops.abs(x)
    far = _far(size, 1, False)
    far = ops.where(is_negative(x), ops.negate(far), far)
    return _select(_above(size, _SPLIT), far, _mul(x, _near(size, tables.J1_NEAR)))


def _second_kind(x: TensorValue, near: TensorValue, far: TensorValue) -> TensorValue:
    value = _select(_above(x, _SPLIT), far, near)
    value = _select(ops.equal(x, number(0, x)), -INF, value)
    return keep_nan(x, _select(_below(x, 0.0), NAN, value))


def bessel_y0(x: TensorValue) -> TensorValue:
    """The Bessel function of the second kind of order 0."""
    size = ops.abs(x)
    log = _times(ops.log(size), _TWO_OVER_PI)
    near = _add(_near(size, tables.Y0_NEAR), _mul(log, _near(size, tables.J0_NEAR)))
    return _second_kind(x, near, _far(size, 0, True))


def bessel_y1(x: TensorValue) -> TensorValue:
    """The Bessel function of the second kind of order 1."""
    size = ops.abs(x)
    log = _times(ops.log(size), _TWO_OVER_PI)
    near = _mul(size, _add(_near(size, tables.Y1_NEAR), _mul(log, _near(size, tables.J1_NEAR))))
    near = _sub(near, _div(number(_TWO_OVER_PI, x), size))
    return _second_kind(x, near, _far(size, 1, True))


def spherical_bessel_j0(x: TensorValue) -> TensorValue:
    """sin(x) / x."""
    series = [(-1) ** k / math.factorial(2 * k + 1) for k in range(7)]
    near = polynomial(_mul(x, x), series)
    value = _select(_below(ops.abs(x), 0.5), near, _div(float64_math.sin(x), x))
    return _select(ops.is_inf(x), 0.0, value)


# -- modified functions --------------------------------------------------------------------------------------------
def _small(x: TensorValue, table: Table) -> TensorValue:
    low = at_most(x, number(2, x))
    return chebyshev(_plus(_times(_mul(low, low), 0.5), -1.0), table)


def _modified_second_kind(x: TensorValue, order: int, scaled: bool) -> TensorValue:
    """K, or e**x * K if ``scaled``: with its logarithm up to 2, with its exponential beyond."""
    log = ops.log(_times(x, 0.5))
    if order == 0:
        near = _sub(_small(x, tables.K0_SMALL), _mul(log, _small(x, tables.I0_SMALL)))
    else:
        near = _add(_div(_small(x, tables.K1_SMALL), x), _mul(_mul(x, log), _small(x, tables.I1_SMALL)))
    high = at_least(x, number(2, x))
    far = chebyshev(_plus(_div(number(4, x), high), -1.0), (tables.K0_FAR, tables.K1_FAR)[order])
    far = _div(far, ops.sqrt(high))
    if scaled:
        near = _mul(near, exp(at_most(x, number(2, x))))
    else:
        far = _mul(far, exp(ops.negate(high)))
    value = _select(_above(x, 2.0), far, near)
    value = _select(ops.equal(x, number(0, x)), INF, value)
    return keep_nan(x, _select(_below(x, 0.0), NAN, value))


def modified_bessel_k0(x: TensorValue) -> TensorValue:
    """The modified Bessel function of the second kind of order 0."""
    return _modified_second_kind(x, 0, False)


def modified_bessel_k1(x: TensorValue) -> TensorValue:
    """The modified Bessel function of the second kind of order 1."""
    return _modified_second_kind(x, 1, False)


def scaled_modified_bessel_k0(x: TensorValue) -> TensorValue:
    """e**x * K0(x)."""
    return _modified_second_kind(x, 0, True)


def scaled_modified_bessel_k1(x: TensorValue) -> TensorValue:
    """e**x * K1(x)."""
    return _modified_second_kind(x, 1, True)


# -- Airy's function -----------------------------------------------------------------------------------------------
_LEFT, _RIGHT = -4.0, 2.0  # between these a series in x
_VANISHES = 103.892  # from here on torch gives 0


def _airy_phase(size: float) -> float:
    return 2 / 3 * size**1.5


def airy_ai(x: TensorValue) -> TensorValue:
    """Airy's function of the first kind."""
    middle = at_most(at_least(x, number(_LEFT, x)), number(_RIGHT, x))
    value = chebyshev(_times(_plus(middle, 1.0), 1 / 3), tables.AIRY_NEAR)
    value = _select(_above(x, _RIGHT), _airy_right(at_least(x, number(_RIGHT, x))), value)
    value = _select(_below(x, _LEFT), _airy_left(at_least(ops.negate(x), number(-_LEFT, x))), value)
    value = _select(_above(x, _VANISHES), 0.0, value)
    return keep_nan(x, _select(ops.is_inf(x), NAN, value))


def _airy_parts(x: TensorValue) -> tuple[TensorValue, TensorValue]:
    root = ops.sqrt(x)
    return _times(_mul(x, root), 2 / 3), _times(ops.sqrt(root), math.sqrt(math.pi))


def _airy_right(x: TensorValue) -> TensorValue:
    phase, divisor = _airy_parts(x)
    series = chebyshev(_plus(_div(number(2 * _airy_phase(_RIGHT), x), phase), -1.0), tables.AIRY_RIGHT)
    return _div(_mul(_times(exp(ops.negate(phase)), 0.5), series), divisor)


def _airy_left(x: TensorValue) -> TensorValue:
    phase, divisor = _airy_parts(x)
    square = _div(number(2 * _airy_phase(-_LEFT) ** 2, x), _mul(phase, phase))
    f = chebyshev(_plus(square, -1.0), tables.AIRY_F)
    g = _div(chebyshev(_plus(square, -1.0), tables.AIRY_G), phase)
    turned = _plus(phase, math.pi / 4)
    return _div(_sub(_mul(f, float64_math.sin(turned)), _mul(g, float64_math.cos(turned))), divisor)


# name(Tensor self) -> Tensor
# name(Tensor x) -> Tensor
for _op, _function in (
    (aten.special_bessel_j0.default, bessel_j0),
    (aten.special_bessel_j1.default, bessel_j1),
    (aten.special_bessel_y0.default, bessel_y0),
    (aten.special_bessel_y1.default, bessel_y1),
    (aten.special_spherical_bessel_j0.default, spherical_bessel_j0),
    (aten.special_modified_bessel_i0.default, special_functions.i0),
    (aten.special_modified_bessel_i1.default, special_functions.i1),
    (aten.special_modified_bessel_k0.default, modified_bessel_k0),
    (aten.special_modified_bessel_k1.default, modified_bessel_k1),
    (aten.special_scaled_modified_bessel_k0.default, scaled_modified_bessel_k0),
    (aten.special_scaled_modified_bessel_k1.default, scaled_modified_bessel_k1),
    (aten.special_airy_ai.default, airy_ai),
):
    unary(_op, in_float64(_function), integers=False)
