"""Activations and their gradients. 16-bit floats are computed in float32 and rounded once, as in torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from max.dtype import DType
from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support import elementary
from torch_max_backend.aten_functions.support.elementary import (
    at_least,
    at_most,
    in_accumulator,
    less,
    number,
    relu,
)
from torch_max_backend.aten_functions.support.node_context import is_used, out_shape
from torch_max_backend.aten_functions.support.tensor_ops import axis_of, full
from torch_max_backend.aten_functions.support.value_facts import unfinished_of
from torch_max_backend.aten_functions.views.views import take_slice

Number = bool | int | float
F = TypeVar("F", bound=Callable[..., Any])
_add, _sub, _mul, _div = ops.add, ops.sub, ops.mul, ops.div


def activation(op: object) -> Callable[[F], F]:
    """Register a function of floats in which 16-bit floats are computed in float32."""

    def register(function: F) -> F:
        return map_to(op)(in_accumulator(function))  # type: ignore[return-value]

    return register


# -- relu and its kin ----------------------------------------------------------------------------------------------
# relu(Tensor self) -> Tensor
@map_to(aten.relu.default)
def relu_(self: TensorValue) -> TensorValue:
    """``max(self, 0)``."""
    return relu(self)


# hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor
@map_to(aten.hardtanh.default)
def hardtanh(self: TensorValue, min_val: Number = -1, max_val: Number = 1) -> TensorValue:
    """``self`` between two bounds."""
    return at_most(at_least(self, number(min_val, self)), number(max_val, self))


# hardtanh_backward(Tensor grad_output, Tensor self, Scalar min_val, Scalar max_val) -> Tensor
@map_to(aten.hardtanh_backward.default)
def hardtanh_backward(grad_output: TensorValue, self: TensorValue, min_val: Number, max_val: Number) -> TensorValue:
    """The gradient where ``self`` is not clamped; 0 at the bounds."""
    inside = ops.logical_and(ops.greater(self, number(min_val, self)), less(self, number(max_val, self)))
    return ops.where(inside, grad_output, number(0, grad_output))


# threshold(Tensor self, Scalar threshold, Scalar value) -> Tensor
@map_to(aten.threshold.default)
def threshold(self: TensorValue, threshold: Number, value: Number) -> TensorValue:
    """``value`` where ``self`` is at or below the threshold."""
    return ops.where(ops.greater_equal(number(threshold, self), self), number(value, self), self)


# threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor
@map_to(aten.threshold_backward.default)
def threshold_backward(grad_output: TensorValue, self: TensorValue, threshold: Number) -> TensorValue:
    """The gradient above the threshold, and where ``self`` is NaN."""
    return ops.where(ops.greater_equal(number(threshold, self), self), number(0, grad_output), grad_output)


# leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor
@activation(aten.leaky_relu.default)
def leaky_relu(self: TensorValue, negative_slope: Number = 0.01) -> TensorValue:
    """A slope below zero."""
    return ops.where(ops.greater(self, number(0, self)), self, _mul(self, number(negative_slope, self)))


# leaky_relu_backward(Tensor grad_output, Tensor self, Scalar negative_slope, bool self_is_result) -> Tensor
@activation(aten.leaky_relu_backward.default)
def leaky_relu_backward(
    grad_output: TensorValue, self: TensorValue, negative_slope: Number, self_is_result: bool
) -> TensorValue:
    """The sign of the result is that of the input, so ``self_is_result`` changes nothing."""
    scaled = _mul(grad_output, number(negative_slope, grad_output))
    return ops.where(ops.greater(self, number(0, self)), grad_output, scaled)


# _prelu_kernel(Tensor self, Tensor weight) -> Tensor
@map_to(aten._prelu_kernel.default)
def prelu_kernel(self: TensorValue, weight: TensorValue) -> TensorValue:
    """A slope per element below zero."""
    return ops.where(ops.greater(self, number(0, self)), self, _mul(weight, self))


# -- exponential ---------------------------------------------------------------------------------------------------
# elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor
@activation(aten.elu.default)
def elu(self: TensorValue, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> TensorValue:
    """``scale * self`` above zero, ``scale * alpha * expm1(input_scale * self)`` below."""
    zero = number(0, self)
    # Only numbers below zero reach expm1: no overflow can meet a product with zero.
    bent = _mul(elementary.expm1(_mul(at_most(self, zero), number(input_scale, self))), number(alpha * scale, self))
    return ops.where(ops.greater(self, zero), _mul(self, number(scale, self)), bent)


# elu_backward(Tensor grad_output, Scalar alpha, Scalar scale, Scalar input_scale, bool is_result,
#              Tensor self_or_result) -> Tensor
@map_to(aten.elu_backward.default)
def elu_backward(
    grad_output: TensorValue,
    alpha: Number,
    scale: Number,
    input_scale: Number,
    is_result: bool,
    self_or_result: TensorValue,
) -> TensorValue:
    """The gradient from the input, or from the result."""
    slope = float(alpha * scale)

    def gradient(grad: TensorValue, x: TensorValue) -> TensorValue:
        zero = number(0, x)
        if is_result:
            bent = _mul(number(input_scale, x), _add(x, number(slope, x)))
        else:
            bent = _mul(number(input_scale * slope, x), elementary.exp(_mul(at_most(x, zero), number(input_scale, x))))
        return _mul(grad, ops.where(ops.greater(x, zero), number(scale, x), bent))

    return in_accumulator(gradient)(grad_output, self_or_result)


# softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor
@activation(aten.softplus.default)
def softplus(self: TensorValue, beta: Number = 1, threshold: Number = 20) -> TensorValue:
    """``log(1 + e**(beta * self)) / beta``, ``self`` above the threshold."""
    scaled = _mul(self, number(beta, self))
    smooth = _div(ops.log1p(elementary.exp(at_most(scaled, number(threshold, self)))), number(beta, self))
    return ops.where(ops.greater(scaled, number(threshold, self)), self, smooth)


# softplus_backward(Tensor grad_output, Tensor self, Scalar beta, Scalar threshold) -> Tensor
@activation(aten.softplus_backward.default)
def softplus_backward(grad_output: TensorValue, self: TensorValue, beta: Number, threshold: Number) -> TensorValue:
    """The gradient times ``sigmoid(beta * self)``."""
    scaled = _mul(self, number(beta, self))
    smooth = _mul(grad_output, elementary.sigmoid(scaled))
    return ops.where(ops.greater(scaled, number(threshold, self)), grad_output, smooth)


# -- sigmoid and tanh ----------------------------------------------------------------------------------------------
# sigmoid_backward(Tensor grad_output, Tensor output) -> Tensor
@activation(aten.sigmoid_backward.default)
def sigmoid_backward(grad_output: TensorValue, output: TensorValue) -> TensorValue:
    """``grad * y * (1 - y)``."""
    return _mul(grad_output, _mul(_sub(number(1, output), output), output))


# tanh_backward(Tensor grad_output, Tensor output) -> Tensor
@activation(aten.tanh_backward.default)
def tanh_backward(grad_output: TensorValue, output: TensorValue) -> TensorValue:
    """``grad * (1 - y²)``."""
    return _mul(grad_output, _sub(number(1, output), _mul(output, output)))


# log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer)
@map_to(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(self: TensorValue) -> tuple[TensorValue, TensorValue | None]:
    """``log(sigmoid(x)) = min(x, 0) - log1p(z)`` and the ``z = e**-|x|`` that torch keeps on a CPU."""

    def value(x: TensorValue) -> TensorValue:
        return _sub(at_most(x, number(0, x)), ops.log1p(tail(x)))

    def tail(x: TensorValue) -> TensorValue:
        return elementary.exp(ops.negate(ops.abs(x)))

    return in_accumulator(value)(self), _buffer(in_accumulator(tail)(self)) if is_used(1) else None


def _buffer(tail: TensorValue) -> TensorValue:
    """On a GPU torch keeps nothing and promises an empty buffer."""
    return tail if len(out_shape(1)) == tail.rank and out_shape(1) != [0] else full(0, [0], tail.dtype, tail.device)


# log_sigmoid_backward(Tensor grad_output, Tensor self, Tensor buffer) -> Tensor
@map_to(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(grad_output: TensorValue, self: TensorValue, buffer: TensorValue) -> TensorValue:
    """``grad * sigmoid(-self)``; the buffer is not needed."""
    return in_accumulator(lambda grad, x: _mul(grad, elementary.sigmoid(ops.negate(x))))(grad_output, self)


# silu(Tensor self) -> Tensor
@activation(aten.silu.default)
def silu(self: TensorValue) -> TensorValue:
    """``x * sigmoid(x)``; MAX's has nine digits in float64."""
    if elementary.is_short(self):
        return _mul(self, elementary.short_sigmoid(self))
    return _mul(self, elementary.sigmoid(self)) if self.dtype == DType.float64 else ops.silu(self)


