"""Powers, and division with rounding: quotients and remainders of floats and integers."""

from __future__ import annotations

from collections.abc import Callable

from max.dtype import DType
from max.graph import DeviceRef, Dim, TensorValue, ops

from torch_max_backend.aten_functions.pointwise.arithmetic import arithmetic_operands, div, promised, rounded
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support import elementary
from torch_max_backend.aten_functions.support.axis_reductions import sum_along
from torch_max_backend.aten_functions.support.dtypes import Operand
from torch_max_backend.aten_functions.support.elementary import INF, NAN, both, less, number
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import out_dtype, out_shape
from torch_max_backend.aten_functions.support.tensor_ops import broadcast_to, cast, constant, numel, reshape
from torch_max_backend.base.errors import Unsupported


def kernel(name: str, *operands: TensorValue, **parameters: str | bool | int) -> TensorValue:
    """Call a Mojo kernel of operands that have one dtype, each broadcast to the promised shape."""
    shape = out_shape()
    values = [broadcast_to(x, shape) for x in operands]
    return mojo_op(name, values, [(operands[0].dtype, shape)], parameters or None)[0]


# -- powers --------------------------------------------------------------------------------------------------------
# pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor
@map_to(aten.pow.Tensor_Scalar)
def pow_tensor_scalar(self: TensorValue, exponent: Operand) -> TensorValue:
    """``self`` to a constant power; a negative power of integers is an error in torch."""
    if not isinstance(exponent, bool | int | float):
        return pow_tensor_tensor(self, exponent)
    if out_dtype().is_float():
        return elementary.power(promised(self), exponent)
    if exponent < 0:
        raise Unsupported(f"pow of integers takes exponents of at least 0, got {exponent}")
    if out_dtype() == DType.bool:
        return ops.broadcast_to(number(True, self), self.shape) if exponent == 0 else self
    x = promised(self)
    return elementary.integer_power(x, int(exponent)) if exponent else ops.broadcast_to(number(1, x), x.shape)


# pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor
# pow.Scalar(Scalar self, Tensor exponent) -> Tensor
@map_to(aten.pow.Tensor_Tensor, aten.pow.Scalar, limits="booleans stay with torch")
def pow_tensor_tensor(self: Operand, exponent: Operand) -> TensorValue:
    """Powers with torch's results for integers: they wrap around, and negative exponents leave 0, 1 or -1."""
    if out_dtype() == DType.bool:
        raise Unsupported("pow takes numbers, got bool tensors")
    if not out_dtype().is_float():
        return kernel("tmb_integer_pow", promised(self), promised(exponent))
    x, y = arithmetic_operands(self, exponent, wide=True)
    positive = isinstance(self, int | float) and 0 < self < INF
    return rounded(elementary.pow_of_positive(float(self), y) if positive else elementary.pow_float(x, y))


# -- remainders ----------------------------------------------------------------------------------------------------
def _fmod(x: TensorValue, y: TensorValue) -> TensorValue:
    return kernel("tmb_fmod", x, y)


def _remainder(x: TensorValue, y: TensorValue) -> TensorValue:
    rest, zero = _fmod(x, y), number(0, x)
    other_side = both(ops.not_equal(rest, zero), ops.logical_xor(less(rest, zero), less(y, zero)))
    return ops.where(other_side, ops.add(rest, y), rest)


