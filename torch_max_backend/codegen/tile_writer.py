"""Transposes on a GPU, by tiles in shared memory; and what a thread reads before it computes anything."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from torch_max_backend.codegen.expression_writer import Value
from torch_max_backend.codegen.source import Slot
from torch_max_backend.codegen.thread_exchange import ThreadExchange
from torch_max_backend.loops.expr import SHORT, Checked, Guarded, Load, Scalar, inside, variables, walk
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.schedule.grid_limits import AHEAD
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.grid_tiles import Tile, turned_by
from torch_max_backend.schedule.nest import StageNest

NARROW = 1 << 32
"""Below this, whole numbers are divided as numbers of 32 bits."""
DIRECT = 4 * AHEAD
"""Elements that a thread of a tile reads before its stores, at most, beside those that pass through shared memory: what
is read behind a store waits for that, since it may be of the same memory."""
Place = dict[Var, str]


class TileWriter(ThreadExchange):
    """Writes the kernel of a nest with a :class:`Tile`."""

    def __init__(self, nest: GridNest, slots: Mapping[str, Slot]) -> None:
        super().__init__(nest, slots)
        self.tiles: dict[Scalar, str] = {}
        """What passes through shared memory, with its name there."""
        self.turned = ("", "")
        """The place of a thread's first element there, along both loops."""

    def _tiled(self, tile: Tile) -> None:
        """What is read along ``across`` goes to shared memory, and is taken from there along ``fast``."""
        (stage,) = self.nest.stages
        starts = self._begin_of_tile(tile)
        names = {x: self._shared(self._stored_as(x), tile.pitch(x.dtype.itemsize) * tile.sides[0], f"tile {k}")
                 for k, x in enumerate(dict.fromkeys(turned_by(stage, tile.fast, tile.across)))}  # fmt: skip
        taken = self._elements_of_tile(tile, starts, loads=True)
        values: list[list[Value]] = []
        read = [x for x in walk(*names) if _is_read(x)] if not any(isinstance(x, Guarded) for x in walk(*names)) else []
        known: list[dict[Scalar, Value]] = [{} for _ in taken]
        for (place, _, _), scope in zip(taken, known, strict=True):  # all reads are under way together
            with self._at(place, scope), self._wide(tile, tile.across):
                for x in read:
                    self._scalar(x)
        for (place, _, _), scope in zip(taken, known, strict=True):
            with self._at(place, scope), self._wide(tile, tile.across):
                values.append([self._scalar(x) for x in names])
        places = self._elements_of_tile(tile, starts, loads=False)
        scopes: list[dict[Scalar, Value]] = [{} for _ in places]
        within_names = {*walk(*names)}
        direct = [x for x in self._reads(stage, self.nest.outer) if x not in within_names]
        if sum(self._elements_read(tile, x, len(places)) for x in direct) <= DIRECT:
            for (place, _, _), scope in zip(places, scopes, strict=True):
                with self._at(place, scope), self._wide(tile, tile.fast):
                    for y in direct:
                        self._scalar(y)
        for (_, within, (f, a)), found in zip(taken, values, strict=True):
            with self._if(within):
                for (x, name), value in zip(names.items(), found, strict=True):
                    at = f"{f} * {tile.pitch(x.dtype.itemsize)} + {a}"
                    wide = self._widened(value, tile.lanes[1])
                    for lane in range(tile.lanes[1]):
                        one = f"lane_at({wide}, {lane})" if tile.lanes[1] > 1 else wide
                        self._line(f"shared_store({name}, {at} + {lane}, {one})")
        self._line("block_barrier()")
        self.tiles = names
        for (place, within, (f, a)), scope in zip(places, scopes, strict=True):
            with self._if(within), self._at(place, scope), self._wide(tile, tile.fast):
                self.turned = f, a
                self._stages()
        self.lines[:0] = self.head

    def _elements_read(self, tile: Tile, x: Scalar, places: int) -> int:
        """How many elements a thread reads of what lies along ``fast``, or is the same for all of it, in all places."""
        found = variables(x)
        is_one_place = tile.across not in found and self.nest.block % (tile.sides[0] // tile.lanes[0]) == 0
        return (1 if is_one_place else places) * (tile.lanes[0] if tile.fast in found else 1)

    def _begin_of_tile(self, tile: Tile) -> dict[Var, str]:
        """Where the block's tile begins along its two loops; the other outer variables get their places."""
        others = [v for v in self.nest.outer if v not in (tile.fast, tile.across)]
        rest, starts = "block_index()", {}
        for v in (tile.fast, tile.across, *reversed(others)):
            name, side, size = self._named(v), tile.side(v), self._index(Index.of(v.size))
            count = size if side == 1 else f"(({size} + {side - 1}) // {side})"
            self._line(f"var {name}: Int = {self._divided('%', rest, count)}{f' * {side}' if side > 1 else ''}")
            self.count += 1
            self._line(f"var rest{self.count}: Int = {self._divided('//', rest, count)}")
            rest = f"rest{self.count}"
            starts[v] = name
        self.place.update({v: starts[v] for v in others})
        return starts

    def _elements_of_tile(
        self, tile: Tile, starts: Mapping[Var, str], loads: bool
    ) -> list[tuple[Place, list[str], tuple[str, str]]]:
        """A thread's elements or vectors of a tile: of each its place, which is within the tensor; when it is one of
        the tile and of the tensor, as texts; and its place in the tile."""
        lanes = tile.lanes[loads]
        along, other = (tile.across, tile.fast) if loads else (tile.fast, tile.across)
        places: dict[tuple[Var, str], tuple[str, list[str]]] = {}
        found = []
        are_whole = isinstance(other.size, int) and other.size % tile.side(other) == 0
        for column, row, within in self._spots(tile.side(along) // lanes, tile.side(other), lanes, are_whole):
            place, here = {}, {along: column, other: row}
            for v in (tile.fast, tile.across):
                if (v, here[v]) not in places:
                    ends = lanes if v == along else 1
                    places[v, here[v]] = self._place_of(v, tile, f"{starts[v]} + {here[v]}", ends, bool(within))
                place[v], is_inside = places[v, here[v]]
                within = within if loads else [*within, *is_inside]
            found.append((place, within, (here[tile.fast], here[tile.across])))
        return found

    def _spots(self, row: int, rows: int, lanes: int, are_whole: bool) -> Iterator[tuple[str, str, list[str]]]:
        """Where a thread's vectors are in a tile of so many rows, each of so many vectors: column and row, and when
        that is so. Neighbouring threads have neighbours of a row, and each thread has the same column in several.

        Where tiles ``are_whole``, addresses are constants apart; where indices are compared first, 32 bits are faster.
        """
        if row > self.nest.block:
            for first in range(0, row * rows, self.nest.block):
                number, _ = self._new("n", f"thread_in_block() + {first}", 1)
                within = [f"{number} < {row * rows}"] if first + self.nest.block > row * rows else []
                column, _ = self._new("t", f"rem32({number}, {row}){f' * {lanes}' if lanes > 1 else ''}", 1)
                yield column, self._new("t", f"div32({number}, {row})", 1)[0], within
            return
        together = self.nest.block // row
        column, _ = self._new("t", f"rem32(thread_in_block(), {row}){f' * {lanes}' if lanes > 1 else ''}", 1)
        begin, _ = self._new("t", f"div32(thread_in_block(), {row})", 1)
        has_one = [f"{begin} < {together}"] if together * row < self.nest.block else []
        for first in range(0, rows, together):
            at = f"{begin} + {first}" if are_whole and not has_one else f"small({begin} + {first})"
            at = self._new("t", at, 1)[0] if first else begin
            yield column, at, [*has_one, *([f"{at} < {rows}"] if first + together > rows else [])]

    def _place_of(self, v: Var, tile: Tile, number: str, lanes: int, may_be_beyond: bool) -> tuple[str, list[str]]:
        """An index along one of the loops, or one within the tensor in its place, and when it is within.

        Args:
            may_be_beyond: Whether it may be one that is behind the tile.
        """
        at, size = self._new("k", self._below_2_to_32(number, v), 1)[0], self._index(Index.of(v.size))
        fits = isinstance(v.size, int) and v.size % tile.side(v) == 0
        inside = at if fits and not may_be_beyond else self._new("k", f"imin({at}, {size} - {lanes})", 1)[0]
        return inside, [] if fits else [f"{at} < {size}"]

    def _below_2_to_32(self, number: str, v: Var) -> str:
        """A number that is hardly greater than the size of a loop, calculated in 32 bits if that is so small."""
        return f"small({number})" if Index.of(v.size).bounds[1] < NARROW // 2 else number

    def _wide(self, tile: Tile, v: Var) -> AbstractContextManager[None]:
        """In vectors along one of the two loops, if there are such."""
        return self._along(v) if tile.lanes[v == tile.across] > 1 else nullcontext()

    def _in_vectors(self) -> AbstractContextManager[None]:
        """In vectors of outer indices, if the nest has such."""
        return self._along(self.nest.vector) if self.nest.vector is not None else nullcontext()

    @contextmanager
    def _if(self, conditions: Collection[str]) -> Iterator[None]:
        with ExitStack() as stack:
            for condition in conditions:
                stack.enter_context(self._block(f"if {condition}:"))
            yield

    def _stored_as(self, x: Scalar) -> str:
        return SHORT[self.slots[x.source].dtype if isinstance(x, Load) else x.dtype]

    def _computed(self, x: Scalar) -> Value:
        if x not in self.tiles or self.nest.tile is None:
            return super()._computed(x)
        f, a = self.turned
        pitch, lanes = self.nest.tile.pitch(x.dtype.itemsize), self.nest.tile.lanes[0]
        loads = [f"shared_load[1]({self.tiles[x]}, ({f} + {k}) * {pitch} + {a})" for k in range(lanes)]
        if lanes == 1:
            return self._new("x", loads[0], 1)
        return self._joined(loads, self._stored_as(x)), lanes

    @contextmanager
    def _at(self, place: Mapping[Var, str], scope: dict[Scalar, Value]) -> Iterator[None]:
        """At an iteration, with what is known of it."""
        self.place.update(place)
        self.scopes.append(scope)
        yield
        self.scopes.pop()
        for v in place:
            del self.place[v]

    def _reads(self, stage: StageNest, loops: Collection[Var] = ()) -> list[Scalar]:
        """What all iterations of a stage's loops, or of others, read, unless it may have been written by one before.

        What is read if a condition holds is there with its condition.
        """
        loops = {*(loops or stage.inner)}
        own = {s.name for s in stage.statements}
        found: dict[Scalar, None] = {}
        for s in stage.statements:
            for x in _unconditional(*s.expressions):
                if (_is_read(x) or (isinstance(x, Guarded) and _only_reads(x))) and variables(x) & loops:
                    found[x] = None
        return [x for x in found if not any(isinstance(y, Load) and y.source in own for y in walk(x))]

    def _divided(self, sign: str, dividend: str, divisor: str) -> str:
        """A quotient or a remainder of what is below the number of outer indices."""
        if self.nest.parts.bounds[1] < NARROW:
            return f"{'div32' if sign == '//' else 'rem32'}({dividend}, {divisor})"
        return f"{dividend} {sign} {divisor}"


def _is_read(x: Scalar) -> bool:
    return isinstance(x, Load) and bool(x.index)


def _only_reads(x: Guarded) -> bool:
    """Whether what is behind a condition is read and little else: computed early, it must not make a thread wait."""
    sides = [y for side in (x.value, x.other) for y in walk(side)]
    return any(map(_is_read, sides)) and len(sides) <= 4 * AHEAD and not any(isinstance(y, Checked) for y in sides)


def _unconditional(*roots: Scalar) -> Iterator[Scalar]:
    """What is computed whatever conditions give."""
    for x in roots:
        yield x
        yield from _unconditional(*([x.condition] if isinstance(x, Guarded) else inside(x)))
