"""MAX's reductions along one axis, which stays with size 1."""

from __future__ import annotations

from collections.abc import Callable

from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.support.broadcast_analysis import may_be_broadcast
from torch_max_backend.aten_functions.support.tensor_ops import axis_of


def sum_along(x: TensorValue, axis: int) -> TensorValue:
    """The sum, in the dtype of ``x``."""
    return _reduced(ops.sum, x, axis)


def prod_along(x: TensorValue, axis: int) -> TensorValue:
    """The product, in the dtype of ``x``."""
    return _reduced(ops.prod, x, axis)


def mean_along(x: TensorValue, axis: int) -> TensorValue:
    """The mean, in the dtype of ``x``."""
    return _reduced(ops.mean, x, axis)


def largest(x: TensorValue, axis: int) -> TensorValue:
    """The maximum, NaN skipped. (``ops.max`` takes a second operand where the axis would be.)"""
    return _reduced(ops.max, x, axis)


def smallest(x: TensorValue, axis: int) -> TensorValue:
    """The minimum, NaN skipped."""
    return _reduced(ops.min, x, axis)


def _reduced(op: Callable[..., TensorValue], x: TensorValue, axis: int) -> TensorValue:
    """``op(x, axis=axis)``.

    MAX moves a reduction in front of a broadcast, and then reduces the wrong axis if a size of 1 before that axis was
    expanded: it fails to compile, or is silently wrong where sizes agree. It does not look through a reshape. That
    made reductions of 512 rows up to a sixth slower on a CPU, and is left out where ``x`` cannot be a broadcast.
    """
    axis = axis_of(axis, x.rank)
    if axis == 0 or not may_be_broadcast(x):
        return op(x, axis=axis)
    return ops.squeeze(op(ops.unsqueeze(x, 0), axis=axis + 1), 0)
