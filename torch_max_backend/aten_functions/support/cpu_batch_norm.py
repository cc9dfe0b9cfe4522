"""Batch norms in training on a CPU, by kernels that read a channel as it lies and give all that is known of it.

MAX compiles a reduction for every shape, and a batch norm has four of them; these kernels are compiled once.
"""

from __future__ import annotations

from max.graph import DeviceRef, TensorValue, ops

from torch_max_backend.aten_functions.support.dtypes import accumulator
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.row_kernels import BatchGradients, BatchStatistics
from torch_max_backend.aten_functions.support.tensor_ops import full, numel, reshape


def _in_pixels(x: TensorValue) -> TensorValue:
    return reshape(x, [x.shape[0], x.shape[1], numel(x.shape[2:])])


def channel_statistics(
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running: tuple[TensorValue, TensorValue] | None,
    momentum: float,
    epsilon: float,
) -> BatchStatistics:
    """The statistics of a batch ``x`` [N, C, *S]; all else is [C] in the dtype that ``x`` is computed with.

    Args:
        running: Mean and variance; without them the moved ones mean nothing.
        momentum: The batch's share of the moved ones.
    """
    dtype = accumulator(x.dtype)
    absent = full(0, [x.shape[1]], dtype, x.device)
    vectors = [absent if v is None else v for v in (weight, bias, *(running or (None, None)))]
    numbers = [ops.constant(v, dtype, DeviceRef.CPU()) for v in (momentum, epsilon)]
    parameters = {"is_scaled": weight is not None, "is_shifted": bias is not None}
    out = [(dtype, [x.shape[1]])] * 6
    return BatchStatistics(*mojo_op("tmb_channel_statistics", [_in_pixels(x), *vectors, *numbers], out, parameters))


def channel_gradients(
    grad: TensorValue, x: TensorValue, mean: TensorValue, rstd: TensorValue, weight: TensorValue | None
) -> BatchGradients:
    """The gradients of a batch norm of ``x`` [N, C, *S], from ``grad`` of its shape; all else as above."""
    operands = [_in_pixels(grad), _in_pixels(x), mean, rstd, rstd if weight is None else weight]
    out = [(mean.dtype, [x.shape[1]])] * 5
    found = mojo_op("tmb_channel_gradients", operands, out, {"is_scaled": weight is not None})
    return BatchGradients(grad, *found)
