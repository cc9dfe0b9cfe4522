"""What was compiled in this process: regions, islands, cache hits and seconds, graph by graph."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from torch_max_backend.compile.stats import CompileStats
from torch_max_backend.partition.island import Island


@dataclass(frozen=True)
class GraphReport:
    """One compiled FX graph. ``compile_id`` is torch's name for it (``1/0``), which ``TORCH_LOGS`` prints too.

    ``warm`` says that the graph came from AOTAutograd's cache: it was neither traced nor lowered in this process.
    """

    compile_id: str
    nodes: int
    max_nodes: int
    islands: tuple[Island, ...]
    stats: CompileStats
    warm: bool = False

    def warning(self) -> str:
        """What torch runs instead of MAX, and why; empty if there is nothing of that kind."""
        groups: dict[tuple[str, str], list[str]] = {}
        for island in self.islands:
            groups.setdefault((island.op, island.reason), []).append(island.where)
        if not groups:
            return ""
        lines = [
            f"max_backend: torch runs {len(self.islands)} op(s) of this graph, between {self.stats.regions} MAX "
            "region(s):"
        ]
        for (op, reason), where in groups.items():
            place = next((w for w in where if w), "")
            lines.append(f"  {len(where)} x {op}: {reason}" + (f" (first at {place})" if place else ""))
        return "\n".join(lines)

    def summary(self) -> str:
        """One line."""
        s = self.stats
        how = "not traced again" if self.warm else f"lowered in {s.lower_s:.2f} s, compiled in {s.compile_s:.1f} s"
        return (
            f"graph {self.compile_id} of {self.nodes} nodes: {s.regions} region(s) with {self.max_nodes} nodes, "
            f"{len(self.islands)} island op(s), {s.hits} from the cache, {how}"
        )


_lock = threading.Lock()
_reports: list[GraphReport] = []


def record(report: GraphReport) -> None:
    """Add a compiled graph."""
    with _lock:
        _reports.append(report)


def reports() -> list[GraphReport]:
    """All graphs compiled in this process since :func:`clear`, oldest first."""
    with _lock:
        return list(_reports)


def clear() -> None:
    """Forget all reports."""
    with _lock:
        _reports.clear()
