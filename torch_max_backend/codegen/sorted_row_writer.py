"""Sorts on a GPU: a network of comparisons of the elements that the threads of a row hold in registers.

A row is filled up to a power of two of elements with such as come last. All threads of a group, a warp or a block, read
its rows in the order of memory, and write what they have to shared memory. From there each takes neighbouring elements
of one row. After the network they go back, and are read, taken apart and written in the order of memory again.

A thread sorts its own elements. Then sorted runs grow by bitonic merges. The first step of a merge compares elements
that lie alike seen from the run's two ends, all others such as are equally far apart; so the lesser one is always to be
first. Threads exchange what lies in two of them: by shuffles within a warp, else through shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch

from torch_max_backend.codegen.expression_writer import Value, literal
from torch_max_backend.codegen.grid_kernel_writer import GridKernelWriter
from torch_max_backend.codegen.source import Slot
from torch_max_backend.codegen.tile_writer import Place
from torch_max_backend.loops.expr import SHORT, Const, Scalar
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.program import Sort
from torch_max_backend.schedule.grid_limits import WARP
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.grid_sorts import pitch
from torch_max_backend.schedule.nest import row_of

Pair = tuple[int, int]


@dataclass(frozen=True)
class _Slot:
    """An element that a thread reads and writes for its group, as texts: its row, its number in it, and where it is in
    shared memory, as its row. ``outer`` is where the row is, or the last one for a row behind that."""

    row: str
    element: str
    begin: str
    address: str
    outer: Place


class SortedRowWriter(GridKernelWriter):
    """Writes the kernel of a nest that sorts rows: its one stage."""

    def __init__(self, nest: GridNest, slots: Mapping[str, Slot]) -> None:
        super().__init__(nest, slots)
        assert nest.sort is not None and isinstance(nest.sort.how, Sort)
        self.sorted = nest.sort
        self.group = nest.block if nest.columns else max(WARP, nest.threads)
        """Threads that read and write rows together."""
        self.pitch = pitch(nest.threads, nest.held, nest.columns)
        self.barrier = "warp_barrier()" if self.group == WARP else "block_barrier()"
        (self.along,) = nest.stages[0].inner
        self.size = int(self.along.size)
        keys = [SHORT[nest.sort.body.dtype], *(["i32"] if nest.sort.how.gives_places else [])]
        self.shared_keys = [self._shared(key, nest.rows * self.pitch, f"key {k}") for k, key in enumerate(keys)]
        """Shared memory of keys, and of places beside them."""
        self.begin = ""
        """Where the row at work begins in shared memory, as text."""
        self.held: list[list[str]] = []
        """The keys of a thread's elements, and places beside them, in registers."""

    def _outer(self) -> None:
        nest, group = self.nest, self.group
        rows = group // nest.threads
        sizes = self._sizes()
        self._line(f"var total: Int = {' * '.join(sizes) or '1'}")
        within = group == nest.block
        first = f"block_index() * {nest.rows}"
        self._line(f"var lane: Int = {'thread_in_block()' if within else f'rem32(thread_in_block(), {group})'}")
        if not within:
            self._line(f"var group: Int = div32(thread_in_block(), {group})")
        self._line(f"var base: Int = {'0' if within else f'group * {rows * self.pitch}'}")
        self._line(f"var first: Int = {self._small(first if within else f'{first} + group * {rows}')}")
        with self._block("if first < total:"):
            slots = list(self._slots_of_thread(sizes))
            self._collect(slots)
            self._line(self.barrier)
            self._take()
            self._put_in_order(_sorting(self.nest.held))
            self._merge_threads()
            self._give(self.shared_keys[-1:], self.held[-1:])
            self._line(self.barrier)
            self._write_rows(slots)
        self.lines[:0] = self.head

    # -- the elements of a group -----------------------------------------------------------------------------
    def _slots_of_thread(self, sizes: Sequence[str]) -> Iterator[_Slot]:
        """In turns with the others of the group: along rows, or across them."""
        nest, group, length = self.nest, self.group, self.nest.threads * self.nest.held
        rows: dict[str, tuple[str, Place]] = {}
        for k in range(nest.held):
            if nest.columns:
                number, element = f"rem32(lane, {nest.rows})", f"{k * nest.threads} + div32(lane, {nest.rows})"
            elif length >= group:
                number, element = f"{k * group // length}", f"{k * group % length} + lane"
            else:
                number, element = f"{k * (group // length)} + div32(lane, {length})", f"rem32(lane, {length})"
            if number not in rows:
                row, _ = self._new("row", f"first + {number}", 1)
                part, _ = self._new("part", f"imin({row}, total - 1)", 1)
                self._at_number(part, sizes)
                rows[number] = row, {v: self.place[v] for v in nest.outer}
            row, outer = rows[number]
            element, _ = self._new("e", element, 1)
            begin = f"base + ({number}) * {self.pitch}"
            address, _ = self._new("at", f"{begin} + {self._apart(element)}", 1)
            yield _Slot(row, element, begin, address, outer)

    def _apart(self, element: str) -> str:
        """Where an element is in the shared memory of its row."""
        return f"{element} + div32({element}, {self.nest.held})"

    def _collect(self, slots: Sequence[_Slot]) -> None:
        """Bring a group's rows into shared memory. All reads are under way together."""
        (stage,) = self.nest.stages
        reads = self._reads(replace(stage, statements=(self.sorted,)), (*self.nest.outer, self.along))
        taken: list[tuple[Place, dict[Scalar, Value]]] = []
        for slot in slots:
            at = slot.element if self._is_full else self._new("e", f"imin({slot.element}, {self.size - 1})", 1)[0]
            taken.append(({**slot.outer, self.along: at}, {}))
            with self._at(*taken[-1]):
                for x in reads:
                    self._scalar(x)
        last = literal(Const(torch.iinfo(self.sorted.body.dtype).max, self.sorted.body.dtype), 1)
        for slot, at_element in zip(slots, taken, strict=True):
            with self._at(*at_element):
                key, _ = self._new("key", self._scalar(self.sorted.body)[0], 1)
            if not self._is_full:
                with self._block(f"if {slot.element} >= {self.size}:"):
                    self._line(f"{key} = {last}")
            self._line(f"shared_store({self.shared_keys[0]}, {slot.address}, {key})")

    def _write_rows(self, slots: Sequence[_Slot]) -> None:
        """What is sorted and what is made of it, element by element."""
        (stage,) = self.nest.stages
        for slot in slots:
            with self._block(f"if {slot.row} < total:"), self._if_in_row(slot):
                self.begin = slot.begin
                with self._at({**slot.outer, self.along: slot.element}, {}):
                    for s in stage.statements:
                        few = s.first is not None
                        with self._block(f"if {slot.element} < {s.first}:") if few else nullcontext():
                            text = self._sorted_at(slot.address) if s is self.sorted else self._scalar(s.body)[0]
                            self.registers[s.name] = (text, 1) if text.isidentifier() else self._new("v", text, 1)
                            if s.address is not None:
                                self._store(s, self.registers[s.name][0], 1)

    def _sorted_at(self, address: str) -> str:
        """A result of the sort."""
        found = f"shared_load[1]({self.shared_keys[-1]}, {address})"
        return f"cast[i64]({found})" if len(self.held) > 1 else found

    def _read(self, source: str, address: Index) -> Value:
        if source != row_of(self.sorted.name):
            return super()._read(source, address)
        place, _ = self._new("k", self._index(address), 1)
        return self._new("x", self._sorted_at(f"{self.begin} + {self._apart(place)}"), 1)

    def _own_rows(self) -> None:
        """They are in shared memory."""

    @property
    def _is_full(self) -> bool:
        """Whether rows have as many elements as their threads."""
        return self.size == self.nest.threads * self.nest.held

    def _if_in_row(self, slot: _Slot) -> AbstractContextManager[None]:
        return nullcontext() if self._is_full else self._block(f"if {slot.element} < {self.size}:")

    # -- the elements of a thread ----------------------------------------------------------------------------
    def _take(self) -> None:
        """A thread's elements of a row, which are neighbours."""
        threads, held = self.nest.threads, self.nest.held
        self._line(f"var mine: Int = rem32(lane, {threads})")
        self._line(f"var begin: Int = base + div32(lane, {threads}) * {self.pitch}")
        self._line(f"var home: Int = begin + mine * {held + 1}")
        keys = [self._new("w", f"shared_load[1]({self.shared_keys[0]}, home + {r})", 1)[0] for r in range(held)]
        self.held = [keys]
        if len(self.shared_keys) > 1:
            places = [self._new("place", f"from_int[i32, 1](mine * {held} + {r})", 1)[0] for r in range(held)]
            self.held.append(places)

    def _give(self, memory: Sequence[str], held: Sequence[Sequence[str]]) -> None:
        for shared, names in zip(memory, held, strict=True):
            for r, name in enumerate(names):
                self._line(f"shared_store({shared}, home + {r}, {name})")

    def _compare_down_from(self, by: int) -> None:
        while by:
            self._put_in_order(_apart(self.nest.held, by))
            by //= 2

    def _put_in_order(self, pairs: Sequence[Pair]) -> None:
        """Put the lesser one of each pair first."""
        for i, j in pairs:
            turned, _ = self._new("c", self._is_less([names[j] for names in self.held], [n[i] for n in self.held]), 1)
            for names in self.held:
                a, b = names[i], names[j]
                lesser, _ = self._new("l", f"select({turned}, {b}, {a})", 1)
                greater = f"select({turned}, {a}, {b})"
                if len(self.held) == 1 and self.sorted.body.dtype is torch.int64:
                    greater = f"bit_xor(bit_xor({a}, {b}), {lesser})"  # two instructions; a choice compares once more
                self._line(f"{b} = {greater}")
                self._line(f"{a} = {lesser}")

    def _is_less(self, a: Sequence[str], b: Sequence[str]) -> str:
        if len(a) == 1:
            return f"lt({a[0]}, {b[0]})"
        return f"bit_or(lt({a[0]}, {b[0]}), bit_and(eq({a[0]}, {b[0]}), lt({a[1]}, {b[1]})))"

    # -- several threads -------------------------------------------------------------------------------------
    def _merge_threads(self) -> None:
        """Merge the runs of ``size`` threads, for all sizes."""
        threads, held = self.nest.threads, self.nest.held
        if threads == 1:
            return
        size, by = "size", "by"
        self._line(f"var {size}: Int = 2")
        with self._block(f"while {size} <= {threads}:"):
            self._exchange(f"{size} - 1", f"mine * 2, {size}", f"{size} > {WARP}", range(held - 1, -1, -1))
            if threads > 2:
                self._line(f"var {by}: Int = {size} // 4")
                with self._block(f"while {by} > 0:"):
                    self._exchange(by, f"mine, {by}", f"{by} >= {WARP}", range(held))
                    self._line(f"{by} = {by} // 2")
            self._compare_down_from(held // 2)
            self._line(f"{size} = {size} * 2")

    def _exchange(self, mask: str, half: str, is_far: str, order: Sequence[int]) -> None:
        """Compare with the elements, in that order, of the thread whose number differs by ``mask``.

        Args:
            half: Two numbers that have a bit in common in the upper one of both threads, which keeps the greater ones.
            is_far: Whether the other thread may be in another warp.
        """
        a, b = (f"from_int[i32, 1]({x})" for x in half.split(", "))
        upper, _ = self._new("upper", f"ne(bit_and({a}, {b}), const[i32, 1](0))", 1)
        if self.nest.threads <= WARP:
            others = [[self._new("o", f"shuffle_xor({n[r]}, {mask})", 1)[0] for r in order] for n in self.held]
        else:
            others = [[self._new("o", n[r], 1)[0] for r in order] for n in self.held]
            with self._block(f"if {is_far}:"):
                self._give(self.shared_keys, self.held)
                self._line("block_barrier()")
                number = f"to_int(bit_xor(from_int[i64, 1](mine), from_int[i64, 1]({mask})))"
                there, _ = self._new("there", f"begin + {number} * {self.nest.held + 1}", 1)
                for memory, names in zip(self.shared_keys, others, strict=True):
                    for name, r in zip(names, order, strict=True):
                        self._line(f"{name} = shared_load[1]({memory}, {there} + {r})")
                self._line("block_barrier()")
            with self._block("else:"):
                for names, own in zip(others, self.held, strict=True):
                    for name, r in zip(names, order, strict=True):
                        self._line(f"{name} = shuffle_xor({own[r]}, {mask})")
        for r in range(self.nest.held):
            is_less = self._is_less([names[r] for names in others], [names[r] for names in self.held])
            taken, _ = self._new("c", f"bit_xor({is_less}, {upper})", 1)
            for names, own in zip(others, self.held, strict=True):
                self._line(f"{own[r]} = select({taken}, {names[r]}, {own[r]})")


def _sorting(count: int) -> list[Pair]:
    """What sorts a power of two of elements: Batcher's odd-even merges, with fewer pairs than bitonic ones."""
    pairs, size = list[Pair](), 1
    while size < count:
        by = size
        while by:
            firsts = [j + i for j in range(by % size, count - by, 2 * by) for i in range(min(by, count - j - by))]
            pairs += [(a, a + by) for a in firsts if a // (2 * size) == (a + by) // (2 * size)]
            by //= 2
        size *= 2
    return pairs


def _apart(count: int, by: int) -> list[Pair]:
    """Pairs that are ``by`` apart."""
    return [(k + i, k + i + by) for k in range(0, count, 2 * by) for i in range(by)]
