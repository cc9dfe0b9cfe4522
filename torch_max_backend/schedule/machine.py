"""What a schedule takes a machine for: sizes above which work is worth sharing out, and below which it is not."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Limits, chosen by measurement.

    Attributes:
        row: Elements that one outer index of a fused kernel may touch: what a cache near the threads holds.
        parts: Outer indices, at least, of a fused kernel that touches more than ``alone``.
        alone: Elements of a kernel, or on a grid of one of its parts, that need no more parts.
        neighbours: Outer indices that count as one part where they are neighbours in memory.
        results: Results of a reduction along memory, below which it is cut in parts; and of one across memory.
        part: Elements of a reduction that are worth a part of their own.
        most_parts: Parts in which a reduction is cut, at most.
        block: Bytes that a block reads in the time that another launch takes: fewer are no part of their own.
        line: Bytes of neighbouring results that a block reads at once, of a reduction across memory.
        far: Bytes of a row from which the rows that are under way do not stay in a cache: with fewer than ``waves``
            times ``results`` of them they are cut in parts, since a kernel of few long blocks ends late.
        waves: See ``far``.
        launch: Elements that are read in the time that another launch takes.
        turned: Elements of a transpose in a kernel of rows that are worth a kernel of their own.
        operations: Operations on an element that take as long as reading it.
        has_grid: Whether kernels run on a grid of blocks.
        cluster: Blocks of a grid, at most, that work on one outer index together.
    """

    row: int
    parts: int
    alone: int
    neighbours: int
    results: tuple[int, int]
    part: int
    most_parts: int
    turned: int
    operations: int = 1
    block: int = 0
    line: int = 0
    far: int = 0
    waves: int = 1
    launch: int = 0
    has_grid: bool = False
    cluster: int = 1


CPU = Machine(
    row=1 << 16, parts=8, alone=1 << 16, neighbours=16, results=(16, 256), part=8192, most_parts=64, turned=1 << 14
)
GPU = Machine(
    row=1 << 18,
    parts=132,
    alone=1 << 16,
    neighbours=32,
    results=(264, 264 * 32),
    part=2048,
    most_parts=1056,
    turned=1 << 20,
    operations=16,
    block=1 << 17,
    line=32,
    far=1 << 18,
    waves=4,
    launch=1 << 20,
    has_grid=True,
    cluster=8,
)
"""One with about 132 multiprocessors, such as an H100."""
HOPPER = 90
"""The first architecture of NVIDIA's with clusters."""


def gpu_of(arch: str) -> Machine:
    """The GPU of an architecture, as ``sm_90a``."""
    return GPU if int(re.sub(r"\D", "", arch)) >= HOPPER else dataclasses.replace(GPU, cluster=1)
