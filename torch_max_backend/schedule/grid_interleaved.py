"""Kernels for a GPU that read or write interleaved memory: a short loop's elements side by side, a long loop's apart.

So are colours of pixels, and rows of a matrix with few columns. Where another tensor has the long loop's elements side
by side, a thread has some of these with all of the short loop: it reads and writes both in whole vectors, and turns
them in its registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch_max_backend.loops.expr import Guarded, nested, variables, walk
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.schedule import grid_limits as gpu
from torch_max_backend.schedule.grid_memory import is_aligned
from torch_max_backend.schedule.nest import Nest, StageNest


@dataclass(frozen=True)
class Interleaved:
    """The two loops. A thread has ``lanes`` indices of the long one, which begin at a multiple."""

    short: Var
    long: Var
    lanes: int

    @property
    def size(self) -> int:
        """Of the short loop."""
        assert isinstance(self.short.size, int)
        return self.short.size

    def holds(self, address: Index) -> bool:
        """Whether an address is one of interleaved memory."""
        return _step(address, self.short) == 1 and _step(address, self.long) == self.size

    def chunk(self, address: Index, width: int) -> int:
        """Elements of ``width`` bytes that a thread reads or writes at once of interleaved memory."""
        chunk, first = gpu.BYTES // width, address.substitute({self.short: Index.of(0)})
        while chunk > 1 and (self.size * self.lanes % chunk or not _begins_at(first, self.long, self.lanes, chunk)):
            chunk //= 2
        return chunk

    def __str__(self) -> str:
        return f"{self.lanes} of {self.long} with all of {self.short}"


def interleaved(n: Nest, outer: int) -> Interleaved | None:
    """The loops of a nest without inner ones of which some memory is interleaved and other memory is not."""
    (stage,) = n.stages
    if outer < gpu.LARGE or any(isinstance(x, Guarded) for s in stage.statements for x in walk(s.body)):
        return None
    short = [v for v in n.outer if isinstance(v.size, int) and 2 <= v.size <= gpu.INTERLEAVED]
    long = [v for v in n.outer if isinstance(v.size, int) and v.size > gpu.INTERLEAVED]
    found = [p for u in short for v in long if (p := _of(stage, u, v, outer)) is not None]
    return max(found, key=lambda p: (p.size * p.lanes, -n.outer.index(p.short)), default=None)


def _of(stage: StageNest, short: Var, long: Var, outer: int) -> Interleaved | None:
    pair = Interleaved(short, long, 1)
    mixed = [(i, width) for i, width in stage.accesses if pair.holds(i)]
    along = [(i, width) for i, width in stage.accesses if _step(i, long) == 1]
    others = [i for i, _ in stage.accesses if {short, long} & i.variables and not pair.holds(i) and _step(i, long) != 1]
    stores = [(s.address, s.dtype.itemsize) for s in stage.statements if s.address is not None]
    if not mixed or not along or len(others) > len(mixed) or not _are_read_plainly(stage, pair):
        return None
    if not all(pair.holds(i) or _step(i, long) == 1 for i, _ in stores):
        return None
    for lanes in _possible(pair, stores, max(width for _, width in (*mixed, *along))):
        pair = Interleaved(short, long, lanes)
        fits = int(long.size) % lanes == 0 and all(is_aligned(i, long, lanes) for i, _ in stores if not pair.holds(i))
        if fits and all(pair.chunk(i, width) * width >= gpu.BANK for i, width in mixed):
            return pair if outer >= gpu.BUSY // 4 * lanes * pair.size else None
    return None


def _possible(pair: Interleaved, stores: list[tuple[Index, int]], widest: int) -> Iterator[int]:
    """How many indices of the long loop a thread may have, the best number first.

    Stores to interleaved memory are best with one vector a thread, since neighbours' stores then fill lines of it.
    """
    mixed = [width for i, width in stores if pair.holds(i)]
    least = next((n for n in (1, 2, 4, 8) if n * pair.size * min(mixed) % gpu.BYTES == 0), 8) if mixed else 8
    lanes = min(least, max(1, gpu.BYTES // widest), gpu.REGISTERS * 2 // pair.size)
    while lanes and (lanes > 1 or mixed):
        yield lanes
        lanes //= 2


def _are_read_plainly(stage: StageNest, pair: Interleaved) -> bool:
    """Whether no value of either loop is in what an index is computed from."""
    addresses = [i for i, _ in stage.accesses]
    return not any({pair.short, pair.long} & variables(x) for i in addresses for x in nested(i))


def _step(index: Index, v: Var) -> int | None:
    step = index.stride(v)
    return step.constant if step is not None and step.is_constant else None


def _begins_at(first: Index, long: Var, lanes: int, chunk: int) -> bool:
    return first.substitute({long: Index.of(Var("q", 1 << 32)) * lanes}) % chunk == 0
