"""What was compiled in this process: regions, islands, cache hits and seconds, graph by graph."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from torch import fx

from torch_max_backend.compiler.compile import CompileStats
from torch_max_backend.graph.partition import Island, Plan


@dataclass(frozen=True)
class GraphReport:
    """One compiled FX graph. ``compile_id`` is torch's name for it (``1/0``), which ``TORCH_LOGS`` prints too."""

    compile_id: str
    nodes: int
    max_nodes: int
    islands: tuple[Island, ...]
    stats: CompileStats

    @staticmethod
    def of(compile_id: str, gm: fx.GraphModule, plan: Plan, stats: CompileStats) -> GraphReport:
        """The report of a compiled plan."""
        nodes = sum(n.op == "call_function" for n in gm.graph.nodes)
        return GraphReport(compile_id, nodes, sum(r.compute_nodes for r in plan.regions), tuple(plan.islands), stats)

    def summary(self) -> str:
        """One line."""
        s = self.stats
        return (
            f"graph {self.compile_id} of {self.nodes} nodes: {s.regions} region(s) with {self.max_nodes} nodes, "
            f"{len(self.islands)} island op(s), {s.hits} from the cache, "
            f"lowered in {s.lower_s:.2f} s, compiled in {s.compile_s:.1f} s"
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
