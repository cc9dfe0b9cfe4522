"""Ranges that ``torch.profiler`` shows, for what runs with the option ``profile``."""

from __future__ import annotations

import functools
import re
from contextlib import AbstractContextManager
from typing import Any

import torch

PREFIX = "max_backend::"
MODULE = "module"
"""What begins the name of a range around a module's kernels."""
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r" \[([\d.]+) (\w+)\]$")

_Range: Any = torch.profiler.record_function
if hasattr(torch._C._profiler, "_RecordFunctionFast"):  # private, and a tenth of the time
    _Range = torch._C._profiler._RecordFunctionFast


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
