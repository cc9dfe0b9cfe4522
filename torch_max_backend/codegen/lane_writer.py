"""Vectors on a GPU whose lanes are computed one after the other, or that lie in two rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from torch_max_backend.codegen.expression_writer import Value, reach
from torch_max_backend.codegen.source import Slot
from torch_max_backend.codegen.tile_writer import TileWriter
from torch_max_backend.loops.expr import (
    COMPARISONS,
    SHORT,
    FromIndex,
    Guarded,
    Load,
    Op,
    Scalar,
    rewrite,
    variables,
    walk,
)
from torch_max_backend.loops.index import Atom, Computed, Div, Index, Mod, Var
from torch_max_backend.loops.tensor import sized
from torch_max_backend.schedule.grid_memory import is_same_within
from torch_max_backend.schedule.grid_nest import GridNest

WIDE = 4
"""Lanes of a vector for which it is worth asking whether a condition holds in all of them."""


@dataclass(frozen=True)
class _Row:
    """How memory lies along a loop that was several: ``size`` iterations are ``step`` apart, then comes another row."""

    size: int
    step: int


def _row_of_lanes(index: Index, v: Var) -> _Row | None:
    """The rows of an index that depends on ``v`` by ``v // n`` in any way, and by a multiple of ``v % n``."""
    parts = [a for a in _atoms(index) if isinstance(a, Div | Mod) and a.dividend == Index.of(v)]
    if not parts or not all(a.divisor.is_constant for a in parts):
        return None
    size = min(a.divisor.constant for a in parts)
    fits = all(a.divisor.constant % size == 0 if isinstance(a, Div) else a.divisor.constant == size for a in parts)
    within = Var(f"{v.name} within", size)
    values = {a: Index.of(within if isinstance(a, Mod) else Var(f"{v.name} row", 1 << 31)) for a in parts}
    left = index.substitute(values, lambda x: rewrite(x, values))
    step = left.coefficient(within)
    others = {w for atom, _ in (left - Index.of(within) * step).terms for w in reach(atom)}
    return _Row(size, step) if fits and not others & {v, within} else None


def _atoms(index: Index) -> set[Atom]:
    """Those of an index, and of the indices of what is read for it."""
    found = set(index.atoms)
    for atom in index.atoms:
        if isinstance(atom, Computed):
            for x in walk(atom.value):
                indices = x.index if isinstance(x, Load) else (x.index,) if isinstance(x, FromIndex) else ()
                for i in indices:
                    found |= _atoms(i)
    return found


