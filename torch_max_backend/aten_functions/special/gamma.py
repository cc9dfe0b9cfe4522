"""The incomplete gamma functions, Hurwitz's zeta function, and derivatives of digamma, in float64 Mojo kernels."""

from __future__ import annotations

import math

from max.dtype import DType
from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.pointwise.arithmetic import promised
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.special import special_functions
from torch_max_backend.aten_functions.support.dtypes import Operand, accumulator
from torch_max_backend.aten_functions.support.elementary import in_float64, number
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import out_dtype, out_shape, promise
from torch_max_backend.aten_functions.support.tensor_ops import broadcast_to, cast, tensor


def _in_float64(kernel: str, left: Operand, right: Operand, parameters: dict[str, bool] | None = None) -> TensorValue:
    """The result of a kernel of two float64 operands, of the numbers that the promised dtype makes of them."""
    dtype, shape, device = accumulator(out_dtype()), out_shape(), promise().device
    values = [broadcast_to(cast(tensor(x, dtype, device), DType.float64), shape) for x in (left, right)]
    return mojo_op(kernel, values, [(DType.float64, shape)], parameters)[0]


# igamma(Tensor self, Tensor other) -> Tensor
@map_to(aten.igamma.default)
def igamma(self: TensorValue, other: TensorValue) -> TensorValue:
    """The regularized lower incomplete gamma function."""
    return cast(_in_float64("tmb_incomplete_gamma", self, other, {"upper": False}), out_dtype())


# igammac(Tensor self, Tensor other) -> Tensor
@map_to(aten.igammac.default)
def igammac(self: TensorValue, other: TensorValue) -> TensorValue:
    """The regularized upper incomplete gamma function."""
    return cast(_in_float64("tmb_incomplete_gamma", self, other, {"upper": True}), out_dtype())


# special_zeta(Tensor self, Tensor other) -> Tensor
# special_zeta.self_scalar(Scalar self, Tensor other) -> Tensor
# special_zeta.other_scalar(Tensor self, Scalar other) -> Tensor
@map_to(aten.special_zeta.default, aten.special_zeta.self_scalar, aten.special_zeta.other_scalar)
def special_zeta(self: Operand, other: Operand) -> TensorValue:
    """Hurwitz's zeta function: the sum of ``(other + k)**-self`` over k >= 0."""
    return cast(_in_float64("tmb_zeta", self, other), out_dtype())


# polygamma(int n, Tensor self) -> Tensor
@map_to(aten.polygamma.default)
def polygamma(n: int, self: TensorValue) -> TensorValue:
    """Derivatives of digamma; from the second on, ``n!`` times zeta, and an infinity for what ``n!`` overflows to."""
    if n < 2:
        return in_float64(special_functions.digamma if n == 0 else special_functions.trigamma)(promised(self))
    x = cast(promised(self), accumulator(out_dtype()))
    value = cast(_in_float64("tmb_zeta", n + 1, x), x.dtype)
    factor = math.factorial(n) if n <= 170 else math.inf
    return cast(ops.mul(value, number(factor if n % 2 else -factor, value)), out_dtype())
