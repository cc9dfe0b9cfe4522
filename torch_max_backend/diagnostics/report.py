"""What was compiled in this process: regions, islands, cache hits and seconds, graph by graph."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

from torch_max_backend.admission_control.gate import GraphAdmission
from torch_max_backend.compile.stats import CompileStats
from torch_max_backend.partition.island import Island
from torch_max_backend.runtime.frozen import Frozen
from torch_max_backend.runtime.program import ProgramSpec


@dataclass(frozen=True)
class ProgramReport:
    """A region that is a program: how many different kernels it has and how often they are launched in a call.

    ``library_calls`` names what libraries compute, in order ("ATen aten.mm.default"). ``bytes_moved`` counts what the
    kernels of a call read and write, each tensor once for every kernel, as far as its loops reach; symbolic sizes count
    as the first call had them.
    """

    kernels: int
    launches: int
    library_calls: tuple[str, ...]
    bytes_moved: int

    @classmethod
    def of(cls, spec: ProgramSpec) -> ProgramReport:
        """The facts of a program."""
        return cls(spec.kernels, spec.launches, spec.library_calls, spec.bytes_moved)


@dataclass(frozen=True)
class GraphReport:
    """One compiled FX graph. ``compile_id`` is torch's name for it (``1/0``), which ``TORCH_LOGS`` prints too.

    ``warm`` says that the graph came from AOTAutograd's cache: it was neither traced nor lowered in this process.
    ``programs`` are those regions that are programs of generated kernels; MAX compiled the others. ``admission`` is
    what was judged of the graph's calls so far: the latest estimates, and a rejection. ``frozen`` is what the graph
    computes from its parameters once (option ``freeze``); its ``runs`` and ``holds`` are those of now.
    """

    compile_id: str
    nodes: int
    max_nodes: int
    islands: tuple[Island, ...]
    stats: CompileStats
    warm: bool = False
    programs: tuple[ProgramReport, ...] = ()
    admission: GraphAdmission = field(default_factory=GraphAdmission, compare=False)
    frozen: Frozen | None = field(default=None, compare=False)

    @property
    def kernels(self) -> int:
        """Different kernels in the graph's programs."""
        return sum(p.kernels for p in self.programs)

    @property
    def launches(self) -> int:
        """Kernel launches in a call."""
        return sum(p.launches for p in self.programs)

    @property
    def bytes_moved(self) -> int:
        """Bytes that the kernels of a call read and write."""
        return sum(p.bytes_moved for p in self.programs)

    @property
    def library_calls(self) -> dict[str, int]:
        """How often a call of the graph calls a library, by name, the most frequent first."""
        return dict(Counter(name for p in self.programs for name in p.library_calls).most_common())

    @property
    def island_ops(self) -> dict[str, int]:
        """How many ops torch runs between the regions, by name, the most frequent first."""
        return dict(Counter(island.op for island in self.islands).most_common())

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
        frozen = f", {len(self.frozen.steps.results)} frozen tensor(s)" if self.frozen is not None else ""
        return (
            f"graph {self.compile_id} of {self.nodes} nodes: {self._parts()} with {self.max_nodes} nodes, "
            f"{len(self.islands)} island op(s){_named(self.island_ops)}, {s.hits} from the cache, {how}{frozen}"
            + "".join(f", rejected: {rejection.reason}" for rejection in self.admission.rejected)
        )

    def _parts(self) -> str:
        regions = self.stats.regions - len(self.programs)
        parts = [f"{regions} MAX region(s)"] if regions or not self.programs else []
        if self.programs:
            calls = self.library_calls
            parts.insert(
                0,
                f"{len(self.programs)} program(s) ({self.kernels} kernels, {self.launches} launches over "
                f"{self.bytes_moved / 1e6:.3g} MB, {sum(calls.values())} library calls{_named(calls)})",
            )
        return " and ".join(parts)


def _named(counts: dict[str, int]) -> str:
    return ": " + ", ".join(f"{count} x {name}" for name, count in counts.items()) if counts else ""


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
