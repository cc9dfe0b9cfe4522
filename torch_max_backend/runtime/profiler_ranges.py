"""Ranges that ``torch.profiler`` and NVIDIA's tools show, for what runs with the option ``profile``."""

from __future__ import annotations

import functools
import os
import re
from contextlib import AbstractContextManager
from typing import Any

import torch

PREFIX = "max_backend::"
MODULE = "module"
"""What begins the name of a range around a module's kernels."""
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r" \[([\d.]+) (\w+)\]$")

_Recorded: Any = torch.profiler.record_function
if hasattr(torch._C._profiler, "_RecordFunctionFast"):  # private, and a tenth of the time
    _Recorded = torch._C._profiler._RecordFunctionFast


class RangeOfBoth:
    """A range of PyTorch's profiler and of NVTX, unless PyTorch makes one of the other, as in ``emit_nvtx``."""

    def __init__(self, name: str) -> None:
        self.name, self.recorded, self.is_pushed = name, _Recorded(name), False

    def __enter__(self) -> None:
        self.is_pushed = torch._C._autograd._profiler_type() != torch._C._profiler.ActiveProfilerType.NVTX
        if self.is_pushed:
            torch.cuda.nvtx.range_push(self.name)
        self.recorded.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.recorded.__exit__(*error)
        if self.is_pushed:
            torch.cuda.nvtx.range_pop()


def is_watched() -> bool:
    """Whether a tool reads the NVTX ranges of this process: it names its library, as Nsight's tools do."""
    return "NVTX_INJECTION64_PATH" in os.environ and hasattr(torch._C, "_nvtx")


_Range: Any = RangeOfBoth if is_watched() else _Recorded


def profiler_range(name: str, moved: int | None = None) -> AbstractContextManager[Any]:
    """A range around something, with the number of bytes that it moves, if that is known."""
    return _Range(label(name, moved))


def module_range(path: str) -> AbstractContextManager[Any]:
    """A range around what belongs to a module of the user's, by its path: ``max_backend::module layers.0.act``."""
    return _Range(f"{PREFIX}{MODULE} {path}")


@functools.lru_cache(maxsize=4096)
def label(name: str, moved: int | None) -> str:
    """The name of a range: ``max_backend::kernel0 softmax [2.1 MB]``."""
    if moved is None:
        return PREFIX + name
    unit = max((u for u, size in UNITS.items() if moved >= size), key=UNITS.__getitem__, default="B")
    return f"{PREFIX}{name} [{moved / UNITS[unit]:.4g} {unit}]"


def parsed(text: str) -> tuple[str, int | None]:
    """Name and bytes of a range by its label, the bytes to four digits."""
    name, found = text.removeprefix(PREFIX), _SIZE.search(text)
    if found is None or found[2] not in UNITS:
        return name, None
    return _SIZE.sub("", name), round(float(found[1]) * UNITS[found[2]])
