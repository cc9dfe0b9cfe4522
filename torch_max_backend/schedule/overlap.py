"""Overlap of collectives with kernels: nobody waits for one before its result is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_max_backend.aten_functions.torch_executed.collectives import STARTS, WAITS
from torch_max_backend.loops.program import Call, reads
from torch_max_backend.schedule.kernel import Kernel

Step = Kernel | Call


def wait_late(steps: Sequence[Step]) -> list[Step]:
    """The steps with every wait right before the first one that reads what it waits for, or at the end.

    Collectives stay where they are, behind what they read. Before: ``t1 = all_reduce(t0); t2 = wait_tensor(t1); kernel
    of x; kernel of t2``. After: ``t1 = all_reduce(t0); kernel of x; t2 = wait_tensor(t1); kernel of t2``. Waits for
    several results of one collective stay together: each may write all of them, as gloo's do for a reduce-scatter.
    """
    waits = _waits(steps)
    found: list[Step] = []
    for step in steps:
        if isinstance(step, Call) and step.target in WAITS:
            continue
        for own in _due(waits, _names(step)):
            found += own
            waits.remove(own)
        found.append(step)
    return [*found, *(wait for own in waits for wait in own)]


def _waits(steps: Sequence[Step]) -> list[list[Call]]:
    """The waits, in order, with those for one collective together."""
    started: dict[str, int] = {}
    found: dict[object, list[Call]] = {}
    for k, step in enumerate(steps):
        if isinstance(step, Call) and step.target in STARTS:
            started |= {r.name: k for r in step.results if r}
        elif isinstance(step, Call) and step.target in WAITS:
            found.setdefault(_start(step, started, k), []).append(step)
    return list(found.values())


def _start(wait: Call, started: Mapping[str, int], otherwise: int) -> int:
    """The place of the collective that a wait is for; another number if it is in another region."""
    return next((started[name] for name in wait.reads() if name in started), otherwise)


def _due(waits: Sequence[list[Call]], wanted: set[str]) -> list[list[Call]]:
    """The waits whose results are wanted, in order, with those whose results they read."""
    due: list[list[Call]] = []
    for own in reversed(waits):
        if any(r.name in wanted for wait in own for r in wait.results if r):
            due.append(own)
            wanted = wanted.union(*(wait.reads() for wait in own))
    return due[::-1]


def _names(step: Step) -> set[str]:
    """What a step reads."""
    return set(reads(step)) if isinstance(step, Call) else {name for d in step.definitions for name in reads(d)}