# silu_backward(Tensor grad_output, Tensor self) -> Tensor
@activation(aten.silu_backward.default)
def silu_backward(grad_output: TensorValue, self: TensorValue) -> TensorValue:
    """``grad * s * (1 + x * (1 - s))`` with ``s = sigmoid(x)``."""
    s, one = elementary.sigmoid(self), number(1, self)
    return _mul(_mul(grad_output, s), _add(one, _mul(self, _sub(one, s))))


# glu(Tensor self, int dim=-1) -> Tensor
@map_to(aten.glu.default)
def glu(self: TensorValue, dim: int = -1) -> TensorValue:
    """The first half along ``dim`` times the sigmoid of the second."""
    axis = axis_of(dim, self.rank)
    half = out_shape()[axis]
    first, second = (take_slice(self, axis, start, 1, half, is_inside=True) for start in (0, half))
    return in_accumulator(lambda a, b: _mul(a, elementary.sigmoid(b)))(first, second)


# mish(Tensor self) -> Tensor
@activation(aten.mish.default)
def mish(self: TensorValue) -> TensorValue:
    """``x * tanh(softplus(x))``."""
    return _mul(self, elementary.tanh(elementary.softplus(self)))


# mish_backward(Tensor grad_output, Tensor self) -> Tensor
@activation(aten.mish_backward.default)
def mish_backward(grad_output: TensorValue, self: TensorValue) -> TensorValue:
    """``grad * (t + x * s * (1 - t²))`` with ``t = tanh(softplus(x))`` and ``s = sigmoid(x)``."""
    t, s = elementary.tanh(elementary.softplus(self)), elementary.sigmoid(self)
    slope = _add(t, _mul(_mul(self, s), _sub(number(1, self), _mul(t, t))))
    return _mul(grad_output, slope)


