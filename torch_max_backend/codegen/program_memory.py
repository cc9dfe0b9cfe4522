"""Where the tensors of a program lie, and from when to when: what is written over what, what has a place in the block.

A tensor lies in one of four ways:

- in an input, where the program's stores want it and its kernel may write it there at once;
- by itself, from torch's allocator: what leaves, and what a library reads;
- over another one, which its kernel reads for the last time;
- in the block (`block.py`): everything else, between its first kernel and its last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from torch_max_backend.capture.fake_tensors import storage_key
from torch_max_backend.codegen.block import Block
from torch_max_backend.codegen.memory_ledger import Ledger
from torch_max_backend.codegen.source import Extent, touched
from torch_max_backend.codegen.written_over import over_last_uses, reads_are_over
from torch_max_backend.loops.index import Index, greatest, product
from torch_max_backend.loops.program import Call
from torch_max_backend.partition.region import Region
from torch_max_backend.schedule.nest import Nest
from torch_max_backend.schedule.plan import Schedule

ALONE = 1 << 20
"""Bytes from which on a GPU gives an intermediate memory of its own, which ends with it, and no part of the block."""


class ProgramMemory:
    """A program's memory, which is followed step by step while its text is written.

    Args:
        dtypes: Those of all tensors.
        in_place: Definitions that a kernel writes into an input: definition to input.
    """

    def __init__(
        self, region: Region, plan: Schedule, dtypes: Mapping[str, torch.dtype], in_place: Mapping[str, str]
    ) -> None:
        self.region, self.plan, self.dtypes, self.in_place = region, plan, dtypes, in_place
        self.definitions = {d.name: d for d in plan.program.definitions()}
        self.outputs = {name: k for k, (name, _) in enumerate(plan.program.outputs)}
        ports = dict(zip(plan.program.inputs, region.inputs, strict=False))  # a region without a graph has none
        self.consumed = {name: port for name, port in ports.items() if port.consumed}
        """Inputs that nobody else holds, which are freed after their last use."""
        self.leaving = {*self.outputs, *(s for _, s in plan.program.stores)}
        self.as_tensors = self._needed_as_tensors()
        self.last = self._last_uses()
        """The last step that reads or writes a tensor."""
        self.reused = self._reused()
        """Tensors that are written over the last use of another one: tensor to the other one."""
        self.donated = self._donated()
        """Tensors that may be written over the last use of a consumed input: tensor to input."""
        self.alive: set[str] = set(self.consumed)
        """The Python variables that hold tensors of the program's own."""
        self.block, self.ledger = Block(), Ledger(Index.of(0))
        self._allocated: set[str] = set()
        for name, port in self.consumed.items():
            layout = plan.layouts[name]
            size = _room(layout.sizes, layout.strides) * dtypes[name].itemsize
            self.ledger.given(name, size, storage_key(port.value) or name)

    # -- decided before the first step -------------------------------------------------------------------------
    def _needed_as_tensors(self) -> set[str]:
        """What torch's allocator gives each by itself: what leaves, and what a library reads or torch copies."""
        needed = set(self.outputs) | {s for t, s in self.plan.program.stores if s not in self.in_place}
        for step in self.plan.steps:
            if isinstance(step, Call):
                needed.update(step.reads())
        return {n for n in needed if n in self.definitions}

    def _last_uses(self) -> dict[str, int]:
        last: dict[str, int] = {}
        for k, step in enumerate(self.plan.steps):
            for name in step.reads() if isinstance(step, Call) else names_of(step):
                last[name] = k
        return last

    def _reused(self) -> dict[str, str]:
        kept = {*self.leaving, *self.plan.program.inputs}
        found: dict[str, str] = {}
        for nest, name, other in over_last_uses(self.plan.steps, self.last, self.as_tensors - self.in_place.keys()):
            if name in found or other in {*kept, *found.values()} or not self._fits(name, other):
                continue
            if reads_are_over([nest], other, name):
                found[name] = other
        return found

    def _donated(self) -> dict[str, str]:
        return {}

    def _fits(self, name: str, other: str) -> bool:
        """Whether a tensor is what torch's allocator would give for another: dtype, sizes and strides."""
        if self.dtypes[name] is not self.dtypes[other] or not (
            other in self.as_tensors or other not in self.definitions
        ):
            return False
        return self.layout(name) == self.layout(other)

    # -- asked -------------------------------------------------------------------------------------------------
    def layout(self, name: str) -> tuple[tuple[Index, ...], tuple[Index, ...]]:
        """The sizes and strides of what leaves as torch promises them, else as kernels have them."""
        layout = self.plan.layouts[name]
        if name not in self.outputs:
            return tuple(layout.sizes), tuple(layout.strides)
        shape = self.plan.program.shapes.get(name, layout.sizes)
        if name in self.plan.program.free:
            return tuple(shape), tuple(map(Index.of, self.plan.program.free[name]))
        return tuple(shape), tuple(_dense(shape, self.region.outputs[self.outputs[name]].order))

    @property
    def totals(self) -> tuple[Index, ...]:
        """Totals of which the greatest is the most that is allocated at once; the block is there all the time."""
        return tuple(self.block.size + peak for peak in self.ledger.peaks or [Index.of(0)])

    def _extent(self, name: str) -> Extent:
        """Where a tensor lies: a Python name for a tensor by itself, or bytes of the "block"."""
        if name in self.block.extents:
            return "block", *self.block.extents[name]
        return self._root(name), Index.of(0), Index.of(1)

    def _root(self, name: str) -> str:
        """The Python name of the tensor in whose memory a tensor is, in the segment that writes it."""
        while name in self.reused and name not in self.alive:
            name = self.reused[name]
        return self.in_place.get(name, name)

    # -- step by step ------------------------------------------------------------------------------------------
    def place(self, nests: Sequence[Nest], first: int) -> tuple[list[str], dict[str, Extent]]:
        """Make room for what nests write, of which the first is step ``first``.

        Returns:
            The tensors that are to be allocated, and where all lies that the nests touch.
        """
        new: list[str] = []
        extents: dict[str, Extent] = {}
        for i, nest in enumerate(nests):
            for name in _written(nest):
                if name in self.in_place or name in self.reused:
                    continue
                if name in self.block.extents or name in self._allocated:
                    continue
                if name in self.as_tensors:
                    self._allocate(name)
                    new.append(name)
                else:
                    d = self.definitions[name]
                    self.block.place(name, product(d.sizes) * d.dtype.itemsize)
            for name in names_of(nest):
                extents[name] = self._extent(name)
            for name in list(self.block.extents):
                if self.last.get(name, -1) <= first + i and name in extents and name not in self.as_tensors:
                    self.block.release(name)
        return new, extents

    def _allocate(self, name: str) -> None:
        self._allocated.add(name)
        self.alive.add(name)
        if name in self.donated:
            self.ledger.share(name, self.donated[name])
        else:
            self.ledger.take(name, _room(*self.layout(name)) * self.dtypes[name].itemsize)

    def written_over(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """Those of the names that were written over another tensor just now, with the variable that had it."""
        found = []
        for name in names:
            if name in self.reused and name not in self.alive:
                root = self._root(name)
                found.append((name, root))
                self.ledger.share(name, root)
                self.alive.add(name)
        return found

    def returned(self, call: Call, workspaces: Sequence[Index]) -> None:
        """A library call has returned, and needed workspaces of these totals until then."""
        for total in workspaces:
            self.ledger.reach(self.ledger.now + total)
        for r in filter(None, call.results):
            self.ledger.take(r.name, product(r.sizes) * r.dtype.itemsize)
            self.alive.add(r.name)

    def free(self, k: int) -> list[str]:
        """The variables that nothing reads behind step ``k``, which are to be deleted."""
        dead = sorted(n for n in self.alive - self.leaving if self.last.get(n, -1) <= k)
        for name in dead:
            self.ledger.drop(name)
        self.alive -= {*dead}
        return dead


class GridProgramMemory(ProgramMemory):
    """A program's memory on a GPU, where what is large ends with its last use."""

    def _needed_as_tensors(self) -> set[str]:
        sizes = {n: product(d.sizes) * d.dtype.itemsize for n, d in self.definitions.items()}
        return super()._needed_as_tensors() | {n for n, size in sizes.items() if size.bounds[0] >= ALONE}

    def _donated(self) -> dict[str, str]:
        """Intermediates that are written over the last use of a consumed input, element by element, with the input.

        That is decided at each call, by who else has the input's memory (`runtime/sole_owner.py`).
        """
        wanted = self.as_tensors - {*self.in_place, *self.reused, *self.leaving}
        given, found = self.consumed.keys() - self.leaving, dict[str, str]()
        for nest, name, other in over_last_uses(self.plan.steps, self.last, wanted):
            if name in found or other not in given or other in found.values():
                continue
            if self._has_room(other, name) and reads_are_over([nest], other, name):
                found[name] = other
        return found

    def _has_room(self, given: str, name: str) -> bool:
        """Whether a large input has as many elements in memory as a tensor of the same dtype."""
        layout = self.plan.layouts[given]
        room = _room(layout.sizes, layout.strides)
        is_large = (room * self.dtypes[given].itemsize).bounds[0] >= ALONE
        return is_large and self.dtypes[given] is self.dtypes[name] and room == _room(*self.layout(name))


def names_of(nest: Nest) -> list[str]:
    """The tensors that a nest reads and writes in memory, in order."""
    return [name for name, _ in touched(nest)]


def _written(nest: Nest) -> list[str]:
    return [name for name, writes in touched(nest) if writes]


def _room(sizes: Sequence[Index], strides: Sequence[Index]) -> Index:
    """How many elements torch's allocator gives a tensor: more than it has where rows have gaps between them."""
    dense = product(sizes)
    if any(n == 0 for n in sizes) or not dense.is_constant or not all(s.is_constant for s in strides):
        return dense
    return Index.of(1) + sum(((n - 1) * s for n, s in zip(sizes, strides, strict=True)), Index.of(0))


def _dense(sizes: Sequence[Index], order: tuple[int, ...]) -> list[Index]:
    strides, step = [Index.of(1)] * len(sizes), Index.of(1)
    for d in reversed(order):
        strides[d] = step
        step = step * greatest(sizes[d], Index.of(1))
    return strides
