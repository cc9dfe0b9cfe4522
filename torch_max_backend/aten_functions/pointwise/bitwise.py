"""Bitwise operations and shifts of integers; of booleans they are logic."""

from __future__ import annotations

from collections.abc import Callable

from max.dtype import DType
from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.pointwise.arithmetic import promised
from torch_max_backend.aten_functions.pointwise.powers_and_division import kernel
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.dtypes import Operand
from torch_max_backend.aten_functions.support.node_context import out_dtype


def bitwise(name: str, of_bools: Callable[..., TensorValue]) -> None:
    """Register every overload of one bitwise operation of two operands."""

    def lowering(self: Operand, other: Operand) -> TensorValue:
        x, y = promised(self), promised(other)
        return of_bools(x, y) if out_dtype() == DType.bool else kernel("tmb_bitwise", x, y, operation=name)

    lowering.__name__ = lowering.__qualname__ = f"bitwise_{name}"
    packet = getattr(aten, f"bitwise_{name}")
    map_to(packet.Tensor, packet.Scalar, packet.Scalar_Tensor)(lowering)


# bitwise_name.Tensor(Tensor self, Tensor other) -> Tensor
# bitwise_name.Scalar(Tensor self, Scalar other) -> Tensor
# bitwise_name.Scalar_Tensor(Scalar self, Tensor other) -> Tensor
bitwise("and", ops.logical_and)
bitwise("or", ops.logical_or)
bitwise("xor", ops.logical_xor)


# bitwise_not(Tensor self) -> Tensor
@map_to(aten.bitwise_not.default)
def bitwise_not(self: TensorValue) -> TensorValue:
    """All bits inverted; of booleans, the negation."""
    return ops.logical_not(self) if self.dtype == DType.bool else kernel("tmb_bitwise_not", self)


# bitwise_left_shift.Tensor(Tensor self, Tensor other) -> Tensor
# bitwise_left_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor
# bitwise_left_shift.Scalar_Tensor(Scalar self, Tensor other) -> Tensor
# __lshift__.Tensor(Tensor self, Tensor other) -> Tensor
# __lshift__.Scalar(Tensor self, Scalar other) -> Tensor
@map_to(
    aten.bitwise_left_shift.Tensor,
    aten.bitwise_left_shift.Tensor_Scalar,
    aten.bitwise_left_shift.Scalar_Tensor,
    aten.__lshift__.Tensor,
    aten.__lshift__.Scalar,
)
def left_shift(self: Operand, other: Operand) -> TensorValue:
    """Bits shifted out are lost; a count that is negative or too large leaves 0."""
    return kernel("tmb_shift", promised(self), promised(other), left=True)


# bitwise_right_shift.Tensor(Tensor self, Tensor other) -> Tensor
# bitwise_right_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor
# bitwise_right_shift.Scalar_Tensor(Scalar self, Tensor other) -> Tensor
# __rshift__.Tensor(Tensor self, Tensor other) -> Tensor
# __rshift__.Scalar(Tensor self, Scalar other) -> Tensor
@map_to(
    aten.bitwise_right_shift.Tensor,
    aten.bitwise_right_shift.Tensor_Scalar,
    aten.bitwise_right_shift.Scalar_Tensor,
    aten.__rshift__.Tensor,
    aten.__rshift__.Scalar,
)
def right_shift(self: Operand, other: Operand) -> TensorValue:
    """Keeps the sign; a count that is negative or too large leaves the sign alone."""
    return kernel("tmb_shift", promised(self), promised(other), left=False)
