"""Measures one case in this process: compiles every contender, checks its answers, and times them in turns."""

from __future__ import annotations

import functools
import gc
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.checking import differences, shape_problem, what_is_wrong
from benchmarks.suites import Case
from benchmarks.work import Call, Work, build
from torch_max_backend.evidence.contenders import OURS, REFERENCE, compiled, stepping
from torch_max_backend.measurement.clocks import clock_for
from torch_max_backend.measurement.turns import interleave

DYNAMO = "torch._dynamo"
"""Imported by the first contender that compiles: it takes as long as torch itself."""
At = Callable[[str], None]
FIRST_CALLS = 3
"""Calls until a contender is settled: recorded graphs are warmed up, recorded, and replayed."""
LONGEST = 600
"""Characters of an error that are kept: its end."""


@dataclass
class Entry:
    """What is found out about one contender. ``problem`` is empty or why it cannot count."""

    call: Call | None = None
    problem: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Facts and problem."""
        return {**self.facts, **({"problem": self.problem} if self.problem else {})}


@functools.cache
def prepare() -> None:
    """Settings of a process that compiles."""
    warnings.filterwarnings("ignore")
    torch._dynamo.config.recompile_limit = 64
    # Choices between configurations of a kernel that were measured while other processes used the device are not kept.
    import torch._inductor.config as inductor

    inductor.autotune_local_cache = False


def compile_case(case: Case, contender: str) -> dict[str, Any]:
    """Build a case and make a contender's first call, so that its caches are filled."""
    _forget()
    with torch.no_grad():
        work = build(case, to_time=False)
        entry = _start(work, contender, case.device)
    return entry.as_json()


def time_case(case: Case, contenders: list[str], rounds: int, sample_s: float, at: At) -> dict[str, Any]:
    """Everything that a record holds of one case.

    Args:
        contenders: Eager is always run, because the others are checked by it, but only timed where it is named.
        at: Told which contender runs next, so that a crash can be put down to it.
    """
    _forget()
    with torch.no_grad():
        at("")
        work = build(case)
        clock = clock_for(case.device, sample_s)
        entries = {}
        for name in dict.fromkeys([REFERENCE, *contenders]):
            at(name)
            entries[name] = _start(work, name, case.device)
        at("")
        _check(case, work, entries, at)
        calls = {n: e.call for n, e in entries.items() if n in contenders and e.call is not None}
        before = _graphs()
        times, errors = interleave(calls, clock, rounds, at)
        at("")
        again = _graphs() - before
    for name, error in errors.items():
        entries[name].problem = _shortened(error)
    for name, found in times.items():
        entries[name].facts["times"] = found.as_json()
        if again and name != REFERENCE and not entries[name].problem:
            entries[name].problem = f"{again} graph(s) were compiled while times were taken"
    return {
        "bytes": work.bytes_moved,
        "flops": work.flops,
        "sets": work.sets,
        "unit": work.unit,
        "units": work.units,
        "precision": work.precision,
        "contenders": {name: entries[name].as_json() for name in contenders},
    }


def _forget() -> None:
    """Drop what the last case compiled."""
    if DYNAMO in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _graphs() -> int:
    """How many graphs Dynamo has compiled in this process."""
    if DYNAMO not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _start(work: Work, name: str, device: str) -> Entry:
    """A contender up to the point where it is settled: seconds of the first call, memory, graphs, islands."""
    entry = Entry()
    before = _reports()
    if name != REFERENCE:
        prepare()
    try:
        call = stepping(name, work.caller(compiled(name, work.function)))
        memory = Memory(device)
        begin = time.perf_counter()
        call(0)
        _synchronize(device)
        entry.facts["first_call_s"] = time.perf_counter() - begin
        for number in range(1, FIRST_CALLS):
            call(number)
        memory.settled()
        call(FIRST_CALLS)
        entry.facts |= memory.found()
        entry.call = call
    except Exception as error:
        traceback.print_exc()
        entry.problem = _shortened(f"{type(error).__name__}: {error}")
    if name in OURS:
        _add_reports(entry, _reports()[len(before) :])
    return entry


def _add_reports(entry: Entry, found: list[Any]) -> None:
    """What the backend says of its graphs; an island is a problem."""
    islands = sorted({f"{island.op}: {island.reason}" for report in found for island in report.islands})
    entry.facts["graphs"] = len(found)
    entry.facts["regions"] = sum(report.stats.regions for report in found)
    entry.facts["from_cache"] = sum(report.stats.hits for report in found)
    if islands:
        entry.facts["islands"] = islands
    if entry.problem:
        return
    if islands:
        entry.problem = _shortened(f"torch runs {'; '.join(islands)}")
    elif not found:
        entry.problem = "the backend reports no graph"


def _reports() -> list[Any]:
    report = sys.modules.get("torch_max_backend.diagnostics.report")
    return report.reports() if report is not None else []


def _check(case: Case, work: Work, entries: dict[str, Entry], at: At) -> None:
    """Compare every answer with the exact one; a wrong one is a problem."""
    answers = {}
    for name, entry in entries.items():
        if entry.call is None:
            continue
        at(name)
        try:
            answers[name] = work.answers(_unstepped(name, entry.call))
        except Exception as error:
            entry.problem = _shortened(f"{type(error).__name__}: {error}")
            entry.call = None
    at("")
    if REFERENCE not in answers:
        raise RuntimeError(f"eager does not run: {entries[REFERENCE].problem}")
    for name in list(answers):
        if problem := shape_problem(answers[name], answers[REFERENCE]):
            entries[name].problem = entries[name].problem or problem
            del answers[name]
    found = {name: difference.as_json() for name, difference in differences(answers, work.exact()).items()}
    for name, difference in found.items():
        entries[name].facts["difference"] = difference
        problem = what_is_wrong(difference, found[REFERENCE], getattr(torch, case.dtype))
        entries[name].problem = entries[name].problem or problem


def _unstepped(name: str, call: Call) -> Call:
    """What a replaying contender's call wraps, which may have methods of its own; a step begins here."""
    inner = getattr(call, "__wrapped__", None)
    if inner is None:
        return call
    torch.compiler.cudagraph_mark_step_begin()
    return inner


@dataclass
class Memory:
    """Device memory of a contender, in bytes; nothing is measured on the CPU.

    ``held`` is what its first calls took and keep, as the driver sees it: graphs' pools, code, and memory that MAX
    holds, of which torch knows nothing. ``torch_peak`` is what torch allocates beyond that in one more call. Both
    leave out weights and inputs. In a process that has measured another case, pools may have been there already.
    """

    device: str
    free: int = 0
    held: int = 0
    allocated: int = 0

    def __post_init__(self) -> None:
        if self.on_gpu:
            self.free = self._free()

    @property
    def on_gpu(self) -> bool:
        """Whether there is anything to measure."""
        return self.device.startswith("cuda")

    def _free(self) -> int:
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.device)[0]

    def settled(self) -> None:
        """The contender has everything it keeps."""
        if self.on_gpu:
            self.held = self.free - self._free()
            self.allocated = torch.cuda.memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)

    def found(self) -> dict[str, Any]:
        """The record's part."""
        if not self.on_gpu:
            return {}
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated(self.device) - self.allocated
        return {"memory": {"held": self.held, "torch_peak": peak, "peak": max(0, self.held) + peak}}


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else "…" + text[-LONGEST:]
