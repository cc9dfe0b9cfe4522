"""Max pooling of windows at pseudo-random places; the random numbers are an operand."""

from __future__ import annotations

from collections.abc import Sequence

from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.pool.pooling import _adaptive_max_backward, _is_empty, _planes
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import out_shape
from torch_max_backend.aten_functions.support.tensor_ops import full, numel, reshape

Ints = Sequence[int]


def _fractional(
    x: TensorValue, kernel_size: Ints, samples: TensorValue, spatial: int
) -> tuple[TensorValue, TensorValue]:
    shape = out_shape(0)
    if _is_empty(shape):
        return full(0, shape, x.dtype, x.device), full(0, shape, DType.int64, x.device)
    kernel = [1] * (3 - spatial) + list(kernel_size) * (spatial if len(kernel_size) == 1 else 1)
    image = _planes(x, spatial)
    wide = [image.shape[0], *[Dim(1)] * (3 - spatial), *shape[len(shape) - spatial :]]
    by_plane = reshape(samples, [numel(samples.shape[:-1]), samples.shape[-1]])
    if spatial == 2:  # the width comes first
        across, down = (by_plane[:, i : i + 1] for i in range(2))
        by_plane = ops.concat([full(0, down.shape, x.dtype, x.device), down, across], 1)
    by_plane = reshape(by_plane, [image.shape[0], 3])
    outputs = [(x.dtype, wide), (DType.int64, wide)]
    parameters = {"k" + axis: k for axis, k in zip("dhw", kernel, strict=True)}
    values, indices = mojo_op("tmb_fractional_max_pool", [image, by_plane], outputs, parameters)
    return reshape(values, shape), reshape(indices, shape)


# fractional_max_pool2d(Tensor self, int[2] kernel_size, int[2] output_size, Tensor random_samples) -> (Tensor, Tensor)
@map_to(aten.fractional_max_pool2d.default)
def fractional_max_pool2d(
    self: TensorValue, kernel_size: Ints, output_size: Ints, random_samples: TensorValue
) -> tuple[TensorValue, TensorValue]:
    return _fractional(self, kernel_size, random_samples, 2)


# fractional_max_pool3d(Tensor self, int[3] kernel_size, int[3] output_size, Tensor random_samples) -> (Tensor, Tensor)
@map_to(aten.fractional_max_pool3d.default)
def fractional_max_pool3d(
    self: TensorValue, kernel_size: Ints, output_size: Ints, random_samples: TensorValue
) -> tuple[TensorValue, TensorValue]:
    return _fractional(self, kernel_size, random_samples, 3)


# fractional_max_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] output_size,
#   Tensor indices) -> Tensor
@map_to(aten.fractional_max_pool2d_backward.default)
def fractional_max_pool2d_backward(
    grad_output: TensorValue, self: TensorValue, kernel_size: Ints, output_size: Ints, indices: TensorValue
) -> TensorValue:
    return _adaptive_max_backward(grad_output, self, indices, 2)


# fractional_max_pool3d_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] output_size,
#   Tensor indices) -> Tensor
@map_to(aten.fractional_max_pool3d_backward.default)
def fractional_max_pool3d_backward(
    grad_output: TensorValue, self: TensorValue, kernel_size: Ints, output_size: Ints, indices: TensorValue
) -> TensorValue:
    return _adaptive_max_backward(grad_output, self, indices, 3)
