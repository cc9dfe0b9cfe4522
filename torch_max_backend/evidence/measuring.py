"""One case of a study: every contender is started, warmed up and checked, and then all are timed in turns."""

from __future__ import annotations

import dataclasses
import gc
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch_max_backend.base.errors import EvidenceError
from torch_max_backend.compile.pending import wait_for_compiles
from torch_max_backend.diagnostics.report import GraphReport, reports
from torch_max_backend.evidence.cases import Case
from torch_max_backend.evidence.contenders import OURS, REFERENCE, base_of, compiled, stepping, subject
from torch_max_backend.evidence.outputs import compared, flattened, with_overrides
from torch_max_backend.evidence.peak_memory import NO_PROCESS, in_a_process, of_the_allocator
from torch_max_backend.evidence.settings import Settings
from torch_max_backend.evidence.study import Row
from torch_max_backend.measurement.caches import flush_of
from torch_max_backend.measurement.clocks import Call, CpuClock, CudaClock, clock_for, on_device
from torch_max_backend.measurement.nvml import card_of
from torch_max_backend.measurement.turns import interleave, shuffled
from torch_max_backend.measurement.warm_up import SAMPLE_S, warm_up

LONGEST = 600
"""Characters of an error that are kept: its end."""
ENERGY_S = 1.0
"""Seconds of calls whose energy is measured: cards count it some ten times a second."""
At = Callable[[str], None]


@dataclasses.dataclass
class Started:
    """A contender that runs: ``fresh`` makes a call with arguments that nothing has written into."""

    row: Row
    call: Call
    fresh: Callable[[], Call]


def measure_case(case: Case, settings: Settings, at: At) -> list[Row]:
    """A row for each contender, in their order. Eager always runs, since the others are held against it."""
    torch._dynamo.reset()
    gc.collect()
    with torch.set_grad_enabled(settings.training), on_device(settings.device):
        clock = clock_for(settings.device, settings.sample_s, flush_of(settings.device) if settings.cold else None)
        rows = {name: Row(case.name, name) for name in (*settings.contenders, REFERENCE)}
        started: dict[str, Started] = {}
        for name in (REFERENCE, *(n for n in settings.contenders if n != REFERENCE)):
            at(f"{case.name}: {name} starts")
            found = _start(case, rows[name], settings, clock)
            if found is not None:
                started[name] = found
        if REFERENCE not in started:
            raise EvidenceError(f"case {case.name} does not run in eager: {rows[REFERENCE].problem}")
        _check(started, settings)
        _time({n: s for n, s in started.items() if n in settings.contenders}, settings, clock, at)
    if settings.memory and settings.device == "cpu":
        for name in settings.contenders:
            at(f"{case.name}: {name} in a process of its own")
            rows[name].memory = in_a_process(case, name, settings.training) if case.origin else NO_PROCESS
    return [rows[name] for name in settings.contenders]


def _start(case: Case, row: Row, settings: Settings, clock: CpuClock | CudaClock) -> Started | None:
    """A contender up to the point where its time has settled; None if it raises, and then the row says what."""
    before = len(reports())
    try:
        function, note = subject(row.contender, case.function)
        parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
        ready = compiled(row.contender, function)

        def fresh() -> Call:
            return stepping(row.contender, case.caller(ready, parameters, settings.training))

        call = fresh()
        begin = time.perf_counter()
        call(0)
        clock.synchronize()
        row.first_call_s = time.perf_counter() - begin
        if base_of(row.contender) in OURS:
            wait_for_compiles()
        row.notes += [note] if note else []
        row.warm_up = dataclasses.asdict(warm_up(_sampling(call, clock), settings.warm_up_s))
        if settings.device.startswith("cuda"):
            row.memory = of_the_allocator(call, settings.device)
    except EvidenceError:
        raise
    except Exception as error:  # a contender may raise anything, and the others go on
        row.problem = _shortened(f"{type(error).__name__}: {error}")
        return None
    finally:
        if base_of(row.contender) in OURS:
            row.notes += _told(reports()[before:])
    return Started(row, call, fresh)


def _sampling(call: Call, clock: CpuClock | CudaClock) -> Callable[[], float]:
    """Loops of calls that take some milliseconds, or one call."""
    count = max(1, min(100, round(SAMPLE_S / max(clock.loop(call, 0, 3), 1e-9))))
    return lambda: clock.loop(call, 0, count)


def _told(found: list[GraphReport]) -> list[str]:
    """What the backend reports of its graphs."""
    islands = sorted({island.op for report in found for island in report.islands})
    notes = [f"{len(found)} graph(s), {sum(r.launches for r in found)} kernel launches"]
    return notes + ([f"torch ran {', '.join(islands)} (islands)"] if islands else [])


def _check(started: dict[str, Started], settings: Settings) -> None:
    """Hold every contender's results against eager's."""
    tolerances = with_overrides(settings.tolerance)
    wanted = _results(started[REFERENCE], settings)
    for entry in started.values():
        found = compared(_results(entry, settings), wanted, tolerances)
        entry.row.difference = dataclasses.asdict(found)
        entry.row.problem = f"wrong results: {_shortened(found.problem)}" if found.problem else ""


def _results(entry: Started, settings: Settings) -> list[Any]:
    """What one call gives, with random numbers from the study's seed; the process's generators are as before."""
    with torch.random.fork_rng([settings.device] if settings.device.startswith("cuda") else []):
        torch.manual_seed(settings.seed)
        return flattened(entry.fresh()(0))


def _time(started: dict[str, Started], settings: Settings, clock: CpuClock | CudaClock, at: At) -> None:
    before = _graphs()
    calls = {name: entry.call for name, entry in started.items()}
    at("in turns: " + ", ".join(calls))
    times, errors = interleave(calls, clock, settings.rounds, order=shuffled(settings.seed))
    again = _graphs() - before
    for name, entry in started.items():
        row = entry.row
        if name in errors:
            row.problem = _shortened(errors[name])
            continue
        row.wall, row.device, row.host = times[name].wall, times[name].device, times[name].host
        if again and base_of(name) != REFERENCE:
            row.problem = row.problem or f"{again} graph(s) were compiled while times were taken"
        row.energy_j = _energy(entry.call, settings.device, clock)


def _graphs() -> int:
    """How many graphs Dynamo has compiled in this process."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])


def _energy(call: Call, device: str, clock: CpuClock | CudaClock) -> float | None:
    """Joules a call, where the card tells what it has used."""
    card = card_of(device) if device.startswith("cuda") else None
    before = card.energy() if card is not None else None
    if card is None or before is None:
        return None
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < ENERGY_S:
        call(count)
        clock.synchronize()
        count += 1
    after = card.energy()
    return None if after is None else (after - before) / count


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else "…" + text[-LONGEST:]
