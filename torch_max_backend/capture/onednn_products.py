"""Products of float32 by oneDNN in place of MKL, on processors for which MKL lacks kernels of the widest vectors.

MKL has such kernels for Intel's processors alone: on an AMD EPYC with AVX-512 it takes twice as long as oneDNN. But
oneDNN adds up to 1,024 numbers one after the other, and MKL 128 to 192, so that oneDNN's errors are up to 3.8 times as
large. Sums in parts as short as MKL's, which oneDNN adds up, have its errors, and more than half of the gain is left.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from torch_max_backend.base.target import elsewhere

LINEAR: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
WHOLE, LONGEST = 192, 256
"""Numbers that one call adds up, where it is the only one, and where it is one of several.

Against float64, the mean error is 0.9 to 1.3 times MKL's then, for sums of 64 to 16,384 numbers of either sign or of
one, and the greatest at most 1.8 times. With 384 in a part, the mean is up to 1.9 times as large.
"""
ALIGNED = 16
"""The numbers of a part are a multiple of that, but those of the last one."""
LARGE, LARGE_PART = 1 << 21, 1 << 22
"""Multiplications of a thread from which oneDNN is faster: of one call, and of each of several, which copy what they
read. Measured with two threads."""
FEWEST = 64
"""Rows, and columns, from which copies of parts pay."""
LARGEST_RESULT = 1 << 23
"""Elements of a result from which parts do not pay: each part reads and writes it, and memory of 32 MB and more is new
to the process in each call."""
LONGEST_SUM = 1 << 14
"""Numbers up to which errors were measured."""


@functools.lru_cache(maxsize=1)
def is_faster() -> bool:
    """Whether oneDNN's products are faster than MKL's on this machine."""
    has_both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    is_wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return has_both and is_wide and LINEAR is not None and _vendor() == "AuthenticAMD"


def _vendor() -> str:
    """Who made the processor, as Linux has it; empty if nobody says."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def _threads() -> int:
    return torch.get_num_threads()


def part_of(depth: int) -> int:
    """How many of the ``depth`` numbers that a product adds up are a part; the last one may have fewer."""
    if depth <= WHOLE:
        return depth
    parts = max(2, -(-depth // LONGEST))
    return -(-depth // (parts * ALIGNED)) * ALIGNED


def is_large(rows: int, depth: int, columns: int) -> bool:
    """Whether a product of these sizes is large enough for oneDNN, with its sums in parts."""
    part, threads = part_of(depth), _threads()
    if part == depth:
        return rows * depth * columns >= LARGE * threads
    is_worth_parts = min(rows, columns) >= FEWEST and rows * part * columns >= LARGE_PART * threads
    return is_worth_parts and rows * columns < LARGEST_RESULT and depth <= LONGEST_SUM


def pays(rows: int, depth: int, columns: int) -> bool:
    """Whether a product of these sizes in float32 shall be oneDNN's."""
    return is_large(rows, depth, columns) and torch.backends.mkldnn.enabled and elsewhere() is None and is_faster()
