"""Kernels of loop nests for a GPU: a grid of blocks, whose threads share outer indices and the loops inside them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext

import torch

from torch_max_backend.codegen.accumulators import COMBINE, SCALED_NEARLY, Accumulator, Accumulators, Reduction
from torch_max_backend.codegen.column_sums_writer import ColumnSumsWriter
from torch_max_backend.codegen.expression_writer import Value, literal
from torch_max_backend.codegen.inexact_operations import computed_nearly, divided_closely
from torch_max_backend.codegen.interleaved_writer import InterleavedWriter
from torch_max_backend.codegen.kernel_writer import UNROLLED
from torch_max_backend.codegen.lane_writer import LaneWriter
from torch_max_backend.codegen.loop_facts import is_short
from torch_max_backend.codegen.source import Slot
from torch_max_backend.codegen.tile_writer import NARROW, Place
from torch_max_backend.loops.expr import COMPARISONS, SHORT, Const, FromIndex, Load, Op, Scalar, walk
from torch_max_backend.loops.index import Atom, Computed, Div, Index, Least, Mod, Var
from torch_max_backend.loops.intervals import interval
from torch_max_backend.loops.program import Scan, Scatter
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.grid_limits import AHEAD, BUSY, BYTES, WARP
from torch_max_backend.schedule.grid_memory import is_aligned, is_in_step, runs_within
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.grid_rows import is_read_from_its_end
from torch_max_backend.schedule.nest import StageNest, Statement

_TOUCHES = re.compile(r"\b(load|store|atomic)\w*[\[(]|_index\(")
"""Text that touches memory that is not a block's own."""
_FOLDS = re.compile(r"var \w+ = block_\w+\(")
"""What all threads of a block compute together, with a barrier."""
_ATOMIC = {"sum": "add", "product": "mul", "maximum": "max", "minimum": "min"}


def _widens(s: Statement) -> bool:
    """Whether a statement adds up numbers of float32 in float64."""
    x = s.body
    is_cast = isinstance(x, Op) and x.name == "cast" and x.dtype is torch.float64
    return s.combiner == "sum" and s.how is None and is_cast and x.operands[0].dtype is torch.float32


def _are_products(stage: StageNest) -> bool:
    """Whether a stage adds up several products, and nothing else."""
    products = all(s.combiner == "sum" and isinstance(s.body, Op) and s.body.name == "mul" for s in stage.statements)
    return products and len(stage.statements) > 1 and all(s.how is None for s in stage.statements)


def _is_small(x: Scalar) -> bool:
    """Whether a number fits in 32 bits, whatever operations before it round to."""
    return all(abs(end) < 1 << 30 for end in interval(x))


def _is_short_index(x: Scalar) -> bool:
    """Whether it is an index, or a number that may be compared with one, and fits in 32 bits."""
    is_whole = isinstance(x, FromIndex) or (isinstance(x, Const) and type(x.value) is int)
    return is_whole and x.dtype is torch.int64 and _is_small(x)


def _ends(index: Index) -> tuple[float, float]:
    """The least and the greatest value of an index, also by what is computed from other numbers than indices."""
    low = high = float(index.constant)
    for atom, k in index.terms:
        a, b = Index.of(atom).bounds
        if isinstance(atom, Computed):
            c, d = interval(atom.value)
            a, b = max(a, c), min(b, d)
        elif isinstance(atom, Least):
            (a, b), (c, d) = _ends(atom.left), _ends(atom.right)
            a, b = min(a, c), min(b, d)
        low, high = low + k * (a if k > 0 else b), high + k * (b if k > 0 else a)
    return low, high


