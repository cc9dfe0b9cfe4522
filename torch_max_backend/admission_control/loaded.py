"""What compiled graphs hold in this process beside their code: which do, since when nobody called them, and room.

A graph's weights are arguments, and the program's own. What the graph itself holds are constants: masks and tables of
positions that were folded, and tensors that the program closes over. Under a budget the graphs that were not called for
longest give theirs back first; their next call loads them again.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch_max_backend.base.byte_sizes import in_words


@runtime_checkable
class Holder(Protocol):
    """A graph that holds memory."""

    name: str

    @property
    def holds(self) -> Mapping[str, int]:
        """Bytes by device, when it is loaded."""

    @property
    def is_loaded(self) -> bool:
        """Whether it holds them now."""

    @property
    def can_unload(self) -> bool:
        """Whether it can give them back, and get them again."""

    @property
    def loads(self) -> int:
        """How often it was loaded again."""

    def unload(self) -> bool:
        """Give them back; whether it did."""


@dataclass(frozen=True)
class LoadedGraph:
    """A compiled graph of this process, by torch's name for it (``1/0``).

    ``holds`` are the bytes of its constants by device, while it is loaded; ``loads`` says how often they were loaded
    again after they had been given back.
    """

    name: str
    holds: Mapping[str, int]
    is_loaded: bool
    can_unload: bool
    loads: int


@dataclass(frozen=True)
class Loaded:
    """The compiled graphs of this process, those that were not called for longest first.

    ``unloads`` says how often one of them gave back what it held.
    """

    graphs: tuple[LoadedGraph, ...]
    unloads: int

    def __str__(self) -> str:
        devices = dict.fromkeys(device for graph in self.graphs for device in graph.holds)
        held = ", ".join(f"{in_words(self.bytes(device))} on {device}" for device in devices) or "nothing"
        return f"{len(self.graphs)} graphs hold {held}; {self.unloads} unloads, {self.loads} loads after that"

    @property
    def loads(self) -> int:
        """How often a graph was loaded again."""
        return sum(graph.loads for graph in self.graphs)

    def bytes(self, device: str = "cpu") -> int:
        """What loaded graphs hold on a device."""
        return sum(graph.holds.get(device, 0) for graph in self.graphs if graph.is_loaded)

    def clear(self) -> int:
        """Unload all graphs that can be loaded again; the number of bytes that they gave back."""
        given = 0
        for graph in _all():
            given += sum(graph.holds.values()) if _unload(graph) else 0
        return given


_lock = threading.Lock()
_graphs: dict[int, weakref.ref[Holder]] = {}
"""In the order of their last calls."""
_unloads = 0


def loaded() -> Loaded:
    """What compiled graphs hold now: a snapshot, which does not change."""
    rows = [LoadedGraph(g.name, dict(g.holds), g.is_loaded, g.can_unload, g.loads) for g in _all()]
    return Loaded(tuple(rows), _unloads)


def touch(graph: Holder) -> None:
    """Note that a graph is called now."""
    number = id(graph)
    with _lock:
        known = _graphs.pop(number, None)
        _graphs[number] = known or weakref.ref(graph, lambda _: _graphs.pop(number, None))


def held_by_others(graph: Holder, device: str, *, that_stay: bool = False) -> int:
    """What other graphs hold on a device; of those that cannot be unloaded, or of all."""
    others = (g for g in _all() if g is not graph and g.is_loaded)
    return sum(g.holds.get(device, 0) for g in others if not (that_stay and g.can_unload))


def make_room(graph: Holder, device: str, wanted: int) -> None:
    """Have other graphs give back so many bytes, or all that they can: those first that were not called for longest."""
    for other in _all():
        if wanted <= 0:
            return
        size = other.holds.get(device, 0)
        if other is not graph and size and _unload(other):
            wanted -= size


def _all() -> list[Holder]:
    with _lock:
        found = [reference() for reference in list(_graphs.values())]  # one may end meanwhile
    return [graph for graph in found if graph is not None]


def _unload(graph: Holder) -> bool:
    global _unloads
    if not graph.unload():
        return False
    with _lock:
        _unloads += 1
    return True
