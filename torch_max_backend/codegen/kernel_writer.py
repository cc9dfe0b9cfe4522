"""Kernels of loop nests: who runs which iterations, the loops of each stage, and what stands in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from torch_max_backend.codegen.accumulators import CHAIN, Accumulator, Accumulators, AccumulatorWriter, Reduction
from torch_max_backend.codegen.expression_writer import Value
from torch_max_backend.codegen.loop_facts import can_be_masked, divides, fits, is_short, may_be_empty
from torch_max_backend.codegen.source import Slot, touched
from torch_max_backend.codegen.turned_reads import SHORTEST, SIDE, turned_reads
from torch_max_backend.loops.expr import SHORT, Const, FromIndex, Guarded, Load, Scalar, variables, walk
from torch_max_backend.loops.index import Computed, Index, Var
from torch_max_backend.loops.program import Scan, Scatter
from torch_max_backend.schedule.interleaved_stores import NEIGHBOURS
from torch_max_backend.schedule.nest import HALF, Nest, OwnRow, StageNest, Statement, lanes_of
from torch_max_backend.schedule.rows_at_once import tensor_of

UNROLLED = 4
"""Accumulators of a reduction along memory: an addition takes several cycles, and these do not wait for each other."""
UNROLLED_ROWS, MOST_UNROLLED = 2, 8
"""The same for each of several rows at once, if these are few enough for registers."""


class KernelWriter(AccumulatorWriter):
    """Writes the kernel of a nest. Threads of a CPU share the outer loops, and each runs the loops of a stage alone.

    Where work is shared in another way, a class of this one says how:

    - ``_outer``: who runs which iterations of the outer loops;
    - ``_lanes_of``, ``_begin`` and ``_stride``: which elements of a stage's loop a thread runs;
    - ``_gathered``: how the accumulators of those who share a reduction become one;
    - ``_enter``: what stands before a stage;
    - ``_write``: who writes a result.
    """

    picks_lanes = True
    turns = True
    """Whether blocks of rows are turned in registers, where vectors step over them, and vectors that run backwards."""

    def __init__(self, nest: Nest, slots: Mapping[str, Slot]) -> None:
        super().__init__([name for name, _ in touched(nest)], {**slots, **_slots(nest.own)})
        self.nest = nest
        self.pointers |= {row.name: f"q{k}" for k, row in enumerate(nest.own)}
        self.names: dict[Var, str] = {}
        """What variables are called; a stage's loops have a number behind it."""
        self.scanned: Accumulators = {}
        """The accumulators of scans."""
        self.rows = 1
        """The iterations of the last outer loop that are computed at once, here."""
        self.blocks: list[str] = []
        """What sets up memory for blocks that are read in turns."""
        self.in_turns: dict[tuple[str, Index], str] = {}
        """Where vectors are that have been turned, by tensor and address."""
        self.in_rows: dict[tuple[str, Index], tuple[str, Var]] = {}
        """Blocks of rows that have been turned as a whole, and the loops along them."""

    def text(self) -> str:
        """The kernel as a function ``KERNEL`` of the tensors that it touches; equal for equal kernels."""
        with self._scope():
            self._own_rows()
            mark = len(self.lines)
            self._outer()
            self.lines[mark:mark] = self.blocks
        arguments = [f"{self.pointers[n]}: Ptr[{SHORT[self.slots[n].dtype]}]" for n in self.tensors]
        arguments += [f"{name}: Int" for name in self.numbers.values()]
        return "\n".join([f"def KERNEL({', '.join(arguments)}):", *self.lines])

    def _own_rows(self) -> None:
        for row in self.nest.own:
            self._line(f"var {self.pointers[row.name]} = own_memory[{SHORT[row.dtype]}, {row.size}]()")

    # -- how work is shared ----------------------------------------------------------------------------------
    def _outer(self) -> None:
        """Each thread runs a part of the outer loops' iterations; without outer loops, the first one does it all."""
        if not self.nest.outer:
            with self._block("if thread_index() == 0:"):
                self._stages()
            return
        sizes = self._sizes()
        self._line(f"var total: Int = {' * '.join(sizes)}")
        self._line("var part: Int = share_begin(total, 1)")
        self._line("var end: Int = share_end(total, 1)")
        with self._block("while part < end:"), self._placed("part", sizes):
            if not self.nest.several:
                self._line("part += 1")
                self._iteration()
                return
            rows = self.nest.rows
            with self._block(f"if part + {rows} <= end and {self._fits()}:"):
                self._line(f"part += {rows}")
                self.rows = rows
                self._iteration(self.nest.several)
                self.rows = 1
            with self._block("else:"):
                self._line("part += 1")
                self._iteration()

    def _fits(self) -> str:
        """Whether the iterations that are computed at once are all there, from the place at hand."""
        *_, last = self.nest.outer
        if self.nest.across == 1:
            each = self._lanes_of(last) if last == self.nest.vector else 1
            return f"{self.place[last]} + {self.nest.rows * each} <= {self._index(Index.of(last.size))}"
        around = self.nest.outer[-2]
        return (
            f"{self.place[last]} == 0 and {self.place[around]} + {self.nest.across} <= "
            f"{self._index(Index.of(around.size))}"
        )

    def _lanes_of(self, v: Var) -> int:
        """The lanes of vectors along ``v``."""
        return lanes_of(v)

    def _can_be_masked(self, v: Var, *stages: StageNest) -> bool:
        """Whether what is left of a loop over ``v`` may run as one vector of which some lanes do not count."""
        return can_be_masked(v, *stages)

    def _begin(self, v: Var, lanes: int) -> str:
        """Where a thread begins with a stage's loop over ``v``, which runs in vectors of so many lanes."""
        return "0"

    def _stride(self, v: Var, lanes: int) -> int:
        """How far a thread's next vector along ``v`` is from the one before; the elements between are another's."""
        return lanes

    def _gathered(self, s: Statement, own: Accumulator) -> Accumulator:
        """The accumulator of a reduction over all its elements, from a thread's own one."""
        return own

    def _enter(self, k: int) -> None:
        """What stands before the stage of number ``k``: nothing, where whoever reads an element has written it."""

    def _divided(self, sign: str, dividend: str, divisor: str) -> str:
        """The quotient or remainder that gives an outer index."""
        return f"{dividend} {sign} {divisor}"

    # -- the outer loops -------------------------------------------------------------------------------------
    def _sizes(self) -> list[str]:
        """How many iterations each of the outer loops has."""
        sizes = []
        for v in self.nest.outer:
            size, lanes = self._index(Index.of(v.size)), self._lanes_of(v)
            sizes.append(f"(({size} + {lanes - 1}) // {lanes})" if v == self.nest.vector else _factor(size))
        return sizes

    @contextmanager
    def _placed(self, part: str, sizes: list[str]) -> Iterator[None]:
        """With the outer variables at an iteration, whose number among all of them is ``part``."""
        outer, rest = self.nest.outer, part
        for k in range(len(outer) - 1, -1, -1):
            v, name = outer[k], self._named(outer[k])
            value = rest if k == 0 else self._divided("%", rest, sizes[k])
            self._line(f"var {name}: Int = {value}{f' * {self._lanes_of(v)}' if v == self.nest.vector else ''}")
            if k:
                self._line(f"var rest{k}: Int = {self._divided('//', rest, sizes[k])}")
                rest = f"rest{k}"
            self.place[v] = name
        yield
        for v in outer:
            del self.place[v]

    def _iteration(self, stages: tuple[StageNest, ...] = ()) -> None:
        """All stages: once, or for a whole vector, or for what is left of it, in a masked vector or one by one."""
        v, stages = self.nest.vector, stages or self.nest.stages
        if v is None:
            self._stages(stages)
            return
        size, start, lanes = self._index(Index.of(v.size)), self.place[v], self._lanes_of(v)
        if divides(v, lanes) or (self.rows > 1 and v == self.nest.outer[-1]):
            with self._along(v):
                self._stages(stages)
            return
        with self._block(f"if {start} + {lanes} <= {size}:"), self._along(v):
            self._stages(stages)
        with self._block("else:"):
            if self._can_be_masked(v, *stages):
                count, _ = self._new("count", f"{size} - {start}", 1)
                with self._along(v, count):
                    self._stages(stages)
                return
            with self._loop(v, start, size, 1, 1):
                self._stages(stages)
            self.place[v] = start

    def _stages(self, stages: tuple[StageNest, ...] = ()) -> None:
        self.registers = {}
        for k, stage in enumerate(stages or self.nest.stages):
            self._enter(k)
            self.reducing = stage.reduced
            self._hoist(stage)
            if any(isinstance(s.how, Scan) for s in stage.statements):
                self.scanned = self._accumulators(stage, self.lanes)
            self._free(stage, 0)

    # -- the loops of a stage --------------------------------------------------------------------------------
    def _named(self, v: Var) -> str:
        return self.names.setdefault(v, f"i{len(self.names)}")

    def _counter(self, stage: StageNest, v: Var) -> str:
        """A variable of the kernel for a loop of a stage, at its begin."""
        self.count += 1
        name = f"{self._named(v)}_{self.count}"
        self._line(f"var {name}: Int = {self._begin(v, self._lanes_of(v) if v == stage.vector else 1)}")
        return name

    @contextmanager
    def _along(self, v: Var, count: str = "") -> Iterator[None]:
        """Compute in vectors along ``v``; with a ``count``, only so many lanes are read and written."""
        self.vector, self.lanes, self.masked = v, self._lanes_of(v), count
        yield
        self.vector, self.lanes, self.masked = None, 1, ""

    @contextmanager
    def _loop(self, v: Var, text: str, end: str, lanes: int, stride: int) -> Iterator[None]:
        """While there are ``lanes`` elements more, from where ``text`` is; it is behind the last of them then."""
        with self._block(f"while {text} {'<' if lanes == 1 else f'+ {lanes} <='} {end}:"):
            self.place[v] = text
            yield
            del self.place[v]
            self._line(f"{text} += {stride}")

    @contextmanager
    def _vectors(self, v: Var, name: str, end: str) -> Iterator[None]:
        """A loop over whole vectors."""
        lanes = self._lanes_of(v)
        with self._loop(v, name, end, lanes, self._stride(v, lanes)), self._along(v):
            yield

    @contextmanager
    def _rest(self, v: Var, name: str, end: str) -> Iterator[None]:
        """What is left of a loop in vectors, as one masked vector."""
        with self._block(f"if {name} < {end}:"):
            count, _ = self._new("count", f"{end} - {name}", 1)
            self.place[v] = name
            with self._along(v, count):
                yield
            del self.place[v]

    @contextmanager
    def _elements(self, stage: StageNest, v: Var, name: str, end: str) -> Iterator[None]:
        """A loop over single elements: over all, or over those that are left of a vector, which one thread runs."""
        with self._loop(v, name, end, 1, 1 if v == stage.vector else self._stride(v, 1)):
            yield

    def _free(self, stage: StageNest, k: int) -> None:
        """The free loops from the one of number ``k`` on, and what is inside of them."""
        if k == len(stage.free):
            if stage.reduced:
                self._reduction(stage)
            else:
                self._body(stage, self.scanned)
            return
        v = stage.free[k]
        end, name = self._index(Index.of(v.size)), self._counter(stage, v)
        self._free_loop(stage, k, name, end)

    def _free_loop(self, stage: StageNest, k: int, name: str, end: str) -> None:
        v = stage.free[k]
        if reads := self._turned_reads(stage, v):
            self._in_blocks(stage, name, end, reads)
            return
        if v == stage.vector:
            lanes = self._lanes_of(v)
            if fits(v, lanes):
                with self._vectors(v, name, end):
                    self._hoist(stage)
                    self._free(stage, k + 1)
            if divides(v, lanes):
                return
            if self._can_be_masked(v, stage):
                with self._rest(v, name, end):
                    self._hoist(stage)
                    self._free(stage, k + 1)
                return
        with self._elements(stage, v, name, end):
            self._hoist(stage)
            self._free(stage, k + 1)

    # -- loops that read in turned blocks --------------------------------------------------------------------
    def _turned_reads(self, stage: StageNest, v: Var) -> list[tuple[str, Index]]:
        """What a stage's only loop, around which vectors run, reads in turned blocks."""
        if not self.turns or self.vector is None or self.lanes < HALF or stage.free != (v,) or stage.reduced:
            return []
        return turned_reads(stage, v, self.vector)

    def _in_blocks(self, stage: StageNest, name: str, end: str, reads: list[tuple[str, Index]]) -> None:
        """The only loop of a stage in blocks, each of which is turned before its vectors are computed."""
        (v,) = stage.free
        with self._block(f"while {name} < {end}:"):
            columns, _ = self._new("columns", f"imin({SIDE}, {end} - {name})", 1)
            self.place[v] = name
            blocks = [self._block_of(source, address, columns) for source, address in reads]
            j, _ = self._new("j", "0", 1)
            with self._block(f"while {j} < {columns}:"):
                self.place[v] = f"({name} + {j})"
                row = self._row_of_blocks
                self.in_turns = {read: f"{block}, {row} * {j}" for read, block in zip(reads, blocks, strict=True)}
                self._body(stage, self.scanned)
                self.in_turns = {}
                self._line(f"{j} += 1")
            del self.place[v]
            self._line(f"{name} += {SIDE}")

    def _block_of(self, source: str, address: Index, columns: int | str) -> str:
        """A block that is read from where the loops are, and turned."""
        self.count += 1
        block = f"b{self.count}"
        self.blocks.append(f"    var {block} = own_memory[{SHORT[self.slots[source].dtype]}, {SIDE * SIDE}]()")
        given = f"{block}, {self.pointers[source]}, {self._index(address)}, {self._step(address)}"
        if self._row_of_blocks == HALF:
            self._line(f"turn_half_a_block({given}, {columns})")
        else:
            self._line(f"turn_block({given}, {self.masked or self.lanes}, {columns})")
        return block

    @property
    def _row_of_blocks(self) -> int:
        """How far apart the vectors of turned blocks are: blocks of eight rows have them side by side."""
        return HALF if self.lanes == HALF and not self.masked else SIDE

    def _turn_rows(self, stage: StageNest) -> None:
        """Turn what a reduction reads of short rows, of which vectors have one lane each."""
        self.in_rows = {}
        if not self.turns or self.vector is None or self.lanes != SIDE or stage.free or len(stage.reduced) != 1:
            return
        (v,) = stage.reduced
        if not isinstance(v.size, int) or not SHORTEST <= v.size <= SIDE:
            return
        self.place[v] = "0"
        for source, address in turned_reads(stage, v, self.vector):
            block = self._block_of(source, address, v.size)
            self.in_rows[source, address] = block, v
        del self.place[v]

    def _read(self, source: str, address: Index) -> Value:
        place = self.in_turns.get((source, address))
        if (row := self.in_rows.get((source, address))) is not None:
            place = f"{row[0]}, {SIDE} * {self.place[row[1]]}"
        if place is not None:
            return self._new("x", f"load[{self.lanes}]({place})", self.lanes)
        if self.turns and self.lanes > 1 and not self.where and self._step(address) == -1:
            form, count = ("_masked", f", {self.masked}") if self.masked else ("", "")
            given = f"{self.pointers[source]}, {self._index(address)}{count}"
            return self._new("x", f"load_reversed{form}[{self.lanes}]({given})", self.lanes)
        return super()._read(source, address)

    # -- the loops of a reduction ----------------------------------------------------------------------------
    def _reduction(self, stage: StageNest) -> None:
        """Accumulators, the reduced loops, and what comes of them."""
        self._turn_rows(stage)
        along = stage.vector if stage.vector in stage.reduced else None
        wide: list[Accumulators] = []
        narrow: Accumulators = {}
        if along is not None:
            lanes = self._lanes_of(along)
            chains = range(self._chains(stage, along))
            wide = [self._accumulators(stage, lanes) for _ in chains] * self._at_once(stage, along)
        if along is None or not (divides(along, self._lanes_of(along)) or self._can_be_masked(along, stage)):
            narrow = self._accumulators(stage, self.lanes)
        r = Reduction(stage, along, wide, narrow, self._totals(stage, wide or [narrow]))
        self._reduced(r, 0)
        results: Accumulators = {}
        for s in stage.statements:
            if s.combiner:
                of = self._with_place(stage, s) or s  # which knows the extreme, too
                if of.name not in results:
                    results[of.name] = self._gathered(of, self._result(r, of))
                found = results[of.name]
                self._finish(s, *self._taken(s, found if of is s else found._replace(place="")))
        self.in_rows = {}

    def _chains(self, stage: StageNest, along: Var) -> int:
        """How many accumulators a reduction in vectors along a loop of a stage has."""
        if not is_short(stage, self.rows):
            return 1
        unrolled = UNROLLED if self.rows == 1 else UNROLLED_ROWS if self.rows <= MOST_UNROLLED else 1
        return unrolled if fits(along, self._stride(along, self._lanes_of(along)) * unrolled) else 1

    def _at_once(self, stage: StageNest, along: Var) -> int:
        """How many vectors in a row go to each accumulator of a reduction, and are read together."""
        return 1

    def _reduced(self, r: Reduction, k: int) -> None:
        """The reduced loops from the one of number ``k`` on. The innermost one stops now and then for the totals."""
        if k == len(r.stage.reduced):
            self._body(r.stage, r.narrow)
            return
        v = r.stage.reduced[k]
        end, name = self._index(Index.of(v.size)), self._counter(r.stage, v)
        if not r.totals or k + 1 < len(r.stage.reduced):
            self._reduced_loop(r, k, name, end)
            return
        each = self._stride(v, self._lanes_of(v)) * r.chains if v == r.along else self._stride(v, 1)
        if isinstance(v.size, int) and v.size <= CHAIN * each:
            self._reduced_loop(r, k, name, end)
            self._flush(r)
            return
        with self._block(f"while {name} < {end}:"):
            stop, _ = self._new("stop", f"imin({end}, {name} + {CHAIN * each})", 1)
            self._reduced_loop(r, k, name, stop)
            self._line(f"{name} = {stop}")
            self._flush(r)

    def _reduced_loop(self, r: Reduction, k: int, name: str, end: str) -> None:
        v = r.stage.reduced[k]
        if v == r.along:
            lanes, copies = self._lanes_of(v), len(r.wide)
            stride = self._stride(v, lanes)
            if copies > 1:
                is_whole = end == self._index(Index.of(v.size))  # and not up to where totals are added up
                steps = v.size // stride if is_whole and isinstance(v.size, int) and v.size % stride == 0 else None
                once = steps is not None and steps < 2 * copies
                more = f"while {name} + {stride * (copies - 1) + lanes} <= {end}:"
                with self._scope() if once else self._block(more):
                    self._vector_each(r, name, stride, r.wide)
                if steps is not None:
                    with self._scope():
                        self._vector_each(r, name, stride, r.wide[: steps % copies])
            if fits(v, lanes) and not (copies > 1 and (steps is not None or divides(v, stride * copies))):
                with self._vectors(v, name, end):
                    self._body(r.stage, r.wide[0])
            if divides(v, lanes):
                return
            if self._can_be_masked(v, r.stage):
                with self._rest(v, name, end):
                    self._body(r.stage, r.wide[0])
                return
        with self._elements(r.stage, v, name, end):
            if k + 1 < len(r.stage.reduced):  # inside, nothing is computed for later
                self._hoist(r.stage)
            self._reduced(r, k + 1)

    def _vector_each(self, r: Reduction, name: str, stride: int, wide: Sequence[Accumulators]) -> None:
        """As many vectors one after the other, without a loop, each with accumulators of its own."""
        assert r.along is not None
        for accumulators in wide:
            self.place[r.along] = name
            with self._scope(), self._along(r.along):
                self._body(r.stage, accumulators)
            self._line(f"{name} += {stride}")
        self.place.pop(r.along, None)

    # -- statements ------------------------------------------------------------------------------------------
    def _body(self, stage: StageNest, accumulators: Accumulators) -> None:
        """What the innermost loop does."""
        left = list(stage.statements)
        while left:
            s = left.pop(0)
            if neighbours := self._neighbours(s, left):
                self._write_in_turns([s, *neighbours])
                del left[: len(neighbours)]
                continue
            if self._with_place(stage, s) is not None:
                continue  # the statement that looks for its place finds it
            if s.combiner and self._added_product(s, accumulators[s.name]):
                continue
            value = self._scalar(s.body)
            if isinstance(s.how, Scan) and self.vector is not None and self.vector in stage.inner:
                prefixes = self._prefixes(s, accumulators[s.name], self._widened(value, self.lanes))
                self._finish(s, *self._taken(s, prefixes))
            elif s.combiner:
                accumulator = accumulators[s.name]
                self._accumulate(s, accumulator, self._widened(value, accumulator.lanes))
                if isinstance(s.how, Scan):
                    self._finish(s, *self._taken(s, accumulator))
            else:
                self._finish(s, *value)

    def _finish(self, s: Statement, value: str, lanes: int) -> None:
        """Keep a result in registers, and write it if it has an address."""
        if isinstance(s.how, Scatter) and s.how.combiner != "set":
            value, lanes = self._combined(s, s.how.combiner, value, lanes)
        if not value.isidentifier():
            value, lanes = self._new("v", value, lanes)
        self.registers[s.name] = (value, lanes)
        if s.address is not None:
            self._write(s, value, lanes)

    def _write(self, s: Statement, value: str, lanes: int) -> None:
        """Write a result to memory."""
        assert s.address is not None
        name = tensor_of(s)
        step = self._step(s.address)
        if step == 0 or self.lanes == 1:
            self._line(f"store({self.pointers[name]}, {self._index(s.address)}, {value})")
            return
        wide, apart = self._widened((value, lanes), self.lanes), self.pointers[name]
        if self.slots[name].dtype is torch.bfloat16 and step != 1:
            # of lanes one by one: Mojo's LLVM cannot select the store of one that it has put on the stack
            apart, wide = f"as_words({apart})", f"bitcast[u16]({wide})"
        if step is None:
            self._line(f"store_at({apart}, {self._index_vector(s.address)}, {wide})")
        elif step == 1 and self.masked:
            where = f"{self.pointers[name]}, {self._index(s.address)}"
            self._line(f"store_masked({where}, {self.masked}, {wide})")
        elif step == 1:
            store = self._whole("store", s.address)
            self._line(f"{store}({self.pointers[name]}, {self._index(s.address)}, {wide})")
        else:
            masked = ("_masked", f"{self.masked}, ") if self.masked else ("", "")
            self._line(f"store_strided{masked[0]}({apart}, {self._index(s.address)}, {step}, {masked[1]}{wide})")

    def _neighbours(self, s: Statement, after: Sequence[Statement]) -> Sequence[Statement]:
        """The statements after ``s`` that write the lanes between those which it writes to every second, fourth or
        eighth place, where registers have them all."""
        step = None if s.address is None or self.lanes != SIDE else self._step(s.address)
        if s.address is None or step not in NEIGHBOURS or not self.turns:
            return []
        found = after[: step - 1]
        places = [t.address for t in found if t.name == s.name and t.address is not None]
        if places != [s.address + k for k in range(1, step)]:
            return []
        return found if all(isinstance(t.body, Load) and not t.body.index for t in (s, *found)) else []

    def _write_in_turns(self, statements: Sequence[Statement]) -> None:
        """Write vectors of neighbouring results as one, with the lanes of all in turns."""
        address = statements[0].address
        assert address is not None
        values = [self._widened(self._scalar(s.body), self.lanes) for s in statements]
        form, count = ("_masked", f"{self.masked}, ") if self.masked else ("", "")
        given = f"{self.pointers[tensor_of(statements[0])]}, {self._index(address)}, {count}{', '.join(values)}"
        self._line(f"store_{len(values)}_in_turns{form}({given})")

    def _hoist(self, stage: StageNest) -> None:
        """Compute here what the loops inside do not change. A load inside them might follow a store to its address."""
        if any(v not in self.place and may_be_empty(v) for v in stage.inner):
            return  # what a loop reads may not be there if it runs no time
        own = {s.name for s in stage.statements}
        seen: set[Scalar] = set()
        for s in stage.statements:
            for x in s.expressions:
                self._hoisted(x, own, seen)

    def _hoisted(self, x: Scalar, own: set[str], seen: set[Scalar]) -> None:
        if x in seen or isinstance(x, Const) or self._known(x) is not None:
            return
        seen.add(x)
        if variables(x) <= self.place.keys() and not any(isinstance(y, Load) and y.source in own for y in walk(x)):
            self._scalar(x)
            return
        indices = x.index if isinstance(x, Load) else (x.index,) if isinstance(x, FromIndex) else ()
        inside = [a.value for i in indices for a in i.atoms if isinstance(a, Computed)]
        for y in (*inside, *(x.operands if not isinstance(x, Guarded) else (x.condition,))):
            self._hoisted(y, own, seen)


def _slots(rows: tuple[OwnRow, ...]) -> dict[str, Slot]:
    """Of tensors that have no place in the table."""
    return {row.name: Slot(-1, row.dtype) for row in rows}


def _factor(text: str) -> str:
    return text if text.isalnum() else f"({text})"
