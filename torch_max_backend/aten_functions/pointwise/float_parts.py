"""Parts of floats: mantissa and exponent, and the angle in the complex plane."""

from __future__ import annotations

import math

from max.dtype import DType
from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.pointwise.arithmetic import promised
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.dtypes import accumulator
from torch_max_backend.aten_functions.support.elementary import keep_nan, less, number
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import is_used
from torch_max_backend.aten_functions.support.tensor_ops import cast


# frexp.Tensor(Tensor self) -> (Tensor mantissa, Tensor exponent)
@map_to(aten.frexp.Tensor)
def frexp(self: TensorValue) -> tuple[TensorValue | None, TensorValue | None]:
    """``self = mantissa * 2**exponent``, the mantissa's size in [0.5, 1); of what is not finite, itself and 0."""
    wide = cast(self, accumulator(self.dtype))
    mantissa = exponent = None
    if is_used(0):
        mantissa = cast(mojo_op("tmb_frexp_mantissa", [wide], [(wide.dtype, wide.shape)])[0], self.dtype)
    if is_used(1):
        exponent = mojo_op("tmb_frexp_exponent", [wide], [(DType.int32, wide.shape)])[0]
    return mantissa, exponent


# angle(Tensor self) -> Tensor
@map_to(aten.angle.default)
def angle(self: TensorValue) -> TensorValue:
    """Of real numbers: pi if negative, else 0; NaN of NaN."""
    x = promised(self)
    return keep_nan(x, ops.where(less(x, number(0, x)), number(math.pi, x), number(0, x)))
