"""Rows of which a thread of a GPU has its elements in registers: all stages run over them without a loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import torch

from torch_max_backend.base.dtypes import FLOAT8
from torch_max_backend.codegen.accumulators import Accumulator, Accumulators, Reduction, better
from torch_max_backend.codegen.expression_writer import Value
from torch_max_backend.codegen.source import Slot
from torch_max_backend.codegen.tile_writer import TileWriter
from torch_max_backend.loops.expr import SHORT, Load, Scalar, variables, walk
from torch_max_backend.loops.index import Var
from torch_max_backend.schedule.grid_limits import BYTES, WARP
from torch_max_backend.schedule.grid_memory import is_aligned, is_whole
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.nest import StageNest, Statement, distance

READ_FIRST = 128
"""Bytes of a row that a thread reads before it computes anything, at most: they take registers as long as they wait."""
READ_AT_ONCE = 64
"""The same where shared memory keeps what later stages read: few registers are left to wait."""
FAR = 1 << 31
"""Places below it are kept in 32 bits."""


class HeldRowWriter(TileWriter):
    """Writes the stages of rows whose elements a thread holds: each is read once, by name and not in a loop."""

    def __init__(self, nest: GridNest, slots: Mapping[str, Slot]) -> None:
        super().__init__(nest, slots)
        self.kept: list[tuple[str, str, dict[Scalar, Value]]] = []
        """The vectors of a row that a thread has in registers: where each begins, whether it is in the row, and what is
        known of it."""
        self.has_read = False
        """Whether the row's elements have been read."""
        self.beside: dict[str, list[str]] = {}
        """Results that wait for those beside them, by statement."""
        self.in_shared: set[Scalar] = set()
        """What shared memory has of the vectors that a thread holds."""
        self.counted = ""
        """Whether a lane has an element of a scan or of a row, as text."""

    def _from_registers(self, stage: StageNest) -> None:
        """A stage over elements that a thread has in registers: one vector after the other, without a loop. What one
        stage computes of an element the next ones find in the vector's own scope."""
        (v,) = stage.inner
        is_along = self.nest.vector is None  # or vectors have neighbouring outer indices
        is_first = self._begins_to_read(stage)
        accumulators = self._accumulators(self._without_places(stage), self.nest.lanes)
        best: Accumulators = {}
        for k in range(self.nest.held):
            with self._at_kept_vector(stage, k, is_first) as within:
                for s in stage.statements:
                    value = self._scalar(s.body)
                    if not s.combiner:
                        if not self._is_stored_later(stage, s, k, value):
                            self._finish(s, *value)
                        self._note_stored(s, value)
                        continue
                    text, compared = self._widened(value, self.nest.lanes), s.name not in accumulators
                    if compared and s.place is None:
                        continue  # the statement that looks for its place finds it
                    with self._block(f"if {within}:") if within else nullcontext():
                        if compared:
                            self._compare(s, v, text, best)
                        else:
                            self._accumulate(s, accumulators[s.name], text)
        wide, narrow = ([accumulators], {}) if is_along else ([], accumulators)
        r = Reduction(stage, v if is_along else None, wide, narrow, {})
        results: Accumulators = {}
        for s in stage.statements:
            if s.combiner:
                of = self._with_place(stage, s) or s  # which knows the extreme, too
                if of.name not in results:
                    own = self._best(of, best[of.name]) if of.name in best else self._gathered(of, self._result(r, of))
                    results[of.name] = own
                found = results[of.name]
                self._finish(s, *self._taken(s, found if of is s else Accumulator(found.value)))

    def _note_stored(self, s: Statement, value: Value) -> None:
        """Later stages find in registers what is written of a vector: its thread reads none of it from memory."""
        if s.address is not None and s.how is None and s.dtype not in (torch.bool, *FLOAT8):
            self.scopes[-1][Load(s.name, (s.address,), s.dtype)] = value

    def _is_stored_later(self, stage: StageNest, s: Statement, k: int, value: Value) -> bool:
        """Keep a result, with those beside it in memory, for one store of them all; the last one of these writes it."""
        (v,) = stage.inner
        lanes = self._stored_together(s, v)
        if lanes == 1:
            return False
        name, _ = self._new("v", *value)
        self.registers[s.name] = name, 1
        beside = self.beside.setdefault(s.name, [])
        beside.append(name)
        if len(beside) == lanes:
            assert s.address is not None
            joined = self._joined(beside, SHORT[s.dtype])
            self.place[v] = self.kept[k + 1 - lanes][0]
            self._line(f"store_aligned({self.pointers[s.name]}, {self._index(s.address)}, {joined})")
            self.place[v] = self.kept[k][0]
            beside.clear()
        return True

    def _stored_together(self, s: Statement, v: Var) -> int:
        """How many results of a thread that has a whole row are one store."""
        nest = self.nest
        is_alone = nest.threads == nest.lanes == 1 and nest.vector is None
        if not is_alone or s.address is None or s.how is not None or s.dtype in (torch.bool, *FLOAT8):
            return 1
        lanes = min(8, BYTES // s.dtype.itemsize)
        while lanes > 1 and not (is_whole(v, lanes) and is_aligned(s.address, v, lanes)):
            lanes //= 2
        return lanes if distance(s.address, v) == 1 else 1

    @contextmanager
    def _at_vector(self, stage: StageNest, k: int) -> Iterator[str]:
        """At one of the vectors that a thread holds; with it whether the row has it, as text."""
        (v,) = stage.inner
        name, within, scope = self.kept[k]
        self.scopes.append(scope)
        self.place[v], self.counted = name, within
        with self._along(v) if self.nest.vector is None else nullcontext():
            yield within
        self.counted = ""
        del self.place[v]
        self.scopes.pop()

    # -- reads -----------------------------------------------------------------------------------------------
    def _hold(self, first: StageNest) -> None:
        """The vectors that a thread has of a row, read before it waits for the others: also what later stages read."""
        (v,) = first.inner
        room, seen = READ_FIRST, set[Scalar]()
        written = {s.name for stage in self.nest.stages for s in stage.statements}
        for stage in self.nest.stages[self.nest.stages.index(first) :]:
            for x in self._reads(stage, (*self.nest.outer, v)):
                if x in seen:
                    continue
                seen.add(x)
                sources = {y.source for y in walk(x) if isinstance(y, Load)}
                moves = v in variables(x)
                room -= x.dtype.itemsize * self.nest.lanes * (len(self.kept) if moves else 1)
                if sources & written or room < 0:
                    continue
                if not moves:
                    self._scalar(x)
                for k in range(len(self.kept) if moves else 0):
                    with self._at_vector(first, k):
                        self._scalar(x)

    def _begins_to_read(self, stage: StageNest) -> bool:
        """Whether a stage is the first that reads the row; what threads hold is there for it then, if registers have
        it, and later stages find what these keep."""
        is_first = not self.has_read
        if not self.kept:
            self._place_vectors(stage.inner[0])
        if is_first and not self.nest.in_shared:
            self._hold(stage)
        elif self.nest.anew and not self.nest.in_shared:
            self._keep_what_is_read()
        self.has_read = True
        return is_first

    # -- shared memory ---------------------------------------------------------------------------------------
    @contextmanager
    def _at_kept_vector(self, stage: StageNest, k: int, is_first: bool) -> Iterator[str]:
        """At one of the vectors that a thread holds, which shared memory may have from the first stage on."""
        in_shared = self.nest.in_shared
        if in_shared and is_first:
            self._hold_some(stage, k)
        with self._at_vector(stage, k) as within:
            if in_shared and not is_first:
                self._take_from_shared(stage, k)
            yield within
            if in_shared and is_first:
                self._put_in_shared(stage, k)
            elif in_shared:
                self.scopes[-1].clear()

    def _hold_some(self, first: StageNest, k: int) -> None:
        """What the first stage reads of a few vectors, the ``k``th one first, if the ones before have been computed."""
        (v,) = first.inner
        reads = [x for x in self._reads(first, (*self.nest.outer, v)) if v in variables(x)]
        together = READ_AT_ONCE // max(1, sum(x.dtype.itemsize * self.nest.lanes for x in reads)) or 1
        if k % together:
            return
        for x in reads:
            for later in range(k, min(k + together, self.nest.held)):
                with self._at_vector(first, later):
                    self._scalar(x)

    def _put_in_shared(self, first: StageNest, k: int) -> None:
        """What later stages read of a vector, which a thread has for itself: nobody waits for it."""
        stages = self.nest.stages[self.nest.stages.index(first) + 1 :]
        later = {x for stage in stages for s in stage.statements for x in walk(*s.expressions)}
        scope = self.scopes[-1]
        for x, (text, lanes) in list(scope.items()):
            if isinstance(x, Load) and x in later and lanes == self.nest.lanes:
                self._line(f"shared_store_aligned({self._row_of(x)}, {self._place_in_shared(k)}, {text})")
                self.in_shared.add(x)
        scope.clear()

    def _take_from_shared(self, stage: StageNest, k: int) -> None:
        """The vectors that a stage reads, from where the first one has put them."""
        for x in dict.fromkeys(x for s in stage.statements for x in walk(*s.expressions) if x in self.in_shared):
            assert isinstance(x, Load)
            text = f"shared_load_aligned[{self.nest.lanes}]({self._row_of(x)}, {self._place_in_shared(k)})"
            self.scopes[-1][x] = self._new("x", text, self.nest.lanes)

    def _row_of(self, x: Load) -> str:
        """The shared memory that has what a block's threads hold of a tensor."""
        return self._shared(SHORT[x.dtype], self.nest.block * self.nest.held * self.nest.lanes, f"row of {x}")

    def _place_in_shared(self, k: int) -> str:
        """Where a thread has its ``k``th vector: neighbours have neighbours."""
        return f"(thread_in_block() + {k * self.nest.block}) * {self.nest.lanes}"

    def _place_vectors(self, v: Var) -> None:
        """Where the vectors begin that a thread has of a row."""
        threads, size = self.nest.threads, int(v.size)
        step = self.nest.lanes if self.nest.vector is None else 1
        for k in range(self.nest.held):
            begin = f"(mine + {k * threads}) * {step}" if threads > 1 else f"{k * step}"
            whole = (k + 1) * threads * step <= size
            name, _ = self._new("e", begin if whole else f"imin({begin}, {size - step})", 1)
            self.kept.append((name, "" if whole else f"{begin} < {size}", {}))

    def _keep_what_is_read(self) -> None:
        """Forget what has been computed of the vectors that a thread holds: numbers take more room than 16 bits. What
        has been read of others, as of weights in float32, is read again."""
        for _, _, scope in self.kept:
            read: dict[Scalar, Value] = {}
            for x, (text, lanes) in scope.items():
                if isinstance(x, Load) and x.dtype.itemsize == 2 and lanes * 2 == BYTES:
                    read[x] = text, lanes
            for text, _ in read.values():
                self._line(f"{text} = anew({text})")
            scope.clear()
            scope.update(read)

    # -- places of extremes ----------------------------------------------------------------------------------
    def _is_sure(self) -> bool:
        """Whether every thread has an element: the first one is the best so far, then."""
        return not self.kept[0][1]

    def _without_places(self, stage: StageNest) -> StageNest:
        """A stage without what is found by comparing one element after the other."""
        if not self._is_sure():
            return stage
        kept = (s for s in stage.statements if s.place is None and self._with_place(stage, s) is None)
        return StageNest(stage.free, stage.reduced, tuple(kept), stage.vector)

    def _compare(self, s: Statement, v: Var, text: str, best: Accumulators) -> None:
        """Compare the elements of a vector along ``v`` with the best one so far, in order."""
        assert s.place is not None
        vector, lanes, start = self.vector, self.lanes, self.place[v]
        self.vector, self.lanes = None, 1
        short = "i32" if self._has_short_places(s) else "i64"
        for k in range(lanes):
            self.place[v] = start if not k else self._new("k", f"{start} + {k}", 1)[0]
            at = f"from_int[{short}, 1]({self._index(s.place)})"
            value = text if lanes == 1 else f"lane_at({text}, {k})"
            if s.name not in best:
                best[s.name] = Accumulator(self._new("a", value, 1)[0], self._new("at", at, 1)[0])
                continue
            old = best[s.name]
            value = value if lanes == 1 else self._new("a", value, 1)[0]
            chosen, _ = self._new("c", better(s, value, old.value), 1)
            self._line(f"{old.value} = select({chosen}, {value}, {old.value})")
            self._line(f"{old.place} = select({chosen}, {at}, {old.place})")
        self.vector, self.lanes, self.place[v] = vector, lanes, start

    def _has_short_places(self, s: Statement) -> bool:
        """Whether places are kept in 32 bits: where only lanes of a warp tell them each other."""
        assert s.place is not None
        return s.place.bounds[1] < FAR and self.nest.threads <= WARP and not self.nest.columns

    def _best(self, s: Statement, own: Accumulator) -> Accumulator:
        """The best of what all threads of a row have."""
        if not self._has_short_places(s):
            return self._gathered(s, own)
        found = self._best_of_lanes(s, own, self.nest.threads)
        return found._replace(place=self._new("at", f"cast[i64]({found.place})", 1)[0])
