"""Programs: generated kernels in a shared library, and library calls, as one Python function.

A program's kernels run on the calling thread, or on torch's own team of OpenMP threads, which ``torch.set_num_threads``
governs. What it needs of memory between them is one block from torch's allocator.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import linecache
import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torch_max_backend.base.dtypes import FLOAT8
from torch_max_backend.base.errors import ExecutionError, OutOfRangeError
from torch_max_backend.base.index_sites import Site
from torch_max_backend.runtime.grid_program import GridLibrary, GridSegmentSpec, grid_names
from torch_max_backend.runtime.large_pages import in_large_pages
from torch_max_backend.runtime.odd_products import MM_OF_ODD_COLUMNS, mm_of_odd_columns
from torch_max_backend.runtime.packed_products import MM_OF_PACKED, mm_of_packed
from torch_max_backend.runtime.profiler_ranges import module_range, profiler_range

SEGMENT = "segment"
"""Functions of a library are called this, with their number behind it."""

HELD = "held"
"""What a call path and a program call the list of the inputs that the program consumes."""

LIBRARY = "program"
"""The name under which the store has a library of kernels, where it has the name of a graph for others."""


@dataclass(frozen=True)
class SegmentSpec:
    """A run of kernels: the number of words in its table, and whether it is worth a team of threads.

    With ``sized``, symbolic sizes decide that at each call.
    """

    words: int
    parallel: bool
    sized: bool = False


@dataclass(frozen=True)
class ProgramSpec:
    """A program without its library: the text of the function, what its names mean, its segments in order.

    ``kernels``, ``launches``, ``library_calls`` and ``bytes_moved`` are for reports.
    """

    source: str
    values: dict[str, Any]
    segments: tuple[SegmentSpec | GridSegmentSpec, ...]
    kernels: int = 0
    launches: int = 0
    library_calls: tuple[str, ...] = ()
    bytes_moved: int = 0
    gpus: tuple[int, ...] = field(default=())
    sites: tuple[Site, ...] = ()
    """Where kernels on a GPU check indices."""
    collectives: tuple[tuple[str, str], ...] = ()
    """What it calls of ``torch.distributed``, in order: a process group's name, and the op with its shapes."""

    def bind(self, library: Library | GridLibrary | None) -> Callable[..., Any]:
        """The program as a function of its inputs, which returns a tuple; one without segments has no library."""
        scope: dict[str, Any] = {
            "as_planned": as_planned,
            "address_of": ctypes.addressof,
            "profiler_range": profiler_range,
            "module_range": module_range,
            **{f"{str(d).removeprefix('torch.')}": d for d in _DTYPES},
            **(grid_names(self.gpus[0], self.sites) if self.gpus else _cpu_names()),
            "read_as": _read_as,
            **{name: _called_as(value) for name, value in self.values.items()},
        }
        for k, segment in enumerate(self.segments):
            scope[f"table{k}"] = ctypes.c_int64 * segment.words
            if isinstance(segment, GridSegmentSpec):
                assert isinstance(library, GridLibrary)
                scope[f"segment{k}"] = library.launches(segment.launches)
                continue
            assert isinstance(library, Library)
            scope[f"segment{k}"] = library.function(f"{SEGMENT}{k}", segment.parallel)
            if segment.sized:
                scope[f"team{k}"] = library.function(f"{SEGMENT}{k}", True)
        name = f"<max_backend program {id(scope):x}>"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(True), name)
        exec(compile(self.source, name, "exec"), scope)  # the text is ours: names, numbers and calls
        if not self.collectives:
            return scope["run"]
        from torch_max_backend.runtime.agreement import agreeing  # imports torch.distributed

        return agreeing(scope["run"], self.collectives)


def _cpu_names() -> dict[str, Any]:
    """What the text of a program on a CPU calls."""
    return {
        "empty": _empty,
        "block_of": _block_of,
        "in_large_pages": in_large_pages,
        "threads": torch.get_num_threads,
        "parallel": team(),
        "two_words": ctypes.c_int64 * 2,
        "outside": _outside,
    }


