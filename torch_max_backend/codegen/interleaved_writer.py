"""Transposes with a short side on a GPU, in a thread's registers."""

from __future__ import annotations

from collections.abc import Mapping

from torch_max_backend.codegen.expression_writer import Value
from torch_max_backend.codegen.source import Slot
from torch_max_backend.codegen.tile_writer import TileWriter
from torch_max_backend.loops.expr import SHORT, Load, Scalar
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.schedule.grid_interleaved import Interleaved
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.nest import Statement


class InterleavedWriter(TileWriter):
    """Writes the kernel of a nest with :class:`Interleaved` memory."""

    def __init__(self, nest: GridNest, slots: Mapping[str, Slot]) -> None:
        super().__init__(nest, slots)
        self.unit = 0
        """Which iteration of the short loop is at work."""
        self.chunks: dict[tuple[str, Index], list[str]] = {}
        """What is read of interleaved memory, by tensor and first element, as vectors."""
        self.results: dict[Statement, list[str]] = {}
        """What is to be stored to interleaved memory, by iteration of the short loop."""

    def _turned_in_registers(self, pair: Interleaved) -> None:
        """All of the short loop, whose reads are under way together."""
        (stage,) = self.nest.stages
        loads = self._reads(stage, (*self.nest.outer, pair.short))
        units: list[tuple[dict[Var, str], dict[Scalar, Value]]] = [({pair.short: str(k)}, {}) for k in range(pair.size)]
        with self._in_vectors():
            for self.unit, unit in enumerate(units):
                with self._at(*unit):
                    for x in loads:
                        self._scalar(x)
            for self.unit, unit in enumerate(units):
                with self._at(*unit):
                    for s in stage.statements:
                        self._finish(s, *self._scalar(s.body))
            for s, values in self.results.items():
                self._store_interleaved(pair, s, values)

    def _is_interleaved(self, address: Index) -> bool:
        return self.nest.interleaved is not None and self.nest.interleaved.holds(address)

    def _load_interleaved(self, x: Load) -> Value:
        """The elements of one iteration of the short loop, picked out of vectors of all."""
        pair = self.nest.interleaved
        assert pair is not None
        first, dtype = x.index[0].substitute({pair.short: Index.of(0)}), self.slots[x.source].dtype
        size = pair.chunk(x.index[0], dtype.itemsize)
        if (x.source, first) not in self.chunks:
            at = f"{self.pointers[x.source]}, {self._index(first)}"
            starts = range(0, pair.size * pair.lanes, size)
            self.chunks[x.source, first] = [
                self._new("c", f"load_aligned[{size}]({at} + {k})", size)[0] for k in starts
            ]
        chunks = self.chunks[x.source, first]
        picked = [divmod(k * pair.size + self.unit, size) for k in range(pair.lanes)]
        lanes = [f"lane_at({chunks[c]}, {k})" for c, k in picked]
        return self._new("x", lanes[0], 1) if pair.lanes == 1 else (self._joined(lanes, SHORT[dtype]), pair.lanes)

    def _store_interleaved(self, pair: Interleaved, s: Statement, values: list[str]) -> None:
        assert s.address is not None
        dtype = self.slots[s.name].dtype
        size = pair.chunk(s.address, dtype.itemsize)
        at = f"{self.pointers[s.name]}, {self._index(s.address.substitute({pair.short: Index.of(0)}))}"
        for first in range(0, pair.size * pair.lanes, size):
            places = [divmod(first + k, pair.size) for k in range(size)]
            lanes = [f"lane_at({values[unit]}, {lane})" for lane, unit in places]
            self._line(f"store_aligned({at} + {first}, {self._joined(lanes, SHORT[dtype])})")
