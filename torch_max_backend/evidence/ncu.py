"""NVIDIA's profiler ``ncu``: how it is called, and a table of the metrics in its CSV output."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from torch_max_backend.base.errors import EvidenceError

DURATION = "gpu__time_duration.sum"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = {
    _STALL.format(reason): reason.replace("_", " ")
    for reason in (
        "barrier",
        "branch_resolving",
        "dispatch_stall",
        "drain",
        "imc_miss",
        "lg_throttle",
        "long_scoreboard",
        "math_pipe_throttle",
        "membar",
        "mio_throttle",
        "no_instruction",
        "not_selected",
        "short_scoreboard",
        "sleeping",
        "tex_throttle",
        "wait",
    )
}
"""Warps that wait for this reason, per instruction that is issued."""
METRICS = (DURATION, DRAM, SM, TENSOR, *STALLS)
SHOWN_STALLS = 2
_SECONDS = {
    "ns": 1e-9,
    "nsecond": 1e-9,
    "us": 1e-6,
    "usecond": 1e-6,
    "ms": 1e-3,
    "msecond": 1e-3,
    "s": 1.0,
    "second": 1.0,
}


@dataclass
class Kernel:
    """Launches of one kernel: the values of each metric, a launch each; durations are in seconds."""

    name: str
    values: dict[str, list[float]] = field(default_factory=dict)

    @property
    def launches(self) -> int:
        """How many launches have a duration."""
        return len(self.values.get(DURATION, []))

    @property
    def seconds(self) -> float:
        """What all launches took."""
        return sum(self.values.get(DURATION, []))

    def mean(self, metric: str) -> float | None:
        """A metric's mean over the launches, weighted by their durations; None where it was not measured."""
        values, weights = self.values.get(metric, []), self.values.get(DURATION, [])
        if not values:
            return None
        if len(weights) != len(values) or not sum(weights):
            return sum(values) / len(values)
        return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)

    def stalls(self) -> list[tuple[str, float]]:
        """The reasons for which warps wait, the most frequent first."""
        found = [(reason, mean) for metric, reason in STALLS.items() if (mean := self.mean(metric)) is not None]
        return sorted(found, key=lambda f: -f[1])


def command(ncu: str, log: Path, program: Sequence[str]) -> list[str]:
    """How ``ncu`` is called: its CSV goes into a file, so that what the program prints does not disturb it."""
    options = ["--csv", "--page", "raw", "--print-units", "base", "--target-processes", "all"]
    return [ncu, *options, "--metrics", ",".join(METRICS), "--log-file", str(log), *program]


def parsed(text: str) -> list[Kernel]:
    """Kernels of ``ncu``'s CSV output, those that took longest first.

    Both forms are read: a column a metric with units in the second line (``--page raw``), and a line a metric.

    Raises:
        EvidenceError: There is no table in it, or no metric of ``METRICS``.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"') and '"Kernel Name"' in line), None)
    if start is None:
        last = next((line for line in reversed(lines) if line.strip()), "nothing")
        raise EvidenceError(f"ncu gave no table with the columns ID and Kernel Name; the last it said is: {last}")
    table = "\n".join(line for line in lines[start:] if line.startswith('"'))
    rows = list(csv.DictReader(io.StringIO(table)))
    kernels: dict[str, Kernel] = {}
    for name, metric, unit, value in _measured(rows):
        kernel = kernels.setdefault(name, Kernel(name))
        scale = _scale(unit) if metric == DURATION else 1.0
        kernel.values.setdefault(metric, []).append(value * scale)
    if not kernels:
        raise EvidenceError(f"ncu measured none of {', '.join(METRICS[:4])}")
    return sorted(kernels.values(), key=lambda k: -k.seconds)


def _measured(rows: list[dict[str, str]]) -> Iterator[tuple[str, str, str, float]]:
    """Kernel, metric, unit and value of everything that was measured."""
    if rows and "Metric Name" in rows[0]:
        cells = [
            (r["Kernel Name"], r["Metric Name"], r.get("Metric Unit", ""), r.get("Metric Value", "")) for r in rows
        ]
    else:
        units = next((r for r in rows if not r["ID"]), {})
        own = [r for r in rows if r["ID"]]
        cells = [(r["Kernel Name"], m, units.get(m, ""), r[m]) for r in own for m in METRICS if m in r]
    for name, metric, unit, text in cells:
        value = _number(text)
        if metric in METRICS and value is not None:
            yield name, metric, unit, value


def _number(text: str) -> float | None:
    """A number as ``ncu`` writes it, with commas between thousands; None for what it could not measure."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:  # "n/a"
        return None
    return value if math.isfinite(value) else None


def _scale(unit: str) -> float:
    if unit not in _SECONDS:
        raise EvidenceError(f"ncu gives durations in {unit!r}, and this knows {', '.join(_SECONDS)}")
    return _SECONDS[unit]


def table(kernels: Sequence[Kernel]) -> Table:
    """The kernels for a terminal."""
    result = Table(title=f"{sum(k.seconds for k in kernels) * 1e3:.3g} ms by ncu", title_justify="left")
    result.add_column("kernel", overflow="fold")
    for head in ("launches", "µs a launch", "DRAM", "SM", "tensor pipe"):
        result.add_column(head, justify="right")
    result.add_column("stalls, warps an issue")
    for k in kernels:
        mean = k.seconds / k.launches * 1e6 if k.launches else None
        stalls = ", ".join(f"{reason} {value:.2f}" for reason, value in k.stalls()[:SHOWN_STALLS])
        shares = [_percent(k.mean(m)) for m in (DRAM, SM, TENSOR)]
        result.add_row(k.name, str(k.launches), "–" if mean is None else f"{mean:.1f}", *shares, stalls or "–")
    return result


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"
