"""What programs on a GPU are made of beside their text: launches of generated kernels, and what that text calls.

Kernels read and write vectors of 16 bytes where strides and offsets allow it, so tensors begin at such an address. An
input that does not is copied, and copied back if it is written to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torch_max_backend.base.index_sites import Site
from torch_max_backend.runtime.cuda_launch import CudaLibrary, Launch, Launches, Word, load_cubin
from torch_max_backend.runtime.index_reports import reports_of
from torch_max_backend.runtime.sole_owner import of_one_variable, references

ALIGNMENT = 16
"""Bytes."""


@dataclass(frozen=True)
class KernelLaunch:
    """A launch on a GPU: of how many blocks, or of the table's word at a place divided by a number of outer indices.

    ``parameters`` are the words of the table that the kernel takes.
    """

    kernel: str
    blocks: int | tuple[int, int]
    threads: int
    parameters: tuple[int, ...]


@dataclass(frozen=True)
class GridSegmentSpec:
    """A run of kernels on a GPU: the number of words in its table, and its launches in order."""

    words: int
    launches: tuple[KernelLaunch, ...]


class GridLibrary:
    """Kernels as machine code, loaded on a device, and the file of what launches them; ``sha`` is the code's digest."""

    def __init__(self, cubin: bytes, sha: str, launcher: Path, device: int) -> None:
        self._kernels: CudaLibrary = load_cubin(cubin, sha, device)
        self._launcher, self._device = launcher, device

    def launches(self, launches: Sequence[KernelLaunch]) -> Callable[[int, int], None]:
        """Launches as a function of a table's address and a stream."""
        made = [
            Launch(
                self._kernels.function(x.kernel),
                x.blocks if isinstance(x.blocks, int) else Word(*x.blocks),
                x.threads,
                x.parameters,
            )
            for x in launches
        ]
        return Launches(made, self._launcher, device=self._device).launch


def grid_names(gpu: int, sites: tuple[Site, ...]) -> dict[str, Any]:
    """What the text of a program on a GPU calls."""
    device = torch.device("cuda", gpu)
    names = {
        "empty": functools.partial(_empty, device),
        "block_of": functools.partial(_block_of, device),
        "stream": torch._C._cuda_getCurrentRawStream,
        "current": torch._C._cuda_getDevice,
        "on_device": _on_device,
        "realigned": realigned,
        "references": references,
        "of_one_variable": of_one_variable,
    }
    fast = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
    if fast is not None:  # private, and a third of the time; on the current device, which is the program's
        names["empty"] = fast
    if sites:
        with unset_fake_temporarily():  # a program may be bound while torch traces
            names["errors"] = reports_of(gpu).report_for(sites)
    return names


def _empty(device: torch.device, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def _block_of(device: torch.device, size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device)


def _on_device(gpu: int, run: Callable[..., Any], args: Sequence[Any]) -> Any:
    with torch.cuda.device(gpu):
        return run(*args)


def realigned(run: Callable[..., Any], args: Sequence[Any], written: Sequence[int]) -> Any:
    """Call a program with copies of the tensors that do not begin where it can read vectors.

    Among ``args`` may be a list of tensors. ``written`` are the positions of those that the program writes to.
    """
    copies = [[_aligned(t) for t in x] if isinstance(x, list) else _aligned(x) for x in args]
    results = run(*copies)
    for k in written:
        if copies[k] is not args[k]:
            args[k].copy_(copies[k])
    return results


def _aligned(x: Any) -> Any:
    """A copy with the same strides of a tensor that does not begin where vectors can be read; all else as it is."""
    if not isinstance(x, torch.Tensor) or x.data_ptr() % ALIGNMENT == 0:
        return x
    span = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((span,), (1,)).clone().as_strided(x.shape, x.stride())