class GridKernelWriter(ColumnSumsWriter, InterleavedWriter, LaneWriter):
    """Writes the kernel of a :class:`GridNest`.

    In the text ``part`` is a thread's outer index among all, and ``mine`` the thread's number among those that share
    it. Threads behind the last outer index compute it once more and write nothing, so that all of a block take part
    where threads exchange values.
    """

    picks_lanes = False
    turns = False
    one_more = COMBINE
    scaled_by = SCALED_NEARLY

    def __init__(self, nest: GridNest, slots: Mapping[str, Slot]) -> None:
        super().__init__(nest, slots)
        rough = {name for name, slot in slots.items() if slot.is_rough}
        self.nearly, self.closely = computed_nearly(nest, rough), divided_closely(nest, rough)
        """Operations that need not be exact."""
        self.number = ("", "")
        """Where the last outer loop is and the number of the outer index then, in a nest of vectors beyond rows."""
        self.row = "row"
        """The outer index at work, where those behind the last one compute it once more."""

    def _computed(self, x: Scalar) -> Value:
        """Conversions between indices and floats are those of 32 bits where numbers are known to be small: a GPU has
        few units for others."""
        if isinstance(x, Op) and x.name in ("cast", "widen") and _is_small(x.args[0]):
            (given,) = x.args
            if isinstance(given, FromIndex) and x.dtype in (torch.float32, torch.float64):
                text, lanes = self._from_index(given.index, "i32")
                return self._new("v", f"cast[{SHORT[x.dtype]}]({text})", lanes)
            if x.dtype is torch.int64 and given.dtype in (torch.float32, torch.float64):
                text, lanes = self._scalar(given)
                return self._new("v", f"cast[i64](cast[i32]({text}))", lanes)
        if isinstance(x, Op) and x.name in COMPARISONS and all(map(_is_short_index, x.args)):
            sides = [self._short_index(y) for y in x.args]
            lanes = max(n for _, n in sides)
            return self._new("v", f"{x.name}({', '.join(self._widened(side, lanes) for side in sides)})", lanes)
        return super()._computed(x)

    def _short_index(self, x: Scalar) -> Value:
        """An index, or a number that is compared with one, in 32 bits."""
        if isinstance(x, FromIndex):
            return self._from_index(x.index, "i32")
        assert isinstance(x, Const)
        return literal(x, 1, "i32"), 1

    def _spelled(self, x: Op) -> str:
        how = "_nearly" if x in self.nearly else "_closely" if x in self.closely else ""
        return x.name + how if how else super()._spelled(x)

    # -- outer indices ---------------------------------------------------------------------------------------
    def _outer(self) -> None:
        if self.nest.tile is not None:
            self._tiled(self.nest.tile)
            return
        if self.nest.flat:
            self._beyond_rows()
            return
        nest, sizes = self.nest, self._sizes()
        self._line(f"var total: Int = {' * '.join(sizes) or '1'}")
        if nest.part:
            self._part_by_part(sizes)
            self.lines[:0] = self.head
            return
        if nest.each > 1:
            (self._several if nest.threads == 1 else self._several_scans)(sizes)
            return
        if nest.threads == 1:
            self._line(f"var part: Int = {self._small(f'block_index() * {nest.rows} + thread_in_block()')}")
            with self._block("if part < total:"), self._placed("part", sizes):
                if nest.interleaved is not None:
                    self._turned_in_registers(nest.interleaved)
                else:
                    self._iteration()
            return
        thread, rows, threads = "thread_in_block()", nest.rows, nest.threads
        row, mine = (f"rem32({thread}, {rows})", f"div32({thread}, {rows})") if nest.columns else (
            f"div32({thread}, {threads})", f"rem32({thread}, {threads})"
        )  # fmt: skip
        if nest.blocks > 1:
            self._line("cluster_begin()")
            self._line(f"var row: Int = div32(block_index(), {nest.blocks})")
            self._line(f"var mine: Int = rem32(block_index(), {nest.blocks}) * {nest.block} + thread_in_block()")
        else:
            self._line(f"var row: Int = block_index() * {rows} + {row}")
            self._line(f"var mine: Int = {mine}")
        self._line("var part: Int = imin(row, total - 1)")
        with self._placed("part", sizes):
            self._iteration()
        self.lines[:0] = self.head

    def _several(self, sizes: Sequence[str]) -> None:
        """Several outer indices of a thread. It reads the first or the last one again in place of those behind it."""
        nest, (stage,) = self.nest, self.nest.stages
        self._line(f"var first: Int = {self._small(f'block_index() * {nest.share} + thread_in_block()')}")
        with self._block("if first < total:"):
            taken: list[tuple[str, dict[Var, str], dict[Scalar, Value]]] = []
            for condition, place in (
                self._side_by_side(sizes) if nest.repeated is not None else self._a_block_apart(sizes)
            ):
                taken.append((condition, place, {}))
                with self._at(place, taken[-1][2]), self._in_vectors():
                    for x in self._reads(stage, nest.outer):
                        self._scalar(x)
            for condition, place, scope in taken:
                with self._if([condition] if condition else []), self._at(place, scope), self._in_vectors():
                    self._stages()

    def _a_block_apart(self, sizes: Sequence[str]) -> Iterator[tuple[str, Place]]:
        """A thread's outer indices, as many apart as a block has threads, each with the condition that it is one."""
        for k in range(self.nest.each):
            row, _ = self._new("row", self._small(f"first + {k * self.nest.rows}") if k else "first", 1)
            part, _ = self._new("part", row, 1)
            with self._block(f"if {row} >= total:"):
                self._line(f"{part} = first")
            self._at_number(part, sizes)
            yield f"{row} < total", {v: self.place[v] for v in self.nest.outer}

    def _side_by_side(self, sizes: Sequence[str]) -> Iterator[tuple[str, Place]]:
        """A thread's outer indices, side by side along a loop, each with the condition that it is one, if any."""
        v, each = self.nest.repeated, self.nest.each
        assert v is not None and isinstance(v.size, int)
        self._at_number("first", sizes)
        place = {w: self.place[w] for w in self.nest.outer}
        for k in range(each):
            at, _ = self._new("j", f"{place[v]} * {each} + {k}", 1)
            if v.size % each == 0:
                yield "", {**place, v: at}
            else:
                yield f"{at} < {v.size}", {**place, v: self._new("j", f"imin({at}, {v.size - 1})", 1)[0]}

    def _sizes(self) -> list[str]:
        v, each = self.nest.repeated, self.nest.each
        return [
            str(-(-int(w.size) // each)) if w == v else size
            for w, size in zip(self.nest.outer, super()._sizes(), strict=True)
        ]

    def _several_scans(self, sizes: Sequence[str]) -> None:
        """Several rows of a scan, one after the other, for the lanes of a warp that share one."""
        nest, (stage,) = self.nest, self.nest.stages
        (v,) = stage.inner
        size = self._index(Index.of(v.size))
        self._line(f"var first: Int = block_index() * {nest.share} + div32(thread_in_block(), {nest.threads})")
        self._line(f"var mine: Int = rem32(thread_in_block(), {nest.threads})")
        self._line(f"var element: Int = imin(mine, {size} - 1)")
        self.counted = f"mine < {size}"
        taken: list[tuple[str, dict[Var, str], dict[Scalar, Value]]] = []
        for k in range(nest.each):
            row, _ = self._new("row", f"first + {k * nest.rows}", 1)
            self._at_number(self._new("part", f"imin({row}, total - 1)", 1)[0], sizes)
            taken.append((row, {**{w: self.place[w] for w in nest.outer}, v: "element"}, {}))
            with self._at(taken[-1][1], taken[-1][2]):
                for x in self._reads(stage, (*nest.outer, v)):
                    self._scalar(x)
        self._line("block_barrier()")  # another thread may have to read first what is written now
        for row, place, scope in taken:
            self.row = row
            with self._at(place, scope):
                self.registers, self.scanned = {}, self._accumulators(stage, 1)
                self._scan_elements(stage)

    def _small(self, number: str) -> str:
        """The number of an outer index, in 32 bits if there are so few."""
        most = (self.nest.parts * (self.nest.lanes if self.nest.flat else 1)).bounds[1]
        return f"small({number})" if most + self.nest.share * self.nest.lanes < NARROW else number

    def _beyond_rows(self) -> None:
        """A thread has neighbours in memory: a vector where they are in one row, or else one after the other."""
        nest, v = self.nest, self.nest.outer[-1]
        sizes = [self._index(Index.of(w.size)) for w in nest.outer]
        self._line(f"var total: Int = {' * '.join(sizes)}")
        number = self._small(f"(block_index() * {nest.rows} + thread_in_block()) * {nest.lanes}")
        self._line(f"var first: Int = {number}")
        with self._block("if first < total:"):
            self._at_number("first", sizes)
            self.number = self.place[v], "first"
            with self._block(f"if {self.place[v]} + {nest.lanes} <= {sizes[-1]}:"), self._along(v):
                self._stages()
            with self._block("else:"):
                at, _ = self._new("k", "first", 1)
                with self._block(f"while {at} < imin(first + {nest.lanes}, total):"):
                    self._at_number(at, sizes)
                    self.number = self.place[v], at
                    self._stages()
                    self._line(f"{at} += 1")

    def _index(self, index: Index) -> str:
        """That of an element in the order of outer indices is the number of the outer index, where that is at hand."""
        at, number = self.number
        if at and self.place.get(self.nest.outer[-1]) == at:
            apart = index - self.nest.place
            if apart.is_constant:
                return f"{number} + {apart.constant}" if apart.constant else number
        return super()._index(index)

    def _at_number(self, number: str, sizes: Sequence[str]) -> None:
        """At the outer index of a number."""
        for v, size in reversed(list(zip(self.nest.outer, sizes, strict=True))):
            is_first = v == self.nest.outer[0]
            at = number if is_first else self._divided("%", number, size)
            self.place[v], _ = self._new(
                "j", at if v != self.nest.vector or self.nest.flat else f"{at} * {self.nest.lanes}", 1
            )
            number = number if is_first else self._new("rest", self._divided("//", number, size), 1)[0]

    def _division(self, atom: Div | Mod) -> str:
        low, high = atom.dividend.bounds
        if low >= 0 and high < NARROW and atom.divisor.bounds[0] > 0 and atom.divisor.bounds[1] < NARROW:
            name = "div32" if isinstance(atom, Div) else "rem32"
            return f"{name}({self._index(atom.dividend)}, {self._index(atom.divisor)})"
        return super()._division(atom)

    def _term(self, atom: Atom, k: int) -> str:
        """The lesser of two numbers, or the greater where the factor is negative, in 32 bits if these are enough."""
        if not isinstance(atom, Least) or Index.of(atom).is_fixed:
            return super()._term(atom, k)
        sides = (atom.left, atom.right) if k > 0 else (-atom.left, -atom.right)
        ends = [_ends(side) for side in sides]
        if any(abs(end) >= NARROW // 2 for pair in ends for end in pair):
            return super()._term(atom, k)
        lows = [low for low, _ in ends]
        text = f"{'imin32' if k > 0 else 'imax32'}({', '.join(map(self._index, sides))})"
        text = f"small({text})" if (min(lows) if k > 0 else max(lows)) >= 0 else text
        return text if abs(k) == 1 else f"{abs(k)} * {text}"

    def _load(self, x: Load) -> Value:
        return self._load_interleaved(x) if self._is_interleaved(x.index[0]) else super()._load(x)

    # -- the loops of a stage --------------------------------------------------------------------------------
    def _lanes_of(self, v: Var) -> int:
        return self.nest.lanes if self.nest.tile is None else self.nest.tile.lanes[v == self.nest.tile.across]

    def _totals(self, stage: StageNest, accumulators: list[Accumulators]) -> dict[str, Value]:
        """None: many threads share a sum, and no accumulator has many additions."""
        return {}

    def _lanes_kept(self, s: Statement, lanes: int) -> int:
        return 1 if _widens(s) else lanes

    def _accumulate(self, s: Statement, accumulator: Accumulator, value: str) -> None:
        """Lanes of float32 become one before they are added in float64: a GPU has few units for that."""
        if accumulator.lanes == 1 < self.lanes and _widens(s) and self.vector in self.reducing:
            (given,) = s.body.operands
            text, lanes = self._scalar(given)
            whole = f"reduce_add({self._widened((text, lanes), self.lanes)})"
            self._line(f"{accumulator.value} = add({accumulator.value}, cast[f64]({whole}))")
            return
        super()._accumulate(s, accumulator, value)

    def _chains(self, stage: StageNest, along: Var) -> int:
        steps = cost.count([along]) // self._stride(along, self.nest.lanes)
        if any(s.combiner == "sum_exp" for s in stage.statements):
            return 1
        if _are_products(stage):  # the lanes of several do not wait for each other
            return max(1, min(UNROLLED, steps) // len(stage.statements))
        if not is_short(stage):
            return 1
        if any(s.place is not None for s in stage.statements):  # chains become one by many instructions
            return UNROLLED if steps >= UNROLLED**2 else 1
        return min(UNROLLED, 1 << max(0, steps.bit_length() - 1))

    def _at_once(self, stage: StageNest, along: Var) -> int:
        steps = cost.count([along]) // self._stride(along, self.nest.lanes)
        unrolled = min(UNROLLED, 1 << max(0, steps.bit_length() - 1))
        if _are_products(stage):
            return unrolled // self._chains(stage, along)
        return unrolled if any(s.combiner == "sum_exp" for s in stage.statements) else 1

    def _enter(self, k: int) -> None:
        if self.nest.threads == 1:
            return
        stage = self.nest.stages[k]
        self.stage, self.shares = stage, self.nest.shared(stage)
        reads = {x.source for s in stage.statements for x in walk(*s.expressions) if isinstance(x, Load) and x.index}
        written = {s.name for before in self.nest.stages[:k] for s in before.statements if s.address is not None}
        if k and (reads & written or any(s.address is not None and not s.combiner for s in stage.statements)):
            self._synchronize()  # it may be written into what another thread reads in a stage before

    def _synchronize(self) -> None:
        """A barrier, unless no memory has been touched since the last one."""
        indent = "    " * self.depth
        for line in reversed(self.lines):
            if line in (f"{indent}block_barrier()", indent + self._barrier) or _FOLDS.match(line.removeprefix(indent)):
                return
            if not line.startswith(indent) or _TOUCHES.search(line):
                break
        self._line(self._barrier)

    @property
    def _barrier(self) -> str:
        within = self.nest.threads <= WARP and not self.nest.columns
        return "warp_barrier()" if within else "block_barrier()"

    def _can_be_masked(self, v: Var, *stages: StageNest) -> bool:
        return False

    def _begin(self, v: Var, lanes: int) -> str:
        if self.shares.get(v, 1) == 1:
            return "0"
        loops = list(self.shares)  # the last loop's threads are neighbours
        after = math.prod(self.shares[w] for w in loops[: loops.index(v)])
        text = "mine" if after == 1 else f"div32(mine, {after})"
        if loops[-1] != v:
            text = f"rem32({text}, {self.shares[v]})"
        return text if lanes == 1 else f"{text} * {lanes}"

    def _stride(self, v: Var, lanes: int) -> int:
        return lanes * self.shares.get(v, 1)

    def _free(self, stage: StageNest, k: int) -> None:
        if self.nest.threads > 1 and any(isinstance(s.how, Scan) for s in stage.statements):
            self._scan(stage)
        elif self.nest.held and stage.inner:
            self._from_registers(stage)
        else:
            super()._free(stage, k)

    # -- several iterations of a loop at a time --------------------------------------------------------------
    def _free_loop(self, stage: StageNest, k: int, name: str, end: str) -> None:
        v = stage.free[k]
        lanes = self._lanes_of(v) if v == stage.vector else 1
        is_innermost = k + 1 == len(stage.free) and not stage.reduced
        stride, ends = self._stride(v, lanes), ""
        if is_innermost and is_read_from_its_end(self.nest, stage, stride):
            ends, _ = self._new("ends", f"({self._begin(v, lanes)}) * 2 + {int(v.size) - stride}", 1)
        if not (is_innermost and self._ahead(stage, v, name, end, lanes, [{}], self.scanned, ends=ends)):
            super()._free_loop(stage, k, name, end)

    def _reduced_loop(self, r: Reduction, k: int, name: str, end: str) -> None:
        v, *inner = r.stage.reduced[k:]
        within = [] if r.along == v else self._unrolled(inner, r.along)
        along, accumulators = (r.along, r.wide[0]) if r.along in inner else (None, r.narrow)
        if not (within and self._ahead(r.stage, v, name, end, 1, within, accumulators, along)):
            super()._reduced_loop(r, k, name, end)

    def _unrolled(self, loops: Sequence[Var], along: Var | None) -> list[dict[Var, str]]:
        """Where each of a thread's iterations of some loops is, if there are few and as many for every thread. Those
        of one loop may be vectors."""
        found: list[dict[Var, str]] = [{}]
        for v in loops:
            lanes = self._lanes_of(v) if v == along else 1
            stride = self._stride(v, lanes)
            if not isinstance(v.size, int) or v.size % stride or v.size // stride * len(found) > AHEAD:
                return []
            places = [f"{self._begin(v, lanes)} + {t * stride}" for t in range(v.size // stride)]
            found = [{**known, v: place} for known in found for place in places]
        return found

    def _ahead(
        self,
        stage: StageNest,
        v: Var,
        name: str,
        end: str,
        lanes: int,
        within: list[dict[Var, str]],
        accumulators: Accumulators,
        along: Var | None = None,
        ends: str = "",
    ) -> bool:
        """Some iterations of a loop over ``v`` at a time, each with all of those ``within``, while there are so many.

        What they read is read first: a thread waits once for all of it. Those within may be vectors ``along`` a loop.
        The loop is run from its end where it ``ends`` at what a thread's first and last places are together.
        True if no iterations are left.
        """
        loads, stride = self._reads(stage), self._stride(v, lanes)
        along = v if lanes > 1 else along
        copies = self._copies(stage, loads) // len(within)
        steps = v.size // stride if isinstance(v.size, int) and v.size % stride == 0 else 0
        most = steps if steps <= copies * 3 // 2 else copies  # rather than to wait once more
        copies = next((c for c in range(most, copies // 2, -1) if steps % c == 0), copies) if steps else copies
        longest = Index.of(v.size).bounds[1]
        copies = min(copies, int(longest // stride)) if longest < math.inf else copies  # a short loop has no more
        if ends:
            copies = max(c for c in range(1, copies + 1) if steps % c == 0)  # or the rest would begin where it began
        if not loads or copies * len(within) < 2:
            return False
        with self._block(f"while {name} + {stride * (copies - 1) + lanes} <= {end}:"):
            with self._along(along) if along is not None else nullcontext():
                at = f"{ends} - {name} - " if ends else f"{name} + "
                places = self._places(v, [f"{at}{stride * t}" for t in range(copies)], within)
                self._read_first(places, loads, lambda: self._body(stage, accumulators))
            self._line(f"{name} += {stride * copies}")
        return steps > 0 and steps % copies == 0

    def _places(self, v: Var, texts: Sequence[str], within: list[dict[Var, str]]) -> Iterator[dict[Var, str]]:
        """Where some iterations of a loop are, each with all of those ``within``, named one after the other."""
        for text in texts:
            at, _ = self._new("k", text, 1)
            for known in within:
                yield {v: at, **{w: self._new("k", inner, 1)[0] for w, inner in known.items()}}

    def _read_first(self, places: Iterator[dict[Var, str]], loads: Sequence[Scalar], run: Callable[[], None]) -> None:
        """Run iterations whose reads are under way together: a thread waits once for all of them."""
        taken: list[tuple[dict[Var, str], dict[Scalar, Value]]] = []
        for place in places:
            taken.append((place, {}))
            with self._at(*taken[-1]):
                for x in loads:
                    self._scalar(x)
        for at in taken:
            with self._at(*at):
                run()

    def _copies(self, stage: StageNest, loads: Sequence[Scalar]) -> int:
        """Iterations at a time: with few threads, or narrow loads, a thread reads more before it waits."""
        lanes = self.nest.lanes if self.nest.vector or stage.vector else 1
        each = sum(x.dtype.itemsize * lanes for x in loads)
        busy = cost.count(self.nest.outer) * self.nest.threads >= BUSY * lanes
        return max(2, min(AHEAD, (2 if busy else 4) * BYTES // max(1, each)))

    # -- scans -----------------------------------------------------------------------------------------------
    def _scan(self, stage: StageNest) -> None:
        """A row's threads take as many elements at a time. Those behind the end compute the last element once more."""
        (v,) = stage.free
        end, name = self._index(Index.of(v.size)), self._named(v)
        self._line("var first: Int = 0")
        loads = self._reads(stage)
        each = self.nest.threads
        copies = min(self._copies(stage, loads), v.size // each) if loads and isinstance(v.size, int) else 1
        if copies > 1:
            with self._block(f"while first + {each * copies} <= {end}:"):
                places = self._places(v, [f"first + {each * t} + mine" for t in range(copies)], [{}])
                self._read_first(places, loads, lambda: self._scan_elements(stage))
                self._line(f"first += {each * copies}")
            if v.size % (each * copies) == 0:
                return
        with self._block(f"while first < {end}:"):
            self._line(f"var {name}: Int = imin(first + mine, {end} - 1)")
            self.counted = f"first + mine < {end}"
            with self._at({v: name}, {}):
                self._scan_elements(stage)
            self.counted = ""
            self._line(f"first += {each}")

    def _scan_elements(self, stage: StageNest) -> None:
        """What threads do with an element of their row each."""
        for s in stage.statements:
            value, _ = self._scalar(s.body)
            if s.combiner:
                value = self._prefix(s, value)
            self._finish(s, value, 1)

    # -- memory ----------------------------------------------------------------------------------------------
    def _step(self, index: Index) -> int | str | None:
        step = super()._step(index)
        if step is not None or self.nest.flat or self.vector is None:
            return step
        return 1 if runs_within(index, self.vector, self.lanes) else None

    def _whole(self, access: str, address: Index) -> str:
        assert self.vector is not None
        if self.nest.flat:
            return f"{access}_aligned" if is_in_step(address, self.nest.place, self.lanes) else access
        return f"{access}_aligned" if is_aligned(address, self.vector, self.lanes) else access

    def _finish(self, s: Statement, value: str, lanes: int) -> None:
        if not isinstance(s.how, Scatter) or s.how.combiner == "set":
            super()._finish(s, value, lanes)
            return
        assert s.address is not None
        place = f"{self.pointers[s.name]}, {self._index(s.address)}"
        several = "_vector" if self._step(s.address) == 1 else ""
        value = self._widened((value, lanes), self.lanes) if several else value
        self._line(f"atomic_{_ATOMIC[s.how.combiner]}{several}({place}, {value})")

    def _write(self, s: Statement, value: str, lanes: int) -> None:
        if self.nest.threads == 1:
            self._store(s, value, lanes)
            return
        if not self.shares and self.nest.each == 1 and self._has_read(s):
            self._synchronize()  # another thread may have to read first what is written here
        with self._block(f"if {self.row} < total:"):
            if self.counted:
                with self._block(f"if {self.counted}:"):
                    self._store(s, value, lanes)
                return
            if not self._is_known_to_all(s):
                self._store(s, value, lanes)
                return
            with self._block("if mine == 0:"):
                self._store(s, value, lanes)

    def _has_read(self, s: Statement) -> bool:
        """Whether memory has been read for a statement, or for those before it in its stage."""
        statements = () if self.stage is None else self.stage.statements
        before = statements[: statements.index(s)] if s in statements else ()
        return any(isinstance(x, Load) and x.index for t in (*before, s) for x in walk(*t.expressions))

    def _store(self, s: Statement, value: str, lanes: int) -> None:
        """Write a result, lane by lane where lanes are no neighbours in memory."""
        assert s.address is not None
        if self._is_interleaved(s.address):
            self.results.setdefault(s, []).append(self._widened((value, lanes), self.lanes))
            return
        v = self.vector
        if v is None or self.lanes == 1 or self._step(s.address) in (0, 1):
            super()._write(s, value, lanes)
            return
        start, wide = self.place[v], self._widened((value, lanes), self.lanes)
        for k in range(self.lanes):
            self.place[v] = start if not k else self._new("k", f"{start} + {k}", 1)[0]
            self._line(f"store({self.pointers[s.name]}, {self._index(s.address)}, lane_at({wide}, {k}))")
        self.place[v] = start