# fmod.Tensor(Tensor self, Tensor other) -> Tensor
# fmod.Scalar(Tensor self, Scalar other) -> Tensor
@map_to(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(self: Operand, other: Operand) -> TensorValue:
    """The exact remainder with the sign of ``self``."""
    return _divided("fmod", _fmod, self, other)


# remainder.Tensor(Tensor self, Tensor other) -> Tensor
# remainder.Scalar(Tensor self, Scalar other) -> Tensor
# remainder.Scalar_Tensor(Scalar self, Tensor other) -> Tensor
@map_to(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(self: Operand, other: Operand) -> TensorValue:
    """The remainder with the sign of ``other``: ``self - floor(self / other) * other``."""
    return _divided("remainder", _remainder, self, other)


# -- quotients -----------------------------------------------------------------------------------------------------
# div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor
# div.Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor
@map_to(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(self: Operand, other: Operand, rounding_mode: str | None) -> TensorValue:
    """The quotient, true, truncated or floored."""
    if rounding_mode is None:
        return div(self, other)
    if rounding_mode == "floor":
        return floor_divide(self, other)
    quotient = ops.div if not isinstance(other, TensorValue) else _rounded_quotient
    return _divided("trunc", lambda x, y: ops.trunc(quotient(x, y)), self, other)


def _rounded_quotient(x: TensorValue, y: TensorValue) -> TensorValue:
    """torch rounds the quotient of two 16-bit tensors to 16 bits before it truncates; by a number it does not."""
    return cast(cast(ops.div(x, y), out_dtype()), x.dtype)


# floor_divide(Tensor self, Tensor other) -> Tensor
# floor_divide.Scalar(Tensor self, Scalar other) -> Tensor
@map_to(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(self: Operand, other: Operand) -> TensorValue:
    """The floored quotient of the exact division, as Python's ``//``."""
    return _divided("floor", _floor_quotient, self, other)


def _divided(
    operation: str, of_floats: Callable[[TensorValue, TensorValue], TensorValue], self: Operand, other: Operand
) -> TensorValue:
    if not out_dtype().is_float():
        return _integer_divide(operation, self, other)
    return rounded(of_floats(*arithmetic_operands(self, other, wide=True)))


def _floor_quotient(x: TensorValue, y: TensorValue) -> TensorValue:
    """torch's definition through fmod in float64; shorter floats have a float64 quotient that cannot round up."""
    dtype = x.dtype
    if dtype == DType.float64:
        return _floor_quotient_by_fmod(x, y)
    x, y = cast(x, DType.float64), cast(y, DType.float64)
    zero = number(0, x)
    quotient = ops.div(x, y)
    # A finite number over an infinity of the other sign lies just below zero; infinity has no remainder.
    below = both(ops.is_inf(y), ops.not_equal(x, zero), ops.logical_xor(less(x, zero), less(y, zero)))
    floor = ops.where(below, number(-1, x), ops.floor(quotient))
    floor = ops.where(both(ops.is_inf(x), ops.not_equal(y, zero)), number(NAN, x), floor)
    return cast(floor, dtype)


def _floor_quotient_by_fmod(x: TensorValue, y: TensorValue) -> TensorValue:
    zero, one = number(0, x), number(1, x)
    rest = _fmod(x, y)
    quotient = ops.div(ops.sub(x, rest), y)
    other_side = both(ops.not_equal(rest, zero), ops.logical_xor(less(rest, zero), less(y, zero)))
    quotient = ops.where(other_side, ops.sub(quotient, one), quotient)
    floor = ops.floor(quotient)
    nearest = ops.where(ops.greater(ops.sub(quotient, floor), number(0.5, x)), ops.add(floor, one), floor)
    signed_zero = elementary.with_sign_of(ops.abs(ops.mul(zero, ops.div(x, y))), ops.div(x, y))
    whole = ops.where(ops.equal(quotient, zero), signed_zero, nearest)
    return ops.where(ops.equal(y, zero), ops.div(x, y), whole)


# -- integers ------------------------------------------------------------------------------------------------------
def _integer_divide(operation: str, self: Operand, other: Operand) -> TensorValue:
    """``floor``, ``trunc``, ``remainder`` or ``fmod`` of integers; a divisor that varies is checked for zeros."""
    if out_dtype() == DType.bool:
        raise Unsupported("integer division takes integers, got bool tensors")
    x = promised(self)
    if not isinstance(other, int) or isinstance(other, bool):
        if isinstance(other, TensorValue | Dim):
            return _by_tensor(operation, x, promised(other))
        raise Unsupported(f"integer division takes an integer divisor, got {other!r}")
    bits = x.dtype.size_in_bytes * 8
    if other == 0 or not -(1 << (bits - 1)) <= other < (1 << bits):
        raise Unsupported(f"integer division of {x.dtype} needs a nonzero divisor of that dtype, got {other}")
    return _by_constant(operation, x, other % (1 << bits) if x.dtype.is_unsigned_integral() else other)


def _by_tensor(operation: str, x: TensorValue, y: TensorValue) -> TensorValue:
    """By a kernel that raises on a CPU if there is a zero divisor; as in torch, an unused one counts."""
    zeros = constant(0, DType.int32, y.device)
    if y.device == DeviceRef.CPU():
        flat = reshape(cast(ops.equal(y, number(0, y)), DType.int32), [numel(y.shape)])
        zeros = sum_along(flat, axis=0)
    shape = out_shape()
    values = [broadcast_to(x, shape), broadcast_to(y, shape), ops.reshape(zeros, [1])]
    return mojo_op("tmb_integer_divide", values, [(x.dtype, shape)], {"operation": operation})[0]


def _by_constant(operation: str, x: TensorValue, divisor: int) -> TensorValue:
    y, zero = number(divisor, x), number(0, x)
    # The quotient of the lowest integer by -1 traps on a CPU.
    floor = ops.negate(x) if divisor == -1 else ops.floor_div(x, y)
    if operation == "floor":
        return floor
    rest = ops.sub(x, ops.mul(floor, y))
    if operation == "remainder":
        return rest
    crossed = both(ops.not_equal(rest, zero), less(x, zero) if divisor > 0 else ops.greater(x, zero))
    if operation == "trunc":
        return ops.add(floor, cast(crossed, x.dtype))
    return ops.where(crossed, ops.sub(rest, y), rest)


# -- greatest common divisors --------------------------------------------------------------------------------------
# gcd(Tensor self, Tensor other) -> Tensor
@map_to(aten.gcd.default)
def gcd(self: TensorValue, other: TensorValue) -> TensorValue:
    """The greatest common divisor, not negative."""
    return kernel("tmb_gcd", promised(self), promised(other))


# lcm(Tensor self, Tensor other) -> Tensor
@map_to(aten.lcm.default)
def lcm(self: TensorValue, other: TensorValue) -> TensorValue:
    """The least common multiple, not negative; 0 if either is."""
    x, y = promised(self), promised(other)
    divisor = kernel("tmb_gcd", x, y)
    zero, one = number(0, divisor), number(1, divisor)
    safe = ops.where(ops.equal(divisor, zero), one, divisor)
    product = ops.mul(_by_tensor("trunc", x, safe), y)
    return product if product.dtype.is_unsigned_integral() else ops.abs(product)