def _empty(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


def _read_as(x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    return x.as_strided(size, stride, x.storage_offset() + offset)


with contextlib.suppress(ImportError):  # private, and a third of the time
    from torch._C._dynamo.guards import _empty_strided_cpu as _empty  # type: ignore[no-redef]
    from torch._C._dynamo.guards import _reinterpret_tensor as _read_as  # type: ignore[no-redef]

_aten = torch.ops.aten
_BOUND = {
    _aten.mm.default: torch.mm,
    _aten.addmm.default: torch.addmm,
    _aten.bmm.default: torch.bmm,
    _aten.baddbmm.default: torch.baddbmm,
    _aten.convolution.default: torch.convolution,
    _aten._int_mm.default: torch._int_mm,
    _aten._weight_int8pack_mm.default: torch._weight_int8pack_mm,
    MM_OF_PACKED: mm_of_packed,
    MM_OF_ODD_COLUMNS: mm_of_odd_columns,
    _aten._scaled_dot_product_flash_attention_for_cpu.default: torch._scaled_dot_product_flash_attention_for_cpu,
}
"""Functions of torch's Python interface that call an op as its overload does, in half a microsecond less."""


def _called_as(value: Any) -> Any:
    """What a program calls for an op; other values as they are."""
    return _BOUND.get(value, value) if isinstance(value, torch._ops.OpOverload) else value


_DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, *FLOAT8,
]  # fmt: skip


def _block_of(size: int) -> torch.Tensor:
    return _empty((size,), (1,), torch.uint8)


def _outside(site: Site, index: int, **sizes: int) -> OutOfRangeError:
    """The error for an index that a kernel has noted; its message may have formulas of symbolic sizes in braces."""
    at = f"\n  {site.op} at {site.lines[0]}" if site.lines else f"\n  {site.op}"
    values = {"index": index, **sizes}
    message = re.sub(r"\{([^{}]*)\}", lambda found: str(eval(found[1], {}, values)), site.message)  # formulas are ours
    return OutOfRangeError(message + at)


def as_planned(x: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """``x`` if it lies in memory as the kernels were made for, else a copy that does."""
    for n, have, want in zip(size, x.stride(), stride, strict=True):
        if have != want and n > 1:
            return x.new_empty_strided(size, stride).copy_(x)
    return x.as_strided(size, stride)  # the same memory, with the strides that are promised where there is no step


class Library:
    """A shared library of generated kernels, which stays loaded."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        team()  # OpenMP's symbols, which the library needs
        self._alone = ctypes.PyDLL(self._path)
        self._team = ctypes.CDLL(self._path)

    def function(self, name: str, parallel: bool) -> Any:
        """A function of the library. For a team, it is a pointer; else a call, which keeps the interpreter's lock."""
        if parallel:
            return ctypes.cast(getattr(self._team, name), ctypes.c_void_p)
        found = getattr(self._alone, name)
        found.restype = None
        return found


_lock = threading.Lock()
_loaded: dict[str, Library] = {}


def load_library(path: Path, sha: str) -> Library:
    """The library in a file, loaded once a process; ``sha`` is its digest."""
    with _lock:
        if sha not in _loaded:
            try:
                _loaded[sha] = Library(path)
            except OSError as error:
                raise ExecutionError(f"the generated kernels in {path} cannot be loaded: {error}") from error
        return _loaded[sha]


@functools.cache
def team() -> Any:
    """``GOMP_parallel`` of the OpenMP library that torch uses: ``(function, table, threads, 0)``."""
    try:
        found = ctypes.CDLL(None).GOMP_parallel
    except AttributeError:
        folder = os.path.dirname(torch.__file__)
        places = [*glob.glob(f"{folder}/lib/libgomp*"), *glob.glob(f"{folder}.libs/libgomp*"), "libgomp.so.1"]
        for place in places:
            try:
                found = ctypes.CDLL(place, mode=ctypes.RTLD_GLOBAL).GOMP_parallel
                break
            except OSError:
                continue
        else:
            raise ExecutionError("generated kernels need GNU OpenMP's library, which this torch does not use") from None
    found.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    found.restype = None
    return found
