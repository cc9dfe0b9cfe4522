"""Handing tensors to MAX and back without a copy, and ordering the two sides' streams."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
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


@functools.cache
def stream_order(index: int) -> StreamOrder:
    """The order of MAX's stream on GPU ``index`` and the streams that call it: one for the whole process."""
    return StreamOrder(index)


def end_capture(index: int) -> None:
    """Bring MAX's stream back to work after a capture that failed, which leaves it recording.

    Until then CUDA refuses work on the default stream of any thread, because MAX's stream is a blocking one.
    """
    driver, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(max_stream(index).cuda_stream)
    status, graph = ctypes.c_int(), ctypes.c_void_p()
    driver.cuStreamIsCapturing(handle, ctypes.byref(status))
    if status.value:
        driver.cuStreamEndCapture(handle, ctypes.byref(graph))
        if graph.value:
            driver.cuGraphDestroy(graph)


class StreamOrder:
    """Runs calls on MAX's stream between what the caller's stream did before and does after, by events.

    ``with stream_order(0): …`` holds a lock, so that no other thread's work gets between the events, nor into a graph
    that this thread records.

    MAX gives the memory of an output that Python has freed to the next call. On the stream that called, what read the
    output has been enqueued before that, but on another one that called earlier it may have been enqueued any time:
    so a call waits for every stream that ever called. Programs have one, as a rule.

    Between CUDA's legacy default stream, which is torch's default stream, and MAX's, which is a blocking stream, CUDA
    itself keeps that order, so there no event is needed.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self._own = max_stream(index)
        self._done = torch.cuda.Event()
        self._lock = threading.RLock()
        self._callers: dict[int, _Caller] = {}
        self._entered: list[_Caller | None] = []
        self._is_blocking = _is_blocking(self._own)

    def __enter__(self) -> None:
        self._lock.acquire()
        handle = torch._C._cuda_getCurrentRawStream(self.index)
        caller = None
        if handle or not self._is_blocking:
            caller = self._callers.get(handle) or self._meet(handle)
            caller.precede(self._own)
        if len(self._callers) > (caller is not None) and not torch.cuda.is_current_stream_capturing():
            for other in self._callers.values():
                if other is not caller:
                    other.precede(self._own)
        self._entered.append(caller)

    def __exit__(self, *_: object) -> None:
        caller = self._entered.pop()
        try:
            if caller is not None:
                self._done.record(self._own)
                caller.stream.wait_event(self._done)
        finally:
            self._lock.release()

    def _meet(self, handle: int) -> _Caller:
        """A stream that calls for the first time. Remembered, unless it may be gone by the next call."""
        stream = torch.cuda.current_stream(self.index)
        caller = _Caller(stream, torch.cuda.Event())
        is_torchs = stream.stream_id == 0 or bool(
            stream.stream_id & 1
        )  # others belong to somebody who may destroy them
        if is_torchs and not torch.cuda.is_current_stream_capturing():
            self._callers[handle] = caller
        return caller


@dataclass(frozen=True, eq=False)
class _Caller:
    """A stream that calls, with an event of its own: making one costs more than recording it."""

    stream: torch.cuda.Stream
    event: torch.cuda.Event

    def precede(self, other: torch.cuda.Stream) -> None:
        """Have ``other`` wait for what is on the stream now."""
        self.event.record(self.stream)
        other.wait_event(self.event)


def _is_blocking(stream: torch.cuda.Stream) -> bool:
    """Whether CUDA orders the stream with the legacy default stream by itself."""
    flags = ctypes.c_uint(1)
    failed = ctypes.CDLL("libcuda.so.1").cuStreamGetFlags(ctypes.c_void_p(stream.cuda_stream), ctypes.byref(flags))
    return not failed and not flags.value & 1


def in_order(gpus: Sequence[int]) -> contextlib.AbstractContextManager[object] | None:
    """The context in which a call that uses these GPUs runs; ``None`` for a call on the CPU."""
    if len(gpus) < 2:
        return stream_order(gpus[0]) if gpus else None
    return _Together(tuple(gpus))


class _Together:
    """The orders of several GPUs, entered from the lowest index to the highest, as every thread does."""

    def __init__(self, gpus: tuple[int, ...]) -> None:
        self._orders = [stream_order(i) for i in sorted(gpus)]

    def __enter__(self) -> None:
        for order in self._orders:
            order.__enter__()

    def __exit__(self, *_: object) -> None:
        for order in reversed(self._orders):
            order.__exit__()
