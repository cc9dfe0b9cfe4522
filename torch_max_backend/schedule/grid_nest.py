"""Kernels for a GPU, and how threads share them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_max_backend.loops.index import Index, Var, product
from torch_max_backend.loops.program import Sort
from torch_max_backend.schedule import cost
from torch_max_backend.schedule import grid_limits as gpu
from torch_max_backend.schedule.grid_interleaved import Interleaved
from torch_max_backend.schedule.grid_tiles import Tile
from torch_max_backend.schedule.nest import Nest, OwnRow, StageNest, Statement


@dataclass(frozen=True)
class GridNest(Nest):
    """A nest with its shares: see the module. The last of ``outer`` runs fastest.

    Vectors have ``lanes`` elements, along ``vector``, or in each stage along its own.
    """

    rows: int = gpu.BLOCK
    threads: int = 1
    columns: bool = False
    lanes: int = 1
    held: int = 0
    """Vectors of an outer index's elements that a thread has in registers, if all stages run over the same: an element
    is then read and computed once."""
    each: int = 1
    """Outer indices, or vectors of them, of a thread or of the threads that share them: reads of all are under way
    together."""
    repeated: Var | None = None
    """The outer loop along which those ``each`` are neighbours. Without one they are a block's threads apart."""
    blocks: int = 1
    """Blocks that share an outer index with all of their threads: a cluster of them, in which ``threads`` count."""
    anew: bool = False
    """Whether a thread keeps nothing of the vectors that it holds but what it has read, so that it can hold more: each
    stage computes the rest anew."""
    in_shared: bool = False
    """Whether shared memory keeps what later stages read of the vectors that a thread holds: it needs few registers
    then, so that more threads of a multiprocessor have some."""
    resident: int = 0
    """Blocks that a multiprocessor shall run at the same time; 0 if as many as there are registers for."""
    flat: bool = False
    """Whether a thread's vector is of all outer loops as one, in the order of memory: where it goes beyond a row, its
    elements are computed one by one."""
    tile: Tile | None = None
    """What a block has of two loops of a transpose, and passes through shared memory."""
    interleaved: Interleaved | None = None
    """What a thread has of two loops of a transpose, and turns in its registers. The short one is inside of stages."""

    part: int = 0
    """Outer indices that a block's threads have one after the other, as many as ``rows`` at a time. What the last stage
    adds up is of all of them."""

    own: tuple[OwnRow, ...] = ()
    """Rows of outer indices that lie in the shared memory of their threads."""

    @property
    def block(self) -> int:
        """Threads of a block."""
        return gpu.BLOCK if self.tile is not None else self.rows * self.threads // self.blocks

    @property
    def share(self) -> int:
        """Outer indices, or vectors of them, of a block or a cluster."""
        return self.part or self.rows * (self.each if self.repeated is None else 1)

    @property
    def parts(self) -> Index:
        """Outer indices, vectors of them, or some along ``repeated``: what blocks have their shares of."""
        if self.flat:
            return (product(Index.of(v.size) for v in self.outer) + (self.lanes - 1)) // self.lanes
        sizes = []
        for v in self.outer:
            each = self.lanes if v == self.vector else self.tile.side(v) if self.tile is not None else 1
            each = self.each if v == self.repeated else each
            sizes.append((Index.of(v.size) + (each - 1)) // each)
        return product(sizes)

    @property
    def sort(self) -> Statement | None:
        """What puts the elements of an outer index in order, if the nest sorts."""
        found = (s for stage in self.stages for s in stage.statements if isinstance(s.how, Sort))
        return next(found, None)

    @property
    def place(self) -> Index:
        """The number of an outer index among all."""
        return place_of(self.outer)

    def shared(self, stage: StageNest) -> dict[Var, int]:
        """The loops of a stage that the threads of an outer index share, with the number of threads along each."""
        is_reduced = not stage.free or cost.count(stage.reduced) > cost.count(stage.free)
        loops = stage.reduced if is_reduced else stage.free
        left, found = self.threads, {}
        for v in reversed(loops):
            steps = -(-cost.count([v]) // (self.lanes if v == stage.vector else 1))
            found[v] = min(left, 1 << max(0, (steps - 1).bit_length()))
            left //= found[v]
        if found:
            found[loops[-1]] *= left  # those find nothing to do
        return found

    def __str__(self) -> str:
        how = f"{self.rows} at a time, {self.threads} threads each{', neighbours apart' if self.columns else ''}"
        how += f", {self.held} vectors in registers" if self.held else ""
        how += ", and the rest anew" if self.anew else ""
        how += ", between stages in shared memory" if self.in_shared else ""
        how += f", a cluster of {self.blocks} blocks" if self.blocks > 1 else ""
        how += f", {self.part} one after the other" if self.part else ""
        how += f", {self.each} times" if self.each > 1 else ""
        how += f" along {self.repeated}" if self.repeated is not None else ""
        how += ", beyond rows" if self.flat else ""
        how += f", {self.interleaved}" if self.interleaved is not None else ""
        how = str(self.tile) if self.tile is not None else how
        return f"{super().__str__()}\n  blocks: {how}, {self.lanes} lanes"


def place_of(loops: Sequence[Var]) -> Index:
    """The number of an iteration of loops among all."""
    place = Index.of(0)
    for v in loops:
        place = place * v.size + Index.of(v)
    return place
