"""Generated kernels on NVIDIA GPUs: their machine code, loaded by CUDA's driver, and launches of many at one call.

Kernels run in the context and on the stream that torch uses. A launch's parameters are words of a table, as a
segment's are on a CPU; ``cuda_launch.mojo``, compiled for this machine's CPU, hands their addresses to the driver.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_max_backend.base.errors import ExecutionError

LAUNCHER_SOURCE = Path(__file__).with_suffix(".mojo")
"""What :class:`Launches` needs compiled."""
LAUNCHER, CUBIN = "launcher", "cubin"
"""The names under which the store has that, and kernels, where it has the name of a graph for others."""

MOST_PARAMETERS = 512
"""Of one kernel: CUDA allows 4 KiB of them."""

_INVALID_CONTEXT, _NOT_FOUND = 201, 500
_PARTS = b"kernels\0"
_REGISTERS = 4  # CU_FUNC_ATTRIBUTE_NUM_REGS


@functools.cache
def driver() -> Any:
    """CUDA's driver.

    Raises:
        ExecutionError: This machine has none.
    """
    try:
        found = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise ExecutionError(f"kernels for a GPU need NVIDIA's driver, which is not installed: {error}") from error
    return found


def _check(status: int, what: str) -> None:
    if status:
        raise ExecutionError(f"{what}: {_error_name(status)}")


def _error_name(status: int) -> str:
    try:
        name = ctypes.c_char_p()
        driver().cuGetErrorName(status, ctypes.byref(name))
    except ExecutionError:  # without a driver only tests come here
        return f"CUDA error {status}"
    return (name.value or b"").decode() or f"CUDA error {status}"


@functools.cache
def _context(device: int) -> ctypes.c_void_p:
    """The context of a device that torch and the CUDA runtime use."""
    ordinal, context = ctypes.c_int(), ctypes.c_void_p()
    _check(driver().cuInit(0), "CUDA's driver cannot start")
    _check(driver().cuDeviceGet(ctypes.byref(ordinal), device), f"there is no GPU {device}")
    _check(driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal), f"GPU {device} has no context")
    return context


def packed(cubins: Sequence[bytes]) -> bytes:
    """Machine code in several parts as one: behind a mark their number and sizes, and then the parts."""
    if len(cubins) == 1:
        return cubins[0]
    return _PARTS + struct.pack(f"<{len(cubins) + 1}Q", *map(len, [cubins, *cubins])) + b"".join(cubins)


def unpacked(blob: bytes) -> list[bytes]:
    """The parts of machine code, of which a cubin or PTX is one."""
    if not blob.startswith(_PARTS):
        return [blob]
    head = len(_PARTS) + 8
    (count,) = struct.unpack_from("<Q", blob, head - 8)
    sizes = struct.unpack_from(f"<{count}Q", blob, head)
    ends = [head + 8 * count + end for end in itertools.accumulate(sizes)]
    return [blob[end - size : end] for size, end in zip(sizes, ends, strict=True)]


class CudaLibrary:
    """Kernels on one device, which stay loaded."""

    def __init__(self, blob: bytes, device: int) -> None:
        self._modules, self._context = [ctypes.c_void_p() for _ in unpacked(blob)], _context(device)
        self._functions: dict[str, int] = {}
        for module, part in zip(self._modules, unpacked(blob), strict=True):
            with _Current(self._context):
                status = driver().cuModuleLoadData(ctypes.byref(module), part)
            _check(status, f"generated kernels cannot be loaded to GPU {device}")

    def function(self, name: str) -> int:
        """The driver's handle of a kernel, which is ready to run: nothing is left to load at its first launch."""
        if name not in self._functions:
            handle = ctypes.c_void_p()
            with _Current(self._context):
                for module in self._modules:
                    status = driver().cuModuleGetFunction(ctypes.byref(handle), module, name.encode())
                    if status != _NOT_FOUND:
                        break
                _check(status, f"generated kernels have no {name}")
                if hasattr(driver(), "cuFuncLoad"):
                    _check(driver().cuFuncLoad(handle), f"the kernel {name} cannot be loaded")
            self._functions[name] = handle.value or 0
        return self._functions[name]

    def registers(self, name: str) -> int:
        """How many registers a thread of a kernel has."""
        count = ctypes.c_int()
        function = ctypes.c_void_p(self.function(name))
        _check(driver().cuFuncGetAttribute(ctypes.byref(count), _REGISTERS, function), f"{name} has no attributes")
        return count.value


