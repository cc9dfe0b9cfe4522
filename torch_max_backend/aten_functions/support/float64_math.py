"""Circular functions that are exact on every device.

On a GPU MAX's do not compile in float64, and in float32 they are instructions that know no large arguments. There a
Mojo kernel computes them in float64.
"""

from __future__ import annotations

from max.dtype import DType
from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.tensor_ops import cast


def _call(function: str, x: TensorValue) -> TensorValue:
    if x.device.is_cpu() or x.dtype not in (DType.float32, DType.float64):
        return getattr(ops, function)(x)
    (y,) = mojo_op("tmb_float64", [cast(x, DType.float64)], [(DType.float64, x.shape)], {"function": function})
    return cast(y, x.dtype)


def sin(x: TensorValue) -> TensorValue:
    """The sine."""
    return _call("sin", x)


def cos(x: TensorValue) -> TensorValue:
    """The cosine."""
    return _call("cos", x)


def acos(x: TensorValue) -> TensorValue:
    """The inverse cosine; of float64, NaN outside of [-1, 1]."""
    return _call("acos", x)
