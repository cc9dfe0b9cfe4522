"""Rows of a part, one after the other: what is added up over all of them, threads of a GPU keep meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from torch_max_backend.codegen.accumulators import Accumulator
from torch_max_backend.codegen.held_row_writer import HeldRowWriter
from torch_max_backend.loops.expr import SHORT, Load, variables
from torch_max_backend.loops.index import Var
from torch_max_backend.schedule.nest import StageNest, Statement

Sums = dict[tuple[str, int], str]
"""A thread's own, by statement and number of the vector."""


class ColumnSumsWriter(HeldRowWriter):
    """Writes a nest whose blocks have a part of the rows each, and sums over these in its last stage."""

    def _part_by_part(self, sizes: Sequence[str]) -> None:
        nest = self.nest
        *stages, last = nest.stages
        (v,) = last.inner
        self._line(f"var mine: Int = rem32(thread_in_block(), {nest.threads})")
        self._line(f"var group: Int = div32(thread_in_block(), {nest.threads})")
        self._line(f"var begin: Int = block_index() * {nest.part}")
        self._place_vectors(v)
        self._read_for_all_rows(v)
        sums: Sums = {}
        for s in last.statements:
            for k in range(nest.held):
                sums[s.name, k], _ = self._new("sum", f"const[f32, {nest.lanes}](0)", nest.lanes)
        self._line("var turn: Int = 0")
        with self._block(f"while turn < {nest.part}:"):
            self._line("var row: Int = begin + turn + group")
            if nest.part % nest.rows:
                with self._block(f"if turn + group >= {nest.part}:"):
                    self._line("row = total")
            self._line("var part: Int = imin(row, total - 1)")
            with self._placed("part", list(sizes)):
                self._stages(tuple(stages))
                self._add_row(last, sums)
            self._line(f"turn += {nest.rows}")
        self.place[nest.outer[0]] = "begin"
        for s in last.statements:
            for k in range(nest.held):
                self._line("block_barrier()")  # before, others read what is told now
                self._write_sums(s, v, k, sums[s.name, k])

    def _read_for_all_rows(self, v: Var) -> None:
        """Weights, say: what is the same for all rows is read once."""
        for stage in self.nest.stages:
            for x in self._reads(stage, (v,)):
                if isinstance(x, Load) and variables(x) == {v}:
                    for k in range(self.nest.held):
                        with self._at_vector(self.nest.stages[-1], k):
                            self._scalar(x)

    def _add_row(self, last: StageNest, sums: Sums) -> None:
        """Add what a row has; those behind the last one are another's, or nobody's."""
        nest = self.nest
        are_whole = nest.part % nest.rows == 0 and int(nest.outer[0].size) % nest.part == 0
        for k in range(nest.held):
            with self._at_vector(last, k) as inside:
                conditions = [text for text in ("" if are_whole else "row < total", inside) if text]
                for s in last.statements:
                    own = Accumulator(sums[s.name, k], "", self.nest.lanes)
                    with self._if(conditions):
                        if not self._added_product(s, own):
                            value = self._widened(self._scalar(s.body), own.lanes)
                            self._line(f"{own.value} = add({own.value}, {value})")

    def _write_sums(self, s: Statement, v: Var, k: int, own: str) -> None:
        """The block's sums of a thread's vector ``k`` along ``v``, one column a thread."""
        nest = self.nest
        assert s.address is not None
        memory = self._shared("f32", nest.block * nest.lanes, "sums")
        self._tell(memory, own, nest.lanes)
        self._line("block_barrier()")
        columns, dtype = nest.threads * nest.lanes, SHORT[s.dtype]
        at, _ = self._new("at", "thread_in_block()", 1)
        with self._block(f"while {at} < {columns}:"):
            lane, _ = self._new("lane", f"div32({at}, {nest.threads})", 1)
            column, _ = self._new("k", f"(rem32({at}, {nest.threads}) + {k * nest.threads}) * {nest.lanes} + {lane}", 1)
            told, _ = self._new("k", f"{lane} * {nest.block} + rem32({at}, {nest.threads})", 1)
            total, _ = self._new("total", f"const[{dtype}, 1](0)", 1)
            for group in range(nest.rows):
                value = f"shared_load[1]({memory}, {told} + {group * nest.threads})"
                self._line(f"{total} = add({total}, cast[{dtype}]({value}))")
            with self._block(f"if {column} < {v.size}:"):
                self.place[v] = column
                self._line(f"store({self.pointers[s.name]}, {self._index(s.address)}, {total})")
                del self.place[v]
            self._line(f"{at} += {nest.block}")
