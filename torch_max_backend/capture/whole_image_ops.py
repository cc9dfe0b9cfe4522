"""Interpolation stays whole, and circular pads are joined from their parts, while a graph is traced.

Torch takes interpolation apart into gathers by tables of indices, before a decomposition table is asked, and circular
pads into writes into an empty tensor. Loops say both better: with places that they compute, and as a join of slices.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import OpOverload

aten = torch.ops.aten

_NAMES = [
    *(f"upsample_nearest{d}d" for d in "123"),
    *(f"_upsample_nearest_exact{d}d" for d in "123"),
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
]
_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)
_lock = threading.Lock()
_traces = 0
_taken: list[tuple[OpOverload, Any, Any]] = []


def _overloads() -> list[OpOverload]:
    packets = [getattr(aten, name) for name in _NAMES]
    return [getattr(p, o) for p in packets for o in p.overloads() if o in ("default", "vec")]


@contextmanager
def image_ops_stay_whole() -> Iterator[None]:
    """For the length of a trace, torch's own kernels instead of its decompositions in Python.

    Traces of several threads may overlap: the first one to begin changes torch's tables, the last to end restores them.
    """
    global _traces
    with _lock:
        _traces += 1
        if _traces == 1:
            _take()
    try:
        yield
    finally:
        with _lock:
            _traces -= 1
            if _traces == 0:
                _restore()


def _take() -> None:
    for overload in _overloads():
        for key in _KEYS:
            if key in overload.py_kernels:
                _taken.append((overload, key, overload.py_kernels.pop(key)))
        overload._dispatch_cache.clear()
    circular = aten._pad_circular.default
    circular.py_kernels[DispatchKey.CompositeImplicitAutograd] = pad_circular
    circular._dispatch_cache.clear()


def _restore() -> None:
    while _taken:
        overload, key, kernel = _taken.pop()
        overload.py_kernels[key] = kernel
        overload._dispatch_cache.clear()
    circular = aten._pad_circular.default
    del circular.py_kernels[DispatchKey.CompositeImplicitAutograd]
    circular._dispatch_cache.clear()


def pad_circular(x: torch.Tensor, pad: Sequence[int]) -> torch.Tensor:
    """``F.pad(x, pad, mode="circular")``: the end, the image and its beginning, joined along each dimension.

    Where one number is negative, the image is what it leaves. If that is less than the other one asks for, it is
    repeated; torch reads memory there that it may not have written.
    """
    for k in range(len(pad) // 2):
        d = x.dim() - 1 - k
        before, after = pad[2 * k], pad[2 * k + 1]
        size = x.shape[d]
        if before > size or after > size:
            raise RuntimeError("Padding value causes wrapping around more than once.")
        if size + before + after < 0:
            raise RuntimeError("Negative padding value is resulting in an empty dimension")
        start, end = max(0, -before), size - max(0, -after)
        left = max(0, end - start)
        if left == 0 and max(before, after) > 0:
            raise RuntimeError(
                f"A circular pad of ({before}, {after}) leaves none of {size} elements of dimension {d}."
            )
        x = x.narrow(d, start, left)
        parts = [x]
        if before > 0:
            parts = [x.narrow(d, left - before % left, before % left), *[x] * (before // left), *parts]
        if after > 0:
            parts += [*[x] * (after // left), x.narrow(d, 0, after % left)]
        x = torch.cat(parts, d) if len(parts) > 1 else x
    return x.clone(memory_format=torch.contiguous_format)