class _Current:
    """Makes a context the calling thread's, for a while."""

    def __init__(self, context: ctypes.c_void_p) -> None:
        self._context = context

    def __enter__(self) -> None:
        _check(driver().cuCtxPushCurrent_v2(self._context), "a GPU's context cannot be used")

    def __exit__(self, *_: object) -> None:
        driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


_lock = threading.Lock()
_loaded: dict[tuple[str, int], CudaLibrary] = {}


def load_cubin(blob: bytes, sha: str, device: int | None = None) -> CudaLibrary:
    """The kernels of a cubin or of PTX with a zero at its end, loaded once a process and device.

    ``sha`` is the digest of ``blob``; ``device`` is torch's current one unless it is given.
    """
    place = (sha, torch.cuda.current_device() if device is None else device)
    with _lock:
        if place not in _loaded:
            _loaded[place] = CudaLibrary(blob, place[1])
        return _loaded[place]


@dataclass(frozen=True)
class Word:
    """A size that a call decides: a word of the table, divided by ``per``, rounded up."""

    index: int
    per: int = 1


Size = int | Word


@dataclass(frozen=True)
class Launch:
    """One kernel's launch; with a grid of size 0 there is none.

    Args:
        function: What :meth:`CudaLibrary.function` gives.
        grid_x: Blocks, at most 2^31 - 1.
        grid_y: Rows of blocks, at most 65,535.
        block_x: Threads of a block, at most 1,024.
        shared_bytes: Of shared memory beside what the kernel declares.
        parameters: For each of the kernel's parameters the word of the table that it is.
    """

    function: int
    grid_x: Size
    block_x: Size
    parameters: tuple[int, ...]
    grid_y: Size = 1
    shared_bytes: int = 0

    def words(self) -> list[int]:
        """As ``cuda_launch.mojo`` reads it."""
        assert len(self.parameters) <= MOST_PARAMETERS
        sizes = [word for size in (self.grid_x, self.grid_y, self.block_x) for word in _words(size)]
        return [self.function, *sizes, self.shared_bytes, len(self.parameters), *self.parameters]


def _words(size: Size) -> tuple[int, int]:
    return (size.index, size.per) if isinstance(size, Word) else (-1, size)


class Launches:
    """Launches in order, at one call.

    Args:
        launches: In order.
        launcher: The library that ``cuda_launch.mojo`` was compiled to.
        device: Where they run; torch's current one unless it is given.
        entry: The address of ``cuLaunchKernel``; the driver's unless it is given.
    """

    def __init__(
        self, launches: Sequence[Launch], launcher: Path, *, device: int | None = None, entry: int | None = None
    ) -> None:
        if entry is None:
            entry = ctypes.cast(driver().cuLaunchKernel, ctypes.c_void_p).value or 0
            device = torch.cuda.current_device() if device is None else device
        self._device = device or 0
        words = [entry, len(launches), *(word for launch in launches for word in launch.words())]
        self._plan = (ctypes.c_int64 * len(words))(*words)
        self._address = ctypes.addressof(self._plan)
        self._launch = _launcher(str(launcher))

    def launch(self, table: int, stream: int) -> None:
        """Launch all on a stream, by its raw handle; ``table`` is the address of the words.

        Raises:
            ExecutionError: With CUDA's name of the error.
        """
        status = self._launch(self._address, table, stream)
        if status:
            self._retry(status, table, stream)

    def _retry(self, status: int, table: int, stream: int) -> None:
        """A thread that CUDA has not seen before has no context yet."""
        if status == _INVALID_CONTEXT:
            _check(driver().cuCtxSetCurrent(_context(self._device)), "a GPU's context cannot be used")
            status = self._launch(self._address, table, stream)
        _check(status % 65536, f"launch {status // 65536} of {self._plan[1]} generated kernels failed")


@functools.cache
def _launcher(path: str) -> Any:
    try:
        found = ctypes.CDLL(path).launch
    except (OSError, AttributeError) as error:
        raise ExecutionError(f"the launcher of generated kernels in {path} cannot be loaded: {error}") from error
    found.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_int64]
    found.restype = ctypes.c_int64
    return found


def current_stream(device: int) -> int:
    """The raw handle of torch's current stream."""
    return torch._C._cuda_getCurrentRawStream(device)