class LaneWriter(TileWriter):
    """Writes what vectors of outer indices read where that are no neighbours."""

    def __init__(self, nest: GridNest, slots: Mapping[str, Slot]) -> None:
        super().__init__(nest, slots)
        self.lane: int | None = None
        """The lane of vectors at work, where lanes are computed one after the other."""

    def _scalar(self, x: Scalar) -> Value:
        text, lanes = super()._scalar(x)
        return (text, lanes) if self.lane is None or lanes == 1 else (f"lane_at({text}, {self.lane})", 1)

    def _load(self, x: Load) -> Value:
        if self.lanes == 1 or self._step(x.index[0]) in (0, 1):
            return super()._load(x)
        of_two = self._load_of_two_rows(x)
        if of_two is not None:
            return of_two
        apart = self._index_by_lane(x.index[0])
        return self._by_lane(x) if apart is None else self._loads_by_lane(x, apart)

    def _load_of_two_rows(self, x: Load) -> Value | None:
        """A vector of which some lanes are in one row and the others, if any, in the next: two lanes say where.

        Of ``x[v % 33 + 33*y[v // 33]]`` the first and the last lane know ``y``; the others are some elements from one
        of them. ``None`` where memory is of another kind, or rows are shorter than a vector.
        """
        v, lanes = self.vector, self.lanes
        row = None if v is None or self.nest.flat else _row_of_lanes(x.index[0], v)
        if v is None or row is None or row.size < lanes:
            return None
        pointer = self.pointers[x.source]
        first, last = self._place_in_lane(x.index[0], v, 0), self._place_in_lane(x.index[0], v, lanes - 1)
        left, _ = self._new("n", f"{row.size} - {self._index(Index.of(v) % row.size)}", 1)
        if row.step == 0:
            ends = [self._new("x", f"load[1]({pointer}, {at})", 1)[0] for at in (first, last)]
            texts = [f"({ends[0]} if {k} < {left} else {ends[1]})" for k in range(lanes)]
            return self._joined(texts, SHORT[x.dtype]), lanes
        texts = []
        for k in range(lanes):
            before, behind = f"{first} + {k * row.step}", f"{last} - {(lanes - 1 - k) * row.step}"
            texts.append(self._new("x", f"load[1]({pointer}, ({before}) if {k} < {left} else ({behind}))", 1)[0])
        return self._joined(texts, SHORT[x.dtype]), lanes

    def _place_in_lane(self, index: Index, v: Var, k: int) -> str:
        """The name of an index in one lane of vectors along ``v``."""
        with self._in_lane(v, k):
            return self._new("k", self._index(index), 1)[0]

    @contextmanager
    def _in_lane(self, v: Var, k: int) -> Iterator[None]:
        """In one lane of the vectors along ``v`` that are at work, which a name of its own has the place of."""
        lanes, start, registers = self.lanes, self.place[v], self.registers
        self.vector, self.lanes, self.lane = None, 1, k
        self.registers = {n: (f"lane_at({t}, {k})", 1) if w > 1 else (t, w) for n, (t, w) in registers.items()}
        with self._scope():
            self.place[v] = self._new("k", f"{start} + {k}", 1)[0] if k else start
            yield
        self.vector, self.lanes, self.lane, self.registers = v, lanes, None, registers
        self.place[v] = start

    def _index_by_lane(self, index: Index) -> list[Index] | None:
        """An index in each lane of a vector that begins at a multiple of its lanes, as one of the vector's number.

        Of ``(i + 1) // 2`` lanes 0 to 3 are ``2*q``, ``2*q + 1``, ``2*q + 1``, ``2*q + 2``: little is left to compute,
        and lanes that read one element read it once. ``None`` where that is not known.
        """
        v, lanes = self.vector, self.lanes
        if v is None or self.nest.flat or any(isinstance(atom, Computed) for atom in index.atoms):
            return None
        number = sized(f"{v.name} of {lanes}", (Index.of(v.size) + (lanes - 1)) // lanes)
        key = FromIndex(Index.of(number), torch.int64)
        known = self._known(key)
        if known is None:
            known = self.scopes[-1][key] = self._new("q", self._index(Index.of(v) // lanes), 1)
        self.place[number] = known[0]
        return [index.substitute({v: Index.of(number) * lanes + k}) for k in range(lanes)]

    def _loads_by_lane(self, x: Load, places: Sequence[Index]) -> Value:
        """Elements that are no neighbours, as a vector."""
        v, lanes = self.vector, self.lanes
        self.vector, self.lanes = None, 1
        texts = [self._scalar(Load(x.source, (place,), x.dtype))[0] for place in places]
        self.vector, self.lanes = v, lanes
        return self._joined(texts, SHORT[x.dtype]), lanes

    def _from_index(self, index: Index, dtype: str = "i64") -> Value:
        apart = self._index_by_lane(index) if self.lanes > 1 and self._step(index) is None else None
        if apart is None:
            return super()._from_index(index, dtype)
        return self._joined([f"from_int[{dtype}, 1]({self._index(place)})" for place in apart], dtype), self.lanes

    def _guarded(self, x: Guarded) -> Value:
        kept = [self.registers[y.source][1] for y in walk(x.condition) if isinstance(y, Load) and not y.index]
        is_kept = any(lanes > 1 for lanes in kept)
        differs = is_kept
        if self.vector is not None and self.vector in variables(x.condition):
            differs = differs or self.nest.flat or not is_same_within(x.condition, self.vector, self.lanes)
        if self.lanes == 1 or not differs:
            return super()._guarded(x)
        is_ordered = self.lanes >= WIDE and not is_kept and not self.nest.flat and self._is_ordered(x.condition)
        return self._in_whole_vectors(x) if is_ordered else self._by_lane(x)

    def _is_ordered(self, condition: Scalar) -> bool:
        """Whether what holds in a vector's first lane and in its last one holds in all, and in none if in neither: the
        sides of a comparison grow from lane to lane, each by the same."""
        if not isinstance(condition, Op) or condition.name not in COMPARISONS or condition.name in ("eq", "ne"):
            return False
        moving = [y for y in condition.args if self.vector in variables(y)]
        return all(isinstance(y, FromIndex) and self._step(y.index) is not None for y in moving)

    def _in_whole_vectors(self, x: Guarded) -> Value:
        """A vector of one side where a condition holds in all lanes, or in none; lane by lane in between."""
        v, lanes = self.vector, self.lanes
        assert v is not None
        ends = []
        for k in (0, lanes - 1):
            with self._in_lane(v, k):
                ends.append(self._scalar(x.condition)[0])
        name, _ = self._new("g", f"const[{SHORT[x.dtype]}, {lanes}](0)", lanes)
        with self._block(f"if condition(bit_and({', '.join(ends)})):"):
            self._line(f"{name} = {self._widened(self._scalar(x.value), lanes)}")
        with self._block("else:"):
            with self._block(f"if condition(bit_or({', '.join(ends)})):"):
                self._line(f"{name} = {self._by_lane(x)[0]}")
            with self._block("else:"):
                self._line(f"{name} = {self._widened(self._scalar(x.other), lanes)}")
        return name, lanes

    def _condition(self, x: Guarded) -> Value:
        """That of a vector's first lane, where all lanes have the same."""
        if self.lanes == 1:
            return super()._condition(x)
        v, lanes = self.vector, self.lanes
        self.vector, self.lanes, self.lane = None, 1, 0
        with self._scope():  # what is computed for it is of one lane
            found = self._scalar(x.condition)
        self.vector, self.lanes, self.lane = v, lanes, None
        return found

    def _by_lane(self, x: Scalar) -> Value:
        """An expression one lane after the other: a thread's loads need not be neighbours, its stores are."""
        v, lanes = self.vector, self.lanes
        assert v is not None
        if isinstance(x, Load):  # what all lanes have is computed once
            for atom in x.index[0].atoms:
                if isinstance(atom, Computed) and v not in variables(atom.value):
                    self._scalar(atom.value)
        result, _ = self._new("w", f"const[{SHORT[x.dtype]}, {lanes}](0)", lanes)
        for k in range(lanes):
            with self._in_lane(v, k):
                value = super()._guarded(x) if isinstance(x, Guarded) else super()._load(x)  # type: ignore[arg-type]
                self._line(f"{result} = with_lane({result}, {k}, {self._widened(value, 1)})")
        return result, lanes
