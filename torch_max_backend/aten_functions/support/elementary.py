"""Elementary functions with torch's special values, composed of MAX ops.

MAX's own ``exp``, ``tanh``, ``sigmoid``, ``acos``, ``pow`` and ``relu`` lose NaN, saturate below infinity, or are less
accurate than torch's in some dtype. The functions here are what lowerings should call. Each takes and returns values
of one floating dtype; 16-bit floats are computed in float32 and rounded once. They fuse like any elementwise op: the
corrections cost no measurable time in a kernel that reads and writes memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from max.dtype import DType
from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.support.dtypes import accumulator
from torch_max_backend.aten_functions.support.node_context import settings
from torch_max_backend.aten_functions.support.tensor_ops import cast, constant

Function = Callable[..., TensorValue]
NAN, INF = math.nan, math.inf


def number(value: bool | int | float, like: TensorValue) -> TensorValue:
    """A 0-d constant in the dtype and on the device of ``like``."""
    return constant(value, like.dtype, like.device)


def in_accumulator(function: Function) -> Function:
    """Run ``function`` in float32 when its tensors are 16-bit floats, and round its result once."""

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> TensorValue:
        dtype = next(a.dtype for a in (*args, *options.values()) if isinstance(a, TensorValue))
        wide = accumulator(dtype)
        if wide == dtype:
            return function(*args, **options)
        token = _is_rounded.set(True)
        try:
            result = function(*(_widened(a, wide) for a in args), **{k: _widened(v, wide) for k, v in options.items()})
        finally:
            _is_rounded.reset(token)
        return cast(result, dtype)

    return wrapped


_is_rounded: ContextVar[bool] = ContextVar("torch_max_backend_rounded", default=False)


def is_short(x: TensorValue) -> bool:
    """Whether float32 ``x`` is on a GPU and what is computed of it will be rounded to 16 bits, so 17 are enough."""
    return _is_rounded.get() and _is_approximate(x)


def _widened(value: Any, dtype: DType) -> Any:
    return cast(value, dtype) if isinstance(value, TensorValue) else value


def in_float64(function: Function) -> Function:
    """Run ``function`` in float64 whatever the dtype, and round its result once: for functions without a fast path."""

    @functools.wraps(function)
    def wrapped(*args: TensorValue) -> TensorValue:
        dtype = args[0].dtype
        return cast(function(*(cast(a, DType.float64) for a in args)), dtype)

    return wrapped


# -- what MAX folds ------------------------------------------------------------------------------------------------
# MAX's graph compiler takes x * 0, 0 / x and x - x for 0, and x == x and x >= x for True, also where it finds the two
# x equal only by comparing how they were computed. For NaN and infinities that is wrong.
def equal(x: TensorValue, y: TensorValue) -> TensorValue:
    """``x == y`` of two tensors, False if either is NaN."""
    return not_nan(x, ops.equal(x, y))


def greater_equal(x: TensorValue, y: TensorValue) -> TensorValue:
    """``x >= y`` of two tensors, False if either is NaN."""
    return not_nan(x, ops.greater_equal(x, y))


def not_equal(x: TensorValue, y: TensorValue) -> TensorValue:
    """``x != y`` of two tensors, True if either is NaN (MAX's is False then)."""
    return ops.logical_not(equal(x, y))


def not_nan(x: TensorValue, condition: TensorValue) -> TensorValue:
    """``condition``, but False where ``x`` is NaN."""
    return both(condition, ops.logical_not(ops.is_nan(x))) if x.dtype.is_float() else condition


def product(x: TensorValue, y: TensorValue) -> TensorValue:
    """``x * y``, NaN where a constant zero meets NaN or an infinity."""
    result = ops.mul(x, y)
    for constant_one, other in ((x, y), (y, x)):
        if x.dtype.is_float() and is_constant(constant_one) and not is_constant(other):
            lost = both(ops.equal(constant_one, number(0, x)), is_not_finite(other))
            result = ops.where(lost, number(NAN, x), result)
    return result


def quotient(x: TensorValue, y: TensorValue) -> TensorValue:
    """``x / y``, NaN where a constant zero meets NaN or zero."""
    result = ops.div(x, y)
    if not is_constant(x) or is_constant(y):
        return result
    zero = number(0, x)
    lost = both(ops.equal(x, zero), either(ops.equal(y, zero), ops.is_nan(y)))
    return ops.where(lost, number(NAN, x), result)


def difference(x: TensorValue, y: TensorValue) -> TensorValue:
    """``x - y``, NaN where a value that is not finite meets itself."""
    if x is y and x.dtype.is_float():
        return ops.where(is_not_finite(x), number(NAN, x), number(0, x))
    return ops.sub(x, y)


def is_not_finite(x: TensorValue) -> TensorValue:
    """Whether ``x`` is NaN or an infinity."""
    return either(ops.is_nan(x), ops.is_inf(x))


def is_constant(x: TensorValue) -> bool:
    """Whether ``x`` is computed from constants alone."""
    return _is_constant(x._mlir_value, depth=8)


def _is_constant(value: Any, depth: int) -> bool:
    """Follow the operands; block arguments (inputs of the graph) have none."""
    operation = value.owner
    operands = [getattr(o, "value", o) for o in getattr(operation, "operands", [])]
    if type(operation).__name__ == "ConstantOp":
        return True
    return bool(operands) and depth > 0 and all(_is_constant(o, depth - 1) for o in operands)


# -- selections ----------------------------------------------------------------------------------------------------
def either(*conditions: TensorValue) -> TensorValue:
    """Whether any of the conditions holds."""
    return functools.reduce(ops.logical_or, conditions)


def both(*conditions: TensorValue) -> TensorValue:
    """Whether all conditions hold."""
    return functools.reduce(ops.logical_and, conditions)


def less(x: TensorValue, y: TensorValue) -> TensorValue:
    """``x < y``; MAX has only ``>``."""
    return ops.greater(y, x)


def truth(x: TensorValue) -> TensorValue:
    """Anything but zero is true, NaN too."""
    return x if x.dtype == DType.bool else ops.logical_not(ops.equal(x, number(0, x)))


def is_negative(x: TensorValue) -> TensorValue:
    """The sign bit of a number; of a NaN, False."""
    zero = number(0, x)
    return either(less(x, zero), both(ops.equal(x, zero), less(ops.div(number(1, x), x), zero)))


def with_sign_of(magnitude: TensorValue, x: TensorValue) -> TensorValue:
    """A non-negative ``magnitude`` with the sign of the number ``x``."""
    return ops.where(is_negative(x), ops.negate(magnitude), magnitude)


def keep_nan(x: TensorValue, y: TensorValue) -> TensorValue:
    """``x`` where it is NaN, else ``y``."""
    return ops.where(ops.is_nan(x), x, y)


def maximum(x: TensorValue, y: TensorValue) -> TensorValue:
    """The larger one; NaN if either is (MAX's ``max`` ignores NaN)."""
    if not x.dtype.is_float():
        return ops.max(x, y)
    return ops.where(either(ops.greater_equal(x, y), ops.is_nan(x)), x, y)


def minimum(x: TensorValue, y: TensorValue) -> TensorValue:
    """The smaller one; NaN if either is."""
    if not x.dtype.is_float():
        return ops.min(x, y)
    return ops.where(either(ops.greater_equal(y, x), ops.is_nan(x)), x, y)


def at_least(x: TensorValue, low: TensorValue) -> TensorValue:
    """``x`` raised to ``low`` where it is below; a NaN ``x`` stays, a NaN ``low`` must not occur."""
    return ops.where(less(x, low), low, x)


def at_most(x: TensorValue, high: TensorValue) -> TensorValue:
    """``x`` lowered to ``high`` where it is above; a NaN ``x`` stays, a NaN ``high`` must not occur."""
    return ops.where(ops.greater(x, high), high, x)


def relu(x: TensorValue) -> TensorValue:
    """``max(x, 0)`` that keeps NaN, and -0.0 as torch does."""
    return at_least(x, number(0, x))


# -- exponentials --------------------------------------------------------------------------------------------------
_SHIFT = 1.375  # exact in binary, so that x - 1.375 is exact for x near the overflow of exp


@in_accumulator
def exp(x: TensorValue) -> TensorValue:
    """e**x. MAX's float32 exp saturates at 2.4e38 (x = 88.38) and loses NaN; its float64 exp has nine digits."""
    if x.dtype == DType.float64:
        return _exp_float64(x)
    large = ops.greater(x, number(88.0, x))
    shifted = _exp_float32(ops.where(large, ops.sub(x, number(_SHIFT, x)), x))
    return keep_nan(x, ops.mul(shifted, ops.where(large, number(math.exp(_SHIFT), x), number(1, x))))


_LOG2E_FLOAT32 = 1.4426950216293335
"""The float32 that MAX multiplies with on a GPU before it takes a power of two."""


def _exp_float32(x: TensorValue) -> TensorValue:
    """MAX's exp. On NVIDIA's GPUs that is ``2 ** (x * log2(e))`` with the product rounded, which costs 40 units in the
    last place at 80; what the rounding dropped is put back."""
    rough = ops.exp(x)
    if not _is_approximate(x) or is_short(x) or settings().gpu != "cuda":
        return rough
    turns = cast(ops.mul(x, number(_LOG2E_FLOAT32, x)), DType.float64)
    exact = ops.mul(cast(x, DType.float64), number(math.log2(math.e), turns))
    missed = cast(ops.mul(ops.sub(exact, turns), number(math.log(2), turns)), x.dtype)
    return ops.where(less(ops.abs(x), number(200, x)), ops.add(rough, ops.mul(rough, missed)), rough)


def _exp_float64(x: TensorValue) -> TensorValue:
    """exp(x/2) squared; MAX's nine digits become sixteen by one Newton step on its accurate log."""
    half = ops.mul(at_most(at_least(x, number(-750.0, x)), number(710.0, x)), number(0.5, x))
    rough = ops.exp(half)
    root = ops.add(rough, ops.mul(rough, ops.sub(half, ops.log(rough))))
    return keep_nan(x, ops.mul(root, root))


@in_accumulator
def log(x: TensorValue) -> TensorValue:
    """The natural logarithm. In float32 on a GPU MAX's is an instruction of 22 bits, whose digits cancel around 1."""
    if not _is_approximate(x):
        return ops.log(x)
    rest = ops.sub(x, number(1, x))
    return ops.where(less(ops.abs(rest), number(0.5, x)), ops.log1p(rest), ops.log(x))


def _is_approximate(x: TensorValue) -> bool:
    """Whether MAX computes ``exp``, ``log``, ``tanh`` and circular functions by instructions of few digits."""
    return x.device.is_gpu() and x.dtype == DType.float32


@in_accumulator
def tanh(x: TensorValue) -> TensorValue:
    """tanh(x); MAX's makes 1.0 of NaN, and is off by 0.13 in float16."""
    return keep_nan(x, plain_tanh(x))


_TANH_NEAR = (-0.3333333310150022, 0.13333292960709892, -0.053956801206710016, 0.021749404759662232,
              -0.008281778055402745, 0.0022243212094138513)  # fmt: skip
"""Of ``(tanh(x) / x - 1) / x**2`` as a polynomial of ``x**2``, fitted for ``abs(x)`` up to 0.65."""


def plain_tanh(x: TensorValue) -> TensorValue:
    """tanh(x) of float32 or float64 that is no NaN.

    In float32 on a GPU MAX's is an instruction with 11 correct bits. Here the error is 2 units in the last place. In
    float64 it has seven digits there.
    """
    if x.dtype == DType.float64 and x.device.is_gpu():
        return _tanh_float64(x)
    if not _is_approximate(x):
        return ops.tanh(x)
    size, square, one = ops.abs(x), ops.mul(x, x), number(1, x)
    series = number(_TANH_NEAR[-1], x)
    for coefficient in _TANH_NEAR[-2::-1]:
        series = ops.add(ops.mul(series, square), number(coefficient, x))
    near = ops.add(x, ops.mul(ops.mul(x, square), series))
    fallen = ops.exp(ops.mul(number(-2, x), size))
    far = ops.div(ops.sub(one, fallen), ops.add(one, fallen))
    return ops.where(less(size, number(0.6, x)), near, ops.where(less(x, number(0, x)), ops.negate(far), far))


_FRACTIONS = 10
"""Levels of the continued fraction: the rest is below a unit in the last place up to 0.6."""


def _tanh_float64(x: TensorValue) -> TensorValue:
    """tanh(x) by exponentials, and near zero, where those cancel, by ``x / (1 + x² / (3 + x² / (5 + ...)))``."""
    size, square, one = ops.abs(x), ops.mul(x, x), number(1, x)
    below = number(2 * _FRACTIONS + 1, x)
    for level in range(_FRACTIONS - 1, -1, -1):
        below = ops.add(number(2 * level + 1, x), ops.div(square, below))
    fallen = exp(ops.mul(number(-2, x), size))
    far = ops.div(ops.sub(one, fallen), ops.add(one, fallen))
    signed = ops.where(less(x, number(0, x)), ops.negate(far), far)
    return ops.where(less(size, number(0.6, x)), ops.div(x, below), signed)


@in_accumulator
def expm1(x: TensorValue) -> TensorValue:
    """e**x - 1 without cancellation: 2t/(1-t) with t = tanh(x/2) near zero."""
    t = plain_tanh(ops.mul(x, number(0.5, x)))
    near = ops.div(ops.add(t, t), ops.sub(number(1, x), t))
    far = ops.sub(exp(x), number(1, x))
    return ops.where(less(ops.abs(x), number(1, x)), near, far)


@in_accumulator
def sigmoid(x: TensorValue) -> TensorValue:
    """1/(1+e**-x); MAX's makes 0.0 of NaN, and has nine digits in float64."""
    if x.dtype == DType.float64:
        return ops.div(number(1, x), ops.add(number(1, x), exp(ops.negate(x))))
    return keep_nan(x, short_sigmoid(x) if is_short(x) else ops.sigmoid(x))


def short_sigmoid(x: TensorValue) -> TensorValue:
    """1/(1+e**-x) of float32 on a GPU, with 17 bits: another logarithm and exponential cost less than MAX's
    division, which is exact to the last digit."""
    return ops.exp(ops.negate(ops.log(ops.add(number(1, x), ops.exp(ops.negate(x))))))


_NORMAL_TAIL = (0.79788533, 0.31829887, 0.036387578, -0.00489599,
                9.4917214e-05, 0.00012905026, -2.7294531e-05, 1.9650119e-06)  # fmt: skip
"""Of ``-log(erfc(x / sqrt(2)))`` as a polynomial of ``x`` without a constant, fitted for the least absolute error of
``erf(x / sqrt(2))``, which is 1.2e-7 in float32."""


def normal_cumulative(x: TensorValue) -> TensorValue:
    """``(1 + erf(x / sqrt(2))) / 2``, which is rounded where torch rounds: to a multiple of 3e-8 below zero.

    In float32 on a GPU MAX's ``erf`` has a division: a GELU by it has 49 instructions of sm_90a an element, by this 23.
    """
    half, one = number(0.5, x), number(1, x)
    if not _is_approximate(x):
        return ops.mul(half, ops.add(one, ops.erf(ops.mul(x, number(math.sqrt(0.5), x)))))
    size = ops.min(ops.abs(x), number(6.0, x))
    series = number(_NORMAL_TAIL[-1], x)
    for coefficient in _NORMAL_TAIL[-2::-1]:
        series = ops.add(ops.mul(series, size), number(coefficient, x))
    inside = ops.sub(one, ops.exp(ops.negate(ops.mul(series, size))))
    return ops.mul(half, ops.add(one, ops.where(less(x, number(0, x)), ops.negate(inside), inside)))


@in_accumulator
def softplus(x: TensorValue) -> TensorValue:
    """log(1 + e**x) without overflow."""
    return ops.add(relu(x), ops.log1p(exp(ops.negate(ops.abs(x)))))


# -- powers --------------------------------------------------------------------------------------------------------
_LONGEST_CHAIN = 8  # rounding errors of a product of n factors add up to n/2 ulp


def power(x: TensorValue, exponent: int | float) -> TensorValue:
    """``x`` to a constant power, with torch's shortcuts: products, square roots and reciprocals."""
    if exponent == 0:
        return ops.broadcast_to(number(1, x), x.shape)
    if exponent in (0.5, -0.5):
        return _wide(ops.sqrt if exponent > 0 else ops.rsqrt, x)
    if exponent == int_or_none(exponent) and abs(exponent) <= _LONGEST_CHAIN:
        return _wide(lambda v: _product_chain(v, int(exponent)), x)
    return pow_float(x, number(exponent, cast(x, DType.float64)))


def int_or_none(value: int | float) -> int | None:
    """The value as an int if it is one."""
    return int(value) if math.isfinite(value) and value == int(value) else None


def _wide(function: Function, x: TensorValue) -> TensorValue:
    return in_accumulator(function)(x)


def _product_chain(x: TensorValue, n: int) -> TensorValue:
    result = integer_power(x, abs(n))
    return result if n > 0 else ops.div(number(1, x), result)


def integer_power(x: TensorValue, n: int) -> TensorValue:
    """``x`` to a positive constant integer power by squaring; integers wrap around."""
    result: TensorValue | None = None
    square = x
    while n:
        if n & 1:
            result = square if result is None else ops.mul(result, square)
        n >>= 1
        square = ops.mul(square, square) if n else square
    assert result is not None, "integer_power needs n > 0"
    return result


def pow_float(x: TensorValue, y: TensorValue) -> TensorValue:
    """C's ``pow`` of floats, in the dtype of ``x``; computed in float64, because MAX's is off at its special values.

    The result of float32 and shorter dtypes is the rounded exact one, but for a few parts in a billion.
    """
    dtype = x.dtype
    exact = dtype == DType.float64
    x, y = cast(x, DType.float64), cast(y, DType.float64)
    zero, one = number(0, x), number(1, x)
    log_of_size = ops.mul(y, ops.log(ops.abs(x)))
    size = exp(log_of_size) if exact else ops.exp(log_of_size)
    whole = ops.equal(ops.trunc(y), y)
    half = ops.mul(y, number(0.5, x))
    odd = both(whole, ops.not_equal(ops.trunc(half), half))
    signed = ops.where(both(odd, is_negative(x)), ops.negate(size), size)
    # A finite negative base has no real power that is not whole; -inf has (C: pow(-inf, 0.5) is inf).
    undefined = both(less(x, zero), ops.logical_not(whole), ops.logical_not(ops.is_inf(x)))
    undefined = either(undefined, ops.is_nan(x), ops.is_nan(y))
    is_one = either(ops.equal(y, zero), ops.equal(x, one), both(ops.equal(ops.abs(x), one), ops.is_inf(y)))
    if exact:
        signed = _rounded_if(both(whole, ops.equal(ops.trunc(x), x)), signed, size)
    result = ops.where(is_one, one, ops.where(undefined, number(NAN, x), signed))
    return cast(result, dtype)


def pow_of_positive(base: float, y: TensorValue) -> TensorValue:
    """A positive finite constant to the power ``y``, in the dtype of ``y``."""
    wide = cast(y, DType.float64)
    if base == 1.0:
        return ops.broadcast_to(number(1, y), y.shape)
    exponent = ops.mul(wide, number(math.log(base), wide))
    if y.dtype != DType.float64:
        return keep_nan(y, cast(ops.exp(exponent), y.dtype))
    size = exp(exponent)
    return keep_nan(y, _rounded_if(ops.equal(ops.trunc(y), y), size, size) if base == int(base) else size)


def _rounded_if(whole: TensorValue, value: TensorValue, size: TensorValue) -> TensorValue:
    """Powers of whole numbers to whole exponents are whole: their last rounding error is taken out."""
    is_exact = both(whole, ops.greater(number(2.0**52, size), size), ops.greater(size, number(0.5, size)))
    return ops.where(is_exact, ops.round(value), value)


# -- series --------------------------------------------------------------------------------------------------------
def polynomial(x: TensorValue, coefficients: Sequence[float]) -> TensorValue:
    """Horner's rule; the constant term comes first."""
    result = number(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        result = ops.add(ops.mul(result, x), number(c, x))
    return result


def chebyshev(t: TensorValue, coefficients: Sequence[float]) -> TensorValue:
    """Clenshaw's sum of Chebyshev polynomials, ``t`` in [-1, 1]."""
    double = ops.add(t, t)
    older, newer = number(0, t), number(coefficients[-1], t)
    for c in reversed(coefficients[1:-1]):
        older, newer = newer, ops.add(ops.sub(ops.mul(double, newer), older), number(c, t))
    return ops.add(ops.sub(ops.mul(t, newer), older), number(coefficients[0], t))
