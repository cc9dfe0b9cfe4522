"""Circular functions that compile on every device: on a GPU those of float64 are a Mojo kernel, since MAX's are not."""

from __future__ import annotations

from max.dtype import DType
from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.common import mojo_op


def _call(function: str, x: TensorValue) -> TensorValue:
    if x.dtype != DType.float64 or x.device.is_cpu():
        return getattr(ops, function)(x)
    return mojo_op("tmb_float64", [x], [(x.dtype, x.shape)], {"function": function})[0]


def sin(x: TensorValue) -> TensorValue:
    """The sine."""
    return _call("sin", x)


def cos(x: TensorValue) -> TensorValue:
    """The cosine."""
    return _call("cos", x)


def acos(x: TensorValue) -> TensorValue:
    """The inverse cosine; of float64, NaN outside of [-1, 1]."""
    return _call("acos", x)
