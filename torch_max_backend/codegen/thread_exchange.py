"""What threads of a GPU's kernel tell each other: the results of an outer index that they share, and prefixes."""

from __future__ import annotations

from collections.abc import Mapping

from torch_max_backend.codegen.accumulators import COMBINE, Accumulator, gathered_dtype
from torch_max_backend.codegen.kernel_writer import KernelWriter
from torch_max_backend.codegen.source import Slot
from torch_max_backend.loops.expr import SHORT
from torch_max_backend.loops.index import Var
from torch_max_backend.schedule.grid_limits import WARP
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.nest import StageNest, Statement

AT_ONCE = 8
"""Threads of an outer index above which their values are folded in two steps."""
UNFOLDED = 128
"""Bytes of values in shared memory that a thread folds without a loop, at most: all of them are in registers."""
IN_TURNS = 8 << 10
"""Bytes that threads tell each other, up to which they have memory for two exchanges: a barrier less for each."""
_TOGETHER = {"sum": "add", "product": "mul", "any": "or", "all": "and", "maximum": "max", "minimum": "min"}


class ThreadExchange(KernelWriter):
    """Writes how threads combine what each of them has: between lanes of a warp, and through shared memory."""

    nest: GridNest
    short_places = False

    def __init__(self, nest: GridNest, slots: Mapping[str, Slot]) -> None:
        super().__init__(nest, slots)
        self.stage: StageNest | None = None
        self.shares: dict[Var, int] = {}
        """The shared loops of the stage at work, with the number of threads along each."""
        self.memory: dict[tuple[str, int, str], str] = {}
        """The names of shared memory, by dtype, elements and use."""
        self.head: list[str] = []
        self.turn = False
        """Which of two memories the last exchange used."""
        self.has_waited = False
        """Whether the blocks of a cluster know that all of them run."""

    # -- results of an outer index ---------------------------------------------------------------------------
    def _is_known_to_all(self, s: Statement) -> bool:
        """Whether all threads of an outer index have a statement's result."""
        assert self.stage is not None
        return not self.shares or (bool(s.combiner) and all(v in self.stage.reduced for v in self.shares))

    def _gathered(self, s: Statement, own: Accumulator) -> Accumulator:
        if self.nest.threads == 1 or not self._is_known_to_all(s):
            return own
        if self.nest.columns:
            return self._over_columns(s, own)
        if s.place is not None:
            return self._best_of_threads(s, own)
        if s.combiner == "sum_exp":
            one = self._below(s, own, self._of_all("max", own.value), own.place)
            return one._replace(place=self._new("a", self._of_all("add", one.place), 1)[0])
        return Accumulator(self._new("a", self._of_all(_TOGETHER[s.combiner], own.value), 1)[0])

    def _of_all(self, how: str, value: str) -> str:
        """The values of all threads of an outer index as one."""
        threads, blocks = self.nest.threads, self.nest.blocks
        if threads <= WARP:
            return f"warp_{how}[{threads}]({value})"
        if blocks == 1:
            return f"block_{how}({value})"
        if not self.has_waited:
            self._line("cluster_wait()")
            self.has_waited = True
        return f"cluster_{how}[{blocks}](block_{how}({value}))"

    def _best_of_threads(self, s: Statement, own: Accumulator) -> Accumulator:
        """The best value and its place: between lanes of a warp, and then between warps."""
        best = self._best_of_lanes(s, own, min(self.nest.threads, WARP))
        warps = self.nest.threads // WARP
        if warps <= 1:
            return best
        values, places = self._shared(SHORT[s.body.dtype], warps, "value"), self._shared("i64", warps, "place")
        with self._block(f"if rem32(mine, {WARP}) == 0:"):
            self._line(f"shared_store({values}, div32(mine, {WARP}), {best.value})")
            self._line(f"shared_store({places}, div32(mine, {WARP}), {best.place})")
        self._line("block_barrier()")
        value, _ = self._new("a", f"shared_load[1]({values}, rem32(mine, {warps}))", 1)
        place, _ = self._new("at", f"shared_load[1]({places}, rem32(mine, {warps}))", 1)
        self._line("block_barrier()")
        return self._best_of_lanes(s, Accumulator(value, place), warps)

    def _best_of_lanes(self, s: Statement, best: Accumulator, lanes: int) -> Accumulator:
        """The best of so many neighbouring lanes, in all of them."""
        by = lanes // 2
        while by:
            value, _ = self._new("a", f"shuffle_xor({best.value}, {by})", 1)
            place, _ = self._new("at", f"shuffle_xor({best.place}, {by})", 1)
            best, by = self._better_of(s, best, Accumulator(value, place)), by // 2
        return best

    def _over_columns(self, s: Statement, own: Accumulator) -> Accumulator:
        """What the threads of an outer index have, which are ``rows`` apart.

        Two exchanges in a row use different memory: whoever writes the second one may do so before all have read.
        """
        rows, threads, lanes = self.nest.rows, self.nest.threads, own.lanes
        count = rows * threads * lanes
        assert self.stage is not None
        in_turns = not self.stage.free and count * gathered_dtype(s).itemsize <= IN_TURNS
        self.turn = self.turn != in_turns
        use = f"value{int(self.turn)}" if in_turns else "value"
        values = self._shared(SHORT[gathered_dtype(s)], count, use)
        places = self._shared("i64", count, f"place of {use}") if s.place is not None else ""
        self._tell(values, own.value, lanes)
        if places:
            self._tell(places, own.place, 1)
        self._line("block_barrier()")
        if threads * lanes <= AT_ONCE * (1 if lanes == 1 else 4):
            found = self._folded(s, values, places, f"rem32(thread_in_block(), {rows})", rows, threads, lanes)
        elif lanes > 1:
            found = self._folded_by_lanes(s, values, lanes)
        else:  # few threads fold what lies their number apart, and write it where none of the others reads
            few = 1 << (threads.bit_length() - 1) // 2
            with self._block(f"if mine < {few}:"):
                column = f"rem32(thread_in_block(), {rows * few})"
                some = self._folded(s, values, places, column, rows * few, threads // few)
                self._tell(values, some.value, 1)
                if places:
                    self._tell(places, some.place, 1)
            self._line("block_barrier()")
            found = self._folded(s, values, places, f"rem32(thread_in_block(), {rows})", rows, few)
        if not in_turns:
            self._line("block_barrier()")
        return found

    def _tell(self, memory: str, value: str, lanes: int) -> None:
        """Write a thread's value to shared memory, each lane where those of all threads are neighbours."""
        for k in range(lanes):
            at = f"thread_in_block() + {k * self.nest.block}" if k else "thread_in_block()"
            self._line(f"shared_store({memory}, {at}, {value if lanes == 1 else f'lane_at({value}, {k})'})")

    def _told(self, memory: str, at: str, lanes: int) -> str:
        """A vector in shared memory, as a variable."""
        if lanes == 1:
            return self._new("a", f"shared_load[1]({memory}, {at})", 1)[0]
        parts = [self._new("a", f"shared_load[1]({memory}, {at} + {k * self.nest.block})", 1)[0] for k in range(lanes)]
        vector, _ = self._new("a", f"splat[{lanes}]({parts[0]})", lanes)
        for k, part in enumerate(parts[1:], 1):
            self._line(f"{vector} = with_lane({vector}, {k}, {part})")
        return vector

    def _folded_by_lanes(self, s: Statement, values: str, lanes: int) -> Accumulator:
        """The vectors of all threads of an outer index as one: each lane has threads of its own, which fold numbers."""
        rows, threads, apart = self.nest.rows, self.nest.threads, self.nest.block
        row, few = f"rem32(thread_in_block(), {rows})", max(1, threads // lanes)
        if few > 1:
            column = f"div32(mine, {few}) * {apart} + rem32(thread_in_block(), {rows * few})"
            some = self._folded(s, values, "", column, rows * few, threads // few)
            self._line(f"shared_store({values}, {column}, {some.value})")
            self._line("block_barrier()")
        with self._block(f"if mine < {lanes}:"):
            for k in range(0, lanes, min(threads, lanes)):
                column = f"(mine + {k}) * {apart} + {row}"
                one = self._folded(s, values, "", column, rows, few if few > 1 else threads)
                self._line(f"shared_store({values}, {column}, {one.value})")
        self._line("block_barrier()")
        return Accumulator(self._told(values, row, lanes), "", lanes)

    def _folded(
        self, s: Statement, values: str, places: str, first: str, step: int, count: int, lanes: int = 1
    ) -> Accumulator:
        """``count`` results in shared memory as one, in order. All of a few are read first."""
        at, _ = self._new("at", first, 1)

        def read(place: str) -> Accumulator:
            known = self._new("at", f"shared_load[1]({places}, {place})", 1)[0] if places else ""
            return Accumulator(self._told(values, place, lanes), known, lanes)

        if count * lanes * gathered_dtype(s).itemsize <= UNFOLDED:
            one, *others = [read(f"{at} + {step * k}" if k else at) for k in range(count)]
            for other in others:
                self._fold(s, one, other)
            return one
        one = read(at)
        end, _ = self._new("end", f"{at} + {step * count}", 1)
        self._line(f"{at} += {step}")
        with self._block(f"while {at} < {end}:"):
            self._fold(s, one, read(at))
            self._line(f"{at} += {step}")
        return one

    def _fold(self, s: Statement, one: Accumulator, other: Accumulator) -> None:
        """Combine an accumulator with another one."""
        if not one.place:
            self._line(f"{one.value} = {COMBINE[s.combiner]}({one.value}, {other.value})")
            return
        best = self._better_of(s, one, other)
        self._line(f"{one.value} = {best.value}")
        self._line(f"{one.place} = {best.place}")

    def _shared(self, dtype: str, count: int, use: str) -> str:
        """Shared memory for one use at a time."""
        name = self.memory.get((dtype, count, use))
        if name is None:
            name = self.memory[dtype, count, use] = f"shared{len(self.memory)}"
            self.head.append(f"    var {name} = shared[{dtype}, {count}]()")
        return name

    # -- prefixes --------------------------------------------------------------------------------------------
    def _prefix(self, s: Statement, value: str) -> str:
        """A value combined with all before it: those of lower lanes, and what the row's earlier elements gave."""
        carry = self.scanned[s.name]
        own = Accumulator(self._new("a", value, 1)[0])
        if s.place is not None:
            own = own._replace(place=self._new("at", self._from_index(s.place)[0], 1)[0])
        elif s.combiner == "log_sum_exp":
            own = own._replace(place=self._new("sum", f"const[{SHORT[s.body.dtype]}, 1](1)", 1)[0])
        by, lane = 1, "mine" if self.nest.threads <= WARP else f"rem32(mine, {WARP})"
        while by < min(WARP, self.nest.threads):
            value, _ = self._new("b", f"shuffle_up({own.value}, {by})", 1)
            place = self._new("at", f"shuffle_up({own.place}, {by})", 1)[0] if own.place else ""
            before = Accumulator(value, place)
            with self._block(f"if {lane} >= {by}:"):
                self._follow(s, own, before)
            by *= 2
        if self.nest.each > 1:  # rows of one vector
            return self._taken(s, own)[0]
        if self.nest.threads > WARP:
            self._behind_warps(s, own, carry)
            return self._taken(s, own)[0]
        self._follow(s, own, carry)
        for kept, x in zip(carry[:2], own[:2], strict=True):
            if x:
                self._line(f"{kept} = shuffle_from({x}, {WARP - 1})")
        return self._taken(s, own)[0]

    def _behind_warps(self, s: Statement, own: Accumulator, carry: Accumulator) -> None:
        """Combine a warp's prefixes with the carry and with what the warps before it have in all; the carry follows."""
        warps = self.nest.threads // WARP
        shared = [self._shared(SHORT[s.body.dtype], warps, "value")]
        if own.place:
            of_place = "i64" if s.place is not None else SHORT[s.body.dtype]
            shared.append(self._shared(of_place, warps, "place" if s.place is not None else "sum"))
        with self._block(f"if rem32(mine, {WARP}) == {WARP - 1}:"):
            for name, x in zip(shared, own[:2], strict=False):
                self._line(f"shared_store({name}, div32(mine, {WARP}), {x})")
        self._line("block_barrier()")
        at, _ = self._new("at", "0", 1)

        def follow_until(end: str) -> None:
            with self._block(f"while {at} < {end}:"):
                value, *place = (self._new("b", f"shared_load[1]({name}, {at})", 1)[0] for name in shared)
                after = Accumulator(value, "".join(place))
                self._follow(s, after, carry)
                for kept, x in zip(carry[:2], after[:2], strict=True):
                    if x:
                        self._line(f"{kept} = {x}")
                self._line(f"{at} += 1")

        follow_until(f"div32(mine, {WARP})")
        self._follow(s, own, carry)
        follow_until(str(warps))
        self._line("block_barrier()")
