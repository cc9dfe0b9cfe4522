"""Comparisons, logic, tests for special values, and the larger or smaller of two."""

from __future__ import annotations

import math
from collections.abc import Callable

from max.dtype import DType
from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.pointwise.arithmetic import promised
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support import elementary
from torch_max_backend.aten_functions.support.dtypes import Operand
from torch_max_backend.aten_functions.support.elementary import number, truth
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import out_dtype, out_shape, promise
from torch_max_backend.aten_functions.support.tensor_ops import broadcast_to, cast, full, promote, tensor

Binary = Callable[[TensorValue, TensorValue], TensorValue]


# -- comparisons ---------------------------------------------------------------------------------------------------
def comparison(name: str, of_tensors: Binary, of_numbers: Binary, swapped: bool = False) -> None:
    """Register the ``Tensor`` and ``Scalar`` overloads of one comparison."""

    def lowering(self: Operand, other: Operand) -> TensorValue:
        x, y = promote(self, other)
        if x.dtype == DType.bool:
            x, y = cast(x, DType.uint8), cast(y, DType.uint8)
        op = of_tensors if isinstance(self, TensorValue) and isinstance(other, TensorValue) else of_numbers
        return op(y, x) if swapped else op(x, y)

    lowering.__name__ = lowering.__qualname__ = name
    packet = getattr(aten, name)
    map_to(packet.Tensor, packet.Scalar)(lowering)


def _not_equal(x: TensorValue, y: TensorValue) -> TensorValue:
    return ops.logical_not(ops.equal(x, y))


# name.Tensor(Tensor self, Tensor other) -> Tensor
# name.Scalar(Tensor self, Scalar other) -> Tensor
comparison("eq", elementary.equal, ops.equal)
comparison("ne", elementary.not_equal, _not_equal)
comparison("gt", ops.greater, ops.greater)
comparison("ge", elementary.greater_equal, ops.greater_equal)
comparison("lt", ops.greater, ops.greater, swapped=True)
comparison("le", elementary.greater_equal, ops.greater_equal, swapped=True)


# -- logic ---------------------------------------------------------------------------------------------------------
def logic(op: object, function: Callable[..., TensorValue]) -> None:
    """Register a function of truth values; anything but zero is true, NaN too."""

    def lowering(self: TensorValue, other: TensorValue) -> TensorValue:
        device = promise().device
        return function(*(truth(tensor(x, x.dtype, device)) for x in (self, other)))

    lowering.__name__ = lowering.__qualname__ = str(op).split(".")[1]
    map_to(op)(lowering)


# name(Tensor self, Tensor other) -> Tensor
logic(aten.logical_and.default, ops.logical_and)
logic(aten.logical_or.default, ops.logical_or)
logic(aten.logical_xor.default, ops.logical_xor)


# logical_not(Tensor self) -> Tensor
@map_to(aten.logical_not.default)
def logical_not(self: TensorValue) -> TensorValue:
    """Whether ``self`` is zero."""
    return ops.logical_not(truth(self))


# -- special values ------------------------------------------------------------------------------------------------
def special_value(op: object, test: Callable[[TensorValue], TensorValue], of_integers: bool = False) -> None:
    """Register a test for special values of floats; of integers the answer is a constant."""

    def lowering(self: TensorValue) -> TensorValue:
        if self.dtype.is_float():
            return test(self)
        return full(of_integers, self.shape, DType.bool, self.device)

    lowering.__name__ = lowering.__qualname__ = str(op).split(".")[1]
    map_to(op)(lowering)


# name(Tensor self) -> Tensor
special_value(aten.isnan.default, ops.is_nan)
special_value(aten.isinf.default, ops.is_inf)
special_value(aten.isfinite.default, lambda x: ops.logical_not(elementary.is_not_finite(x)), of_integers=True)
special_value(aten.isposinf.default, lambda x: ops.equal(x, number(math.inf, x)))
special_value(aten.isneginf.default, lambda x: ops.equal(x, number(-math.inf, x)))


def sign_bit(x: TensorValue) -> TensorValue:
    """The sign bit of a float, that of a NaN too; of integers, whether they are negative."""
    if x.dtype == DType.bool or x.dtype.is_unsigned_integral():
        return full(False, x.shape, DType.bool, x.device)
    if not x.dtype.is_float():
        return elementary.less(x, number(0, x))
    return mojo_op("tmb_signbit", [x], [(DType.bool, x.shape)])[0]


# signbit(Tensor self) -> Tensor
@map_to(aten.signbit.default)
def signbit(self: TensorValue) -> TensorValue:
    """Whether the sign bit is set."""
    return sign_bit(self)


# copysign.Tensor(Tensor self, Tensor other) -> Tensor
# copysign.Scalar(Tensor self, Scalar other) -> Tensor
@map_to(aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(self: Operand, other: Operand) -> TensorValue:
    """The size of ``self`` with the sign of ``other``."""
    size = ops.abs(promised(self))
    if not isinstance(other, TensorValue):
        negative = math.copysign(1.0, float(other)) < 0 if isinstance(other, bool | int | float) else None
        if negative is not None:
            return ops.negate(size) if negative else size
    y = promised(other)
    return ops.where(sign_bit(y), ops.negate(size), size)


# nextafter(Tensor self, Tensor other) -> Tensor
@map_to(aten.nextafter.default)
def nextafter(self: TensorValue, other: TensorValue) -> TensorValue:
    """The next number of the dtype towards ``other``."""
    shape = out_shape()
    values = [broadcast_to(promised(x), shape) for x in (self, other)]
    return mojo_op("tmb_nextafter", values, [(out_dtype(), shape)])[0]


# -- the larger and the smaller ------------------------------------------------------------------------------------
def extremum(op: object, function: Binary, of_bools: Binary) -> None:
    """Register the larger or smaller of two."""

    def lowering(self: Operand, other: Operand) -> TensorValue:
        x, y = promised(self), promised(other)
        return of_bools(x, y) if x.dtype == DType.bool else function(x, y)

    lowering.__name__ = lowering.__qualname__ = str(op).split(".")[1]
    map_to(op)(lowering)


# name(Tensor self, Tensor other) -> Tensor
extremum(aten.maximum.default, elementary.maximum, ops.logical_or)
extremum(aten.minimum.default, elementary.minimum, ops.logical_and)
extremum(aten.fmax.default, ops.max, ops.logical_or)  # MAX ignores NaN, and so do these two
extremum(aten.fmin.default, ops.min, ops.logical_and)


# -- closeness -----------------------------------------------------------------------------------------------------
# isclose(Tensor self, Tensor other, float rtol=1e-05, float atol=1e-08, bool equal_nan=False) -> Tensor
@map_to(aten.isclose.default)
def isclose(
    self: TensorValue, other: TensorValue, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> TensorValue:
    """Equal, or within ``atol + rtol * |other|``; infinities are close to themselves only."""
    close = elementary.equal(self, other)
    if self.dtype == DType.bool:
        return close
    if self.dtype.is_float() and equal_nan:
        close = ops.logical_or(close, ops.logical_and(ops.is_nan(self), ops.is_nan(other)))
    # torch measures integers in the default float dtype.
    x, y = (cast(v, v.dtype if v.dtype.is_float() else DType.float32) for v in (self, other))
    distance = ops.abs(cast(ops.sub(self, other), x.dtype))
    allowed = ops.add(number(atol, x), ops.abs(ops.mul(number(rtol, y), y)))
    finite = ops.logical_not(elementary.is_not_finite(distance))
    return ops.logical_or(close, ops.logical_and(finite, ops.greater_equal(allowed, distance)))