# -- hard sigmoid and hard swish -----------------------------------------------------------------------------------
def _gate(x: TensorValue) -> TensorValue:
    """``clamp(x + 3, 0, 6)``."""
    return at_most(relu(_add(x, number(3, x))), number(6, x))


# hardsigmoid(Tensor self) -> Tensor
@activation(aten.hardsigmoid.default)
def hardsigmoid(self: TensorValue) -> TensorValue:
    """``clamp(x + 3, 0, 6) / 6``."""
    return _div(_gate(self), number(6, self))


# hardsigmoid_backward(Tensor grad_output, Tensor self) -> Tensor
@activation(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(grad_output: TensorValue, self: TensorValue) -> TensorValue:
    """``grad / 6`` between -3 and 3, else 0."""
    inside = ops.logical_and(ops.greater(self, number(-3, self)), less(self, number(3, self)))
    return ops.where(inside, _mul(grad_output, number(1 / 6, self)), number(0, self))


# hardswish(Tensor self) -> Tensor
@activation(aten.hardswish.default)
def hardswish(self: TensorValue) -> TensorValue:
    """``x * clamp(x + 3, 0, 6) / 6``."""
    return _div(_mul(self, _gate(self)), number(6, self))


# hardswish_backward(Tensor grad_output, Tensor self) -> Tensor
@activation(aten.hardswish_backward.default)
def hardswish_backward(grad_output: TensorValue, self: TensorValue) -> TensorValue:
    """0 below -3, ``grad`` above 3, ``grad * (x / 3 + 0.5)`` between."""
    between = _mul(grad_output, _add(_div(self, number(3, self)), number(0.5, self)))
    above = ops.where(ops.greater_equal(self, number(3, self)), grad_output, between)
    return ops.where(ops.greater_equal(number(-3, self), self), number(0, self), above)


# -- gelu ----------------------------------------------------------------------------------------------------------
_TANH_SCALE, _TANH_CUBIC = math.sqrt(2 / math.pi), 0.044715


# gelu(Tensor self, *, str approximate="none") -> Tensor
@map_to(aten.gelu.default)
def gelu(self: TensorValue, *, approximate: str = "none") -> TensorValue:
    """``x * Phi(x)``, exact or by tanh."""
    source = unfinished_of(self) if approximate == "tanh" else None
    fused = None if source is None else source.activated("gelu")
    return _gelu(self, approximate) if fused is None else fused


@in_accumulator
def _gelu(x: TensorValue, approximate: str) -> TensorValue:
    if x.device.is_cpu():
        return ops.gelu(x, approximate)
    if approximate != "tanh":
        return _mul(x, elementary.normal_cumulative(x))
    half, cube = number(0.5, x), _mul(_mul(x, x), x)
    inner = _mul(number(_TANH_SCALE, x), _add(x, _mul(number(_TANH_CUBIC, x), cube)))
    if elementary.is_short(x):
        return _mul(x, elementary.short_sigmoid(_add(inner, inner)))
    return _mul(_mul(half, x), _add(number(1, x), elementary.plain_tanh(inner)))


# gelu_backward(Tensor grad_output, Tensor self, *, str approximate="none") -> Tensor
@activation(aten.gelu_backward.default)
def gelu_backward(grad_output: TensorValue, self: TensorValue, *, approximate: str = "none") -> TensorValue:
    """``grad * (Phi(x) + x * phi(x))``, or the derivative of the form by tanh."""
    slope = _tanh_gelu_slope(self) if approximate == "tanh" else _gelu_slope(self)
    return _mul(grad_output, slope)


def _gelu_slope(x: TensorValue) -> TensorValue:
    cumulative = elementary.normal_cumulative(x)
    density = _mul(elementary.exp(_mul(_mul(x, x), number(-0.5, x))), number(1 / math.sqrt(2 * math.pi), x))
    return _add(cumulative, _mul(x, density))


def _tanh_gelu_slope(x: TensorValue) -> TensorValue:
    one, half, square = number(1, x), number(0.5, x), _mul(x, x)
    inner = _mul(_mul(number(_TANH_SCALE, x), x), _add(one, _mul(number(_TANH_CUBIC, x), square)))
    inner_slope = _mul(number(_TANH_SCALE, x), _add(one, _mul(number(3 * _TANH_CUBIC, x), square)))
    if elementary.is_short(x):  # gelu is x * s for the sigmoid s of twice the inner function
        s = elementary.short_sigmoid(_add(inner, inner))
        return _add(s, _mul(_mul(x, _sub(s, _mul(s, s))), _add(inner_slope, inner_slope)))
    t = elementary.tanh(inner)
    left = _mul(half, _add(one, t))
    right = _mul(_mul(half, x), _mul(_sub(one, _mul(t, t)), inner_slope))
    return _add(left, right)


# -- shrinkage -----------------------------------------------------------------------------------------------------
def _inside(x: TensorValue, lambd: Number) -> TensorValue:
    low, high = number(-lambd, x), number(lambd, x)
    return ops.logical_and(ops.greater_equal(x, low), ops.greater_equal(high, x))


# softshrink(Tensor self, Scalar lambd=0.5) -> Tensor
@activation(aten.softshrink.default)
def softshrink(self: TensorValue, lambd: Number = 0.5) -> TensorValue:
    """Towards zero by ``lambd``; NaN stays."""
    bound, zero = number(lambd, self), number(0, self)
    lower = ops.where(less(self, ops.negate(bound)), _add(self, bound), zero)
    return elementary.keep_nan(self, ops.where(ops.greater(self, bound), _sub(self, bound), lower))


# hardshrink(Tensor self, Scalar lambd=0.5) -> Tensor
@map_to(aten.hardshrink.default)
def hardshrink(self: TensorValue, lambd: Number = 0.5) -> TensorValue:
    """0 between ``-lambd`` and ``lambd``."""
    return ops.where(_inside(self, lambd), number(0, self), self)


def _gradient_outside(grad: TensorValue, x: TensorValue, lambd: Number) -> TensorValue:
    outside = ops.logical_or(less(x, number(-lambd, x)), ops.greater(x, number(lambd, x)))
    return ops.where(outside, grad, number(0, grad))


# softshrink_backward(Tensor grad_output, Tensor self, Scalar lambd) -> Tensor
@map_to(aten.softshrink_backward.default)
def softshrink_backward(grad_output: TensorValue, self: TensorValue, lambd: Number) -> TensorValue:
    """The gradient outside ``-lambd`` to ``lambd``."""
    return _gradient_outside(grad_output, self, lambd)


# hardshrink_backward(Tensor grad_out, Tensor self, Scalar lambd) -> Tensor
@map_to(aten.hardshrink_backward.default)
def hardshrink_backward(grad_out: TensorValue, self: TensorValue, lambd: Number) -> TensorValue:
    """The gradient outside ``-lambd`` to ``lambd``."""
    return _gradient_outside(grad_out, self, lambd)


# rrelu_with_noise_backward(Tensor grad_output, Tensor self, Tensor noise, Scalar lower, Scalar upper, bool training,
#                           bool self_is_result) -> Tensor
@map_to(aten.rrelu_with_noise_backward.default)
def rrelu_with_noise_backward(
    grad_output: TensorValue,
    self: TensorValue,
    noise: TensorValue,
    lower: Number,
    upper: Number,
    training: bool,
    self_is_result: bool,
) -> TensorValue:
    """The gradient times the slopes that were drawn, or leaky_relu's with the mean slope."""
    if training and upper - lower > 1e-6:
        return _mul(grad_output, noise)
    slope = number((lower + upper) / 2, grad_output)
    return ops.where(ops.greater(self, number(0, self)), grad_output, _mul(grad_output, slope))
