"""Handing tensors to MAX and back without a copy, and ordering the two sides' streams."""

from __future__ import annotations

import functools
from typing import Any

import torch
from max.driver import Buffer
from max.dtype import DType

from torch_max_backend.runtime.session import get_accelerators

_to_capsule = torch._C._to_dlpack
_from_capsule = torch._C._from_dlpack


class _Export:
    """The DLPack view of a tensor that ignores ``requires_grad`` and the stream, which we order ourselves."""

    __slots__ = ("device", "tensor")

    def __init__(self, tensor: torch.Tensor, device: tuple[int, int]) -> None:
        self.tensor, self.device = tensor, device

    def __dlpack__(self, **_: Any) -> Any:
        return _to_capsule(self.tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


_CPU, _CUDA = 1, 2  # DLDeviceType


def to_buffer(tensor: torch.Tensor) -> Buffer:
    """A MAX buffer on the memory of a contiguous tensor. The buffer keeps the memory alive.

    The tensor must be contiguous and free of lazy conj and neg bits: MAX would not notice, and read other values.
    """
    device = (_CUDA, tensor.device.index) if tensor.is_cuda else (_CPU, 0)
    return Buffer._from_dlpack(_Export(tensor, device))


def to_tensor(buffer: Buffer) -> torch.Tensor:
    """A torch tensor on the memory of a buffer."""
    return _from_capsule(buffer.__dlpack__())


def size_carrier(size: int) -> Buffer:
    """An empty buffer whose first size tells MAX the value of a symbol."""
    return Buffer(DType.uint8, (size, 0))


def number(value: float) -> Buffer:
    """A 0-d float64 buffer on the host."""
    return Buffer.scalar(value, DType.float64)


@functools.cache
def max_stream(index: int) -> torch.cuda.ExternalStream:
    """MAX's stream on GPU ``index`` as a torch stream."""
    handle = get_accelerators()[index].default_queue.native_stream_handle
    return torch.cuda.ExternalStream(handle, device=torch.device("cuda", index))


class StreamOrder:
    """Runs a call on MAX's stream between what the caller's stream did before and does after, by events."""

    def __init__(self, index: int) -> None:
        self.index = index

    def before(self) -> None:
        """MAX waits for the caller's stream."""
        max_stream(self.index).wait_stream(torch.cuda.current_stream(self.index))

    def after(self) -> None:
        """The caller's stream waits for MAX."""
        torch.cuda.current_stream(self.index).wait_stream(max_stream(self.index))
