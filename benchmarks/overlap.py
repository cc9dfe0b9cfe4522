"""How much of communication is hidden behind computing, from the trace of a profiler."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

Interval = tuple[float, float]
"""Begin and end."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of a trace's events that are work of a GPU, and no annotation of it."""


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times as intervals that do not touch, in order."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def total(intervals: Iterable[Interval]) -> float:
    """Time in which at least one interval runs."""
    return sum(end - begin for begin, end in merged(intervals))


def common(some: Iterable[Interval], others: Iterable[Interval]) -> float:
    """Time in which one of ``some`` and one of ``others`` run."""
    some, others = list(some), list(others)
    return total(some) + total(others) - total([*some, *others])


def share(communication: Iterable[Interval], computing: Iterable[Interval]) -> float | None:
    """Of the time that communication runs, the share in which computing runs too; None without communication."""
    communication = list(communication)
    whole = total(communication)
    return common(communication, computing) / whole if whole else None


def kernels(trace: dict[str, Any]) -> tuple[list[Interval], list[Interval]]:
    """Times of NCCL's kernels and of all other work on the GPU, in microseconds, from a trace in Chrome's format."""
    collective: list[Interval] = []
    other: list[Interval] = []
    for event in trace["traceEvents"]:
        if event.get("cat") in ON_DEVICE:
            times = collective if event["name"].startswith("nccl") else other
            times.append((event["ts"], event["ts"] + event["dur"]))
    return collective, other


def measured(step: Callable[[], object], count: int, is_watching: bool) -> dict[str, float | None]:
    """Run some steps; of what the GPU did meanwhile, microseconds a step of NCCL's kernels and of all others, and the
    share of the former that is hidden.

    Args:
        is_watching: Else only run them: another rank watches.
    """
    if not is_watching:
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(count):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        collective, other = kernels(json.loads(file.read_text()))
    busy = total(other) / count
    return {"collectives_us": total(collective) / count, "busy_us": busy, "overlap": share(collective, other)}
