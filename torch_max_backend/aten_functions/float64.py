"""Circular functions of float64 by a Mojo kernel, since MAX's do not compile for GPUs in float64."""

from __future__ import annotations

from max.graph import TensorValue

from torch_max_backend.aten_functions.common import mojo_op


def _call(function: str, x: TensorValue) -> TensorValue:
    return mojo_op("tmb_float64", [x], [(x.dtype, x.shape)], {"function": function})[0]


def sin(x: TensorValue) -> TensorValue:
    """The sine of a float64 value."""
    return _call("sin", x)


def cos(x: TensorValue) -> TensorValue:
    """The cosine of a float64 value."""
    return _call("cos", x)


def acos(x: TensorValue) -> TensorValue:
    """The inverse cosine of a float64 value; NaN outside of [-1, 1]."""
    return _call("acos", x)
