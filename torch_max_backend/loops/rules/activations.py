"""Activations of networks and their gradients: a formula of scalars each."""

from __future__ import annotations

import math

from torch_max_backend.loops.expr import Scalar, constant, op, select
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.rules.pointwise import clamp, clamp_to, register_formulas
from torch_max_backend.loops.rules.registry import aten, rule
from torch_max_backend.loops.tensor import PROMOTION, Tensor, builder, pointwise


def relu(x: Scalar) -> Scalar:
    return op("maximum", x, constant(0, x.dtype))


def sigmoid(x: Scalar) -> Scalar:
    return op("sigmoid", x)


def silu(x: Scalar) -> Scalar:
    return x * sigmoid(x)


def softplus(x: Scalar, beta: float = 1.0, threshold: float = 20.0) -> Scalar:
    return select(x * beta > threshold, x, op("log1p", op("exp", x * beta)) / beta)


register_formulas(
    PROMOTION.DEFAULT,
    {
        aten.relu.default: relu,
        aten.silu.default: silu,
        aten.mish.default: lambda x: x * op("tanh", softplus(x)),
        aten.hardswish.default: lambda x: x * clamp_to(x + 3, 0, 6) / 6,
        aten.hardsigmoid.default: lambda x: clamp_to(x + 3, 0, 6) / 6,
    },
)


# hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor
@rule(aten.hardtanh.default)
def hardtanh(self: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    if self.dtype.is_floating_point:
        return clamp(self, min_val, max_val)
    return clamp(self, int(min_val), int(max_val))


# gelu(Tensor self, *, str approximate='none') -> Tensor
@rule(aten.gelu.default)
def gelu(self: Tensor, approximate: str = "none") -> Tensor:
    return pointwise(_gelu_tanh if approximate == "tanh" else _gelu, self)


def _gelu(x: Scalar) -> Scalar:
    return x * 0.5 * op("one_plus_erf", x * math.sqrt(0.5))


def _gelu_tanh(x: Scalar) -> Scalar:
    """``x / 2 (1 + tanh u)``, which is ``x sigmoid(2 u)``: one exponential, and exact far below zero, too."""
    return x * _share_above(x)


def _share_above(x: Scalar) -> Scalar:
    return op("sigmoid", math.sqrt(8 / math.pi) * (x + 0.044715 * (x * x * x)))


# gelu_backward(Tensor grad_output, Tensor self, *, str approximate='none') -> Tensor
@rule(aten.gelu_backward.default)
def gelu_backward(grad_output: Tensor, self: Tensor, approximate: str = "none") -> Tensor:
    def exact(g: Scalar, x: Scalar) -> Scalar:
        normal = op("exp", x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
        return g * (0.5 * op("one_plus_erf", x * math.sqrt(0.5)) + x * normal)

    def by_tanh(g: Scalar, x: Scalar) -> Scalar:
        share = _share_above(x)
        slope = math.sqrt(8 / math.pi) * (1 + 3 * 0.044715 * (x * x))
        return g * (share + x * (share * (1 - share)) * slope)

    return pointwise(by_tanh if approximate == "tanh" else exact, grad_output, self)


# silu_backward(Tensor grad_output, Tensor self) -> Tensor
@rule(aten.silu_backward.default)
def silu_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    def formula(g: Scalar, x: Scalar) -> Scalar:
        s = sigmoid(x)
        return g * s * (1 + x * (1 - s))

    return pointwise(formula, grad_output, self)


# hardswish_backward(Tensor grad_output, Tensor self) -> Tensor
@rule(aten.hardswish_backward.default)
def hardswish_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    passes_nan = builder().is_for_gpu

    def formula(g: Scalar, x: Scalar) -> Scalar:
        inside = g * (x / 3 + 0.5)
        beside = select(x < 3, inside, g) if passes_nan else select(x >= 3, g, inside)
        return select(x <= -3, constant(0, g.dtype), beside)

    return pointwise(formula, grad_output, self)


# elu_backward(Tensor grad_output, Scalar alpha, Scalar scale, Scalar input_scale, bool is_result,
#     Tensor self_or_result) -> Tensor
@rule(aten.elu_backward.default)
def elu_backward(
    grad_output: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, self_or_result: Tensor
) -> Tensor:
    passes_nan = builder().is_for_gpu

    def formula(g: Scalar, x: Scalar) -> Scalar:
        if is_result:
            below = g * input_scale * (x + alpha * scale)
        else:
            below = g * (input_scale * alpha * scale) * op("exp", x * input_scale)
        if passes_nan:
            return select(x <= 0, below, g * scale)
        return select(x > 0, g * scale, below)  # not a number where x is none

    return pointwise(formula, grad_output, self_or_result)


# hardtanh_backward(Tensor grad_output, Tensor self, Scalar min_val, Scalar max_val) -> Tensor
@rule(aten.hardtanh_backward.default)
def hardtanh_backward(grad_output: Tensor, self: Tensor, min_val: float, max_val: float) -> Tensor:
    passes_nan = builder().is_for_gpu

    def formula(g: Scalar, x: Scalar) -> Scalar:
        nothing = constant(0, g.dtype)
        if passes_nan:
            return select((x <= min_val) | (x >= max_val), nothing, g)
        return select((x > min_val) & (x < max_val), g, nothing)  # 0 where x is not a number

    return pointwise(formula, grad_output, self)


# threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor
@rule(aten.threshold_backward.default)
def threshold_backward(grad_output: Tensor, self: Tensor, threshold: float) -> Tensor:
    return pointwise(lambda g, x: select(x <= threshold, constant(0, g.dtype), g), grad_output, self)


# sigmoid_backward(Tensor grad_output, Tensor output) -> Tensor
@rule(aten.sigmoid_backward.default)
def sigmoid_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    return pointwise(lambda g, y: g * (y * (1 - y)), grad_output, output)


# tanh_backward(Tensor grad_output, Tensor output) -> Tensor
@rule(aten.tanh_backward.default)
def tanh_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    return pointwise(lambda g, y: g * (1 - y * y), grad_output, output)


# leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor
@rule(aten.leaky_relu.default)
def leaky_relu(self: Tensor, negative_slope: float = 0.01) -> Tensor:
    return pointwise(lambda x: select(x > 0, x, x * negative_slope), self)


# elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor
@rule(aten.elu.default)
def elu(self: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    def formula(x: Scalar) -> Scalar:
        return select(x > 0, x * scale, op("expm1", x * input_scale) * (alpha * scale))

    return pointwise(formula, self)


# log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer)
@rule(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(self: Tensor) -> tuple[Tensor, Tensor]:
    def power(x: Scalar) -> Scalar:
        return op("exp", op("neg", op("absolute", x)))

    found = pointwise(lambda x: op("minimum", x, constant(0, x.dtype)) - op("log1p", power(x)), self)
    promise = builder().promise
    if promise is not None and promise[1].ndim == 1 and promise[1].numel() == 0:  # on a GPU nobody reads the buffer
        return found, Tensor((Index.of(0),), self.dtype, lambda index: constant(0, self.dtype))
    return found, pointwise(power, self)


# softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor
@rule(aten.softplus.default)
def softplus_rule(self: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return pointwise(lambda x: softplus(x, beta, threshold), self)


# hardshrink_backward(Tensor grad_out, Tensor self, Scalar lambd) -> Tensor
# softshrink_backward(Tensor grad_output, Tensor self, Scalar lambd) -> Tensor
@rule(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def shrink_backward(grad_out: Tensor, self: Tensor, lambd: float) -> Tensor:
    passes_nan = builder().is_for_gpu

    def formula(g: Scalar, x: Scalar) -> Scalar:
        nothing = constant(0, g.dtype)
        if passes_nan:
            return select((x >= -lambd) & (x <= lambd), nothing, g)
        return select((x > lambd) | (x < -lambd), g, nothing)  # 0 where x is not a number

    return pointwise(formula, grad_out, self)
