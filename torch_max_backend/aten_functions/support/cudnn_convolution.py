"""Convolutions and their gradients on a GPU by NVIDIA's library (`mojo_kernels/nvidia/cudnn_convolution.mojo`).

Images keep their channels last in memory from one convolution to the next where that is faster; see
:mod:`~torch_max_backend.aten_functions.support.channels_last`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.support.channels_last import channels_first, channels_last, is_channels_last
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import settings
from torch_max_backend.aten_functions.support.tensor_ops import reshape

FORWARD, IMAGE_GRADIENT, FILTER_GRADIENT = 0, 1, 2


@dataclass(frozen=True)
class Spatial:
    """Strides, padding on both ends and dilations, one number per spatial size."""

    stride: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]

    def parameters(self) -> dict[str, int]:
        """The compile-time parameters of the kernel, which has three spatial sizes."""
        more = 3 - len(self.stride)
        named = (("s", self.stride, 1), ("p", self.before, 0), ("q", self.after, 0), ("d", self.dilation, 1))
        return {
            f"{name}{i}": n for name, numbers, neutral in named for i, n in enumerate([neutral] * more + list(numbers))
        }


def convolve(x: TensorValue, weight: TensorValue, spatial: Spatial, sizes: Sequence[Dim]) -> TensorValue:
    """``x [N, C, *S]`` with ``weight [F, C/groups, *K]`` to ``[N, F, *sizes]``."""
    return _call(FORWARD, x, weight, spatial, [x.shape[0], weight.shape[0], *sizes])


def image_gradient(grad: TensorValue, weight: TensorValue, spatial: Spatial, shape: Sequence[Dim]) -> TensorValue:
    """The gradient of an image of ``shape`` ``[N, C, *S]``, from that of the result ``[N, F, *O]``."""
    return _call(IMAGE_GRADIENT, grad, weight, spatial, shape)


def filter_gradient(grad: TensorValue, x: TensorValue, spatial: Spatial, shape: Sequence[Dim]) -> TensorValue:
    """The gradient of a filter of ``shape`` ``[F, C/groups, *K]``, from that of the result ``[N, F, *O]``."""
    return _call(FILTER_GRADIENT, grad, x, spatial, shape)


def _call(kind: int, first: TensorValue, second: TensorValue, spatial: Spatial, shape: Sequence[Dim]) -> TensorValue:
    if len(spatial.stride) == 1:  # the library has two sizes at least
        wide = Spatial((1, *spatial.stride), (0, *spatial.before), (0, *spatial.after), (1, *spatial.dilation))
        a, b = (ops.unsqueeze(v, 2) for v in (first, second))
        return ops.squeeze(_call(kind, a, b, wide, [*shape[:2], Dim(1), *shape[2:]]), 2)
    last = _channels_belong_last(first, second)
    parameters: dict[str, int | bool] = {
        "kind": kind,
        "images_last": last,
        "filter_last": last,
        **spatial.parameters(),
        "allow_tf32": settings().convolution_tf32,
        "deterministic": settings().deterministic,
    }
    wanted = list(shape)
    if last:
        first, second = channels_last(first), channels_last(second)
        wanted = [shape[0], *shape[2:], shape[1]]
    (y,) = mojo_op("tmb_library_convolution", [first, second], [(first.dtype, wanted)], parameters)
    return channels_first(y) if last else reshape(y, shape)


def _channels_belong_last(first: TensorValue, second: TensorValue) -> bool:
    """Tensor cores want the channels last, and the library would rearrange images in every call."""
    if first.dtype == DType.float64:
        return False
    if is_channels_last(first) or is_channels_last(second):
        return True
    return first.dtype in (DType.bfloat16, DType.float16) or (
        first.dtype == DType.float32 and settings().convolution_tf32
    )
