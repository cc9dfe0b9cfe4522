"""The benchmark runner: compiles and times the suites of ``suites.yaml``, and keeps records.

    python -m benchmarks.run --list
    python -m benchmarks.run cpu-ops --only softmax
    python -m benchmarks.run memory models --save benchmarks/records/h200.json --resume
    python -m benchmarks.run cpu-ops --compare benchmarks/records/cpu.json --fail-on-regression 10

Run it from a clone. It works in two phases. First all contenders of all cases are compiled by processes side by side,
which fills the caches of Inductor and of this backend; then the cases are timed one after the other, each with all its
contenders in one process, taking turns. Contenders that choose kernels by measuring get the machine to themselves for
that, between the phases. A result that is wrong, or that torch computed in part (an island), is marked and counts for
nothing. What the numbers mean is in docs/performance.md.
"""

from __future__ import annotations

import enum
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress

from benchmarks import record as records
from benchmarks.suites import FILE, Case, Suite, SuiteError, choose, load
from benchmarks.tables import print_changes, print_suite, print_summary
from benchmarks.verdict import compare
from benchmarks.workers import Caches, Worker, WorkerFailed, side_by_side
from torch_max_backend.evidence.contenders import REFERENCE, SETTINGS, TUNING

CACHES = Path(tempfile.gettempdir()) / "torch-max-backend-benchmarks"
NOT_COMPILED = "not compiled: "
"""How the problem of a contender begins whose first call failed; it is not tried again when cases are timed."""
COMPILE_SHARE = 0.6
"""Part of a limited time after which compiling ends, so that what is compiled can be timed."""


class Phase(enum.StrEnum):
    """What to do."""

    compile = "compile"
    time = "time"
    both = "both"


@dataclass
class Run:
    """One run over some suites: fills a record, case by case."""

    chosen: list[tuple[Suite, list[Case]]]
    record: records.Record
    caches: Caches
    progress: Progress
    console: Console
    logs: Path
    jobs: int = 1
    contenders: tuple[str, ...] = ()
    rounds: int | None = None
    case_seconds: float = 600.0
    limit: float | None = None
    save_to: Path | None = None
    begin: float = field(default_factory=time.monotonic)
    skipped: set[tuple[str, str]] = field(default_factory=set)
    """Cases, as (suite, case), some of whose contenders were not compiled before compiling had to end."""

    def contenders_of(self, suite: Suite) -> list[str]:
        """The suite's contenders, of these the ones asked for; asked for ones that it does not have are added."""
        return list(self.contenders or suite.contenders)

    def cases(self) -> Iterator[tuple[Suite, Case]]:
        """What is not in the record yet."""
        for suite, cases in self.chosen:
            for case in cases:
                if not records.is_complete(self.record, suite.name, case.name, self.contenders_of(suite)):
                    yield suite, case

    def until(self, share: float = 1.0) -> float:
        """The latest end of a task that starts now."""
        end = time.monotonic() + self.case_seconds
        return end if self.limit is None else min(end, self.begin + share * self.limit)

    def is_over(self, share: float = 1.0) -> bool:
        """Whether the limit, or a share of it, has passed."""
        return self.limit is not None and time.monotonic() >= self.begin + share * self.limit

    def row(self, suite: Suite, case: Case) -> records.Record:
        """The record's row of a case."""
        return records.row_for(self.record, suite, case.name, case.what, case.parameters)

    def save(self) -> None:
        """Write the record, if it shall be kept."""
        if self.save_to is not None and self.record["rows"]:
            records.save(self.record, self.save_to)

    # -- compiling ---------------------------------------------------------------------------------------------
    def compile(self) -> None:
        """Fill the caches."""
        share = COMPILE_SHARE
        tasks: list[dict[str, Any]] = [
            {"task": "compile", "case": case.as_json(), "contenders": [name]}
            for suite, case in self.cases()
            for name in self.contenders_of(suite)
            if name != REFERENCE
        ]
        tasks = [t for t in tasks if not self._was_compiled(t)]
        if not tasks:
            return
        begin = time.monotonic()
        self.record["compiling"] = {
            "caches": "empty" if self.caches.are_empty() else "used before",
            "side_by_side": self.jobs,
        }
        self.skipped = {(t["case"]["suite"], t["case"]["name"]) for t in tasks}
        left = {key: sum((t["case"]["suite"], t["case"]["name"]) == key for t in tasks) for key in self.skipped}
        tuned = [t for t in tasks if t["contenders"][0] in TUNING]
        bar = self.progress.add_task(f"compile, {self.jobs} side by side", total=len(tasks) + len(tuned))

        def done(task: dict[str, Any], result: Any) -> None:
            self.progress.advance(bar)
            if isinstance(result, WorkerFailed) and self.is_over(share):
                return  # ended by us: nothing is known about it
            self._compiled(task, result)
            key = task["case"]["suite"], task["case"]["name"]
            left[key] -= 1
            if not left[key]:
                self.skipped.discard(key)

        def settled(task: dict[str, Any], result: Any) -> None:
            self.progress.advance(bar)
            if isinstance(result, WorkerFailed) and not self.is_over(share):
                self._compiled(task, result)

        for scratch in (False, True):
            some = [t for t in tasks if (t["contenders"][0] in TUNING) is scratch]
            count = min(self.jobs, len(some))
            workers = [self._worker(f"compile{i}", self._compiling(scratch)) for i in range(count)]
            side_by_side(some, workers, lambda: self.until(share), done)
        if tuned:
            side_by_side(tuned, [self._worker("tune", self.caches.environment())], lambda: self.until(share), settled)
        self.progress.remove_task(bar)
        self.save()
        spent = time.monotonic() - begin
        text = f"{len(tasks)} compiles in {spent:.0f} s, {self.jobs} side by side"
        self.console.print(text + (f"; {len(self.skipped)} case(s) were not finished" if self.skipped else ""))

    def _was_compiled(self, task: dict[str, Any]) -> bool:
        return any(
            "compile_s" in row["contenders"].get(task["contenders"][0], {}) and not self.caches.are_empty()
            for row in self.record["rows"]
            if (row["suite"], row["case"]) == (task["case"]["suite"], task["case"]["name"])
        )

    def _compiling(self, scratch: bool) -> dict[str, str]:
        """Processes that compile side by side share the processors."""
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
        return self.caches.environment(scratch) | {
            "TORCH_MAX_BACKEND_COMPILE_WORKERS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": threads,
        }

    def _compiled(self, task: dict[str, Any], result: Any) -> None:
        suite = next(s for s, _ in self.chosen if s.name == task["case"]["suite"])
        entry = self.row(suite, Case(**task["case"]))["contenders"].setdefault(task["contenders"][0], {})
        if isinstance(result, WorkerFailed):
            entry["problem"] = f"{NOT_COMPILED}{result}"
        elif "first_call_s" not in result:
            entry["problem"] = f"{NOT_COMPILED}{result['problem']}"
        else:
            entry["compile_s"] = result["first_call_s"]

    # -- timing ------------------------------------------------------------------------------------------------
    def time(self) -> None:
        """Time the cases, one after the other."""
        todo = [(s, c) for s, c in self.cases() if (s.name, c.name) not in self.skipped]
        bar = self.progress.add_task("time", total=len(todo))
        worker, last = None, ""
        try:
            for suite, case in todo:
                if self.is_over():
                    break
                if worker is not None and (suite.fresh_process or suite.name != last):
                    worker.stop()
                    worker = None
                worker, last = worker or self._worker("time", self.caches.environment()), suite.name
                self.progress.update(bar, description=f"time {case.name}")
                self._ceilings(worker, case.device)
                self._time(worker, suite, case)
                self.progress.advance(bar)
                self.save()
        finally:
            if worker is not None:
                worker.stop()
            self.progress.remove_task(bar)

    def _ceilings(self, worker: Worker, device: str) -> None:
        if device not in self.record["devices"]:
            try:
                found = worker.run({"task": "ceilings", "device": device}, self.until())
            except WorkerFailed as error:
                found = {"problem": str(error)}
            self.record["devices"][device] = found

    def _time(self, worker: Worker, suite: Suite, case: Case) -> None:
        """Time a case; a contender that ends the process is noted, and the others begin again without it."""
        row = self.row(suite, case)
        entries = row["contenders"]
        names = [n for n in self.contenders_of(suite) if not _was_refused(entries.get(n, {}))]
        while names:
            task = {
                "task": "time",
                "case": case.as_json(),
                "contenders": names,
                "rounds": self.rounds or suite.rounds,
                "sample_s": suite.sample_ms / 1e3,
            }
            try:
                found = worker.run(task, self.until())
            except WorkerFailed as error:
                if self.is_over():
                    return
                blamed = [error.at] if error.at in names else names
                for name in blamed:
                    entries.setdefault(name, {})["problem"] = str(error)
                names = [n for n in names if n not in blamed and error.at != REFERENCE]
                continue
            timed = found.pop("contenders")
            for name in [n for n in entries if n not in timed and not entries[n].get("problem")]:
                del entries[name]  # from an earlier run: what stands in a row was measured in turns
            for name, entry in timed.items():
                compiled = {k: v for k, v in entries.get(name, {}).items() if k == "compile_s"}
                entries[name] = compiled | entry
            row.update(found)
            return

    def _worker(self, name: str, environment: dict[str, str]) -> Worker:
        return Worker(environment, self.logs / f"{name}.log")


def _was_refused(entry: records.Record) -> bool:
    return entry.get("problem", "").startswith(NOT_COMPILED)


def command() -> str:
    """This run as it can be repeated, without the places of this machine's files."""
    words = [w if "/" not in w or w.startswith("benchmarks/") else Path(w).name for w in sys.argv[1:]]
    return shlex.join(["python", "-m", "benchmarks.run", *words])


def main(
    suites: list[str] | None = typer.Argument(None, help="Names of suites; see --list."),
    list_suites: bool = typer.Option(False, "--list", help="List the suites and their cases."),
    only: list[str] = typer.Option(
        [], help="Cases of this name, or whose names have this part or match this pattern; repeatable."
    ),
    contenders: str = typer.Option("", help=f"Comma-separated, instead of the suites' own: {', '.join(SETTINGS)}."),
    phase: Phase = typer.Option(Phase.both, help="Compile all cases side by side, time them, or both."),
    jobs: int = typer.Option(max(1, (os.cpu_count() or 2) // 2), min=1, help="Processes that compile side by side."),
    rounds: int | None = typer.Option(None, min=1, help="Samples per contender, instead of the suites' own."),
    limit_seconds: float | None = typer.Option(None, help="Stop after this time, and keep what was measured."),
    case_seconds: float = typer.Option(600.0, help="Longest time for compiling or timing one case."),
    caches: Path = typer.Option(CACHES, help="Folder of all compile caches; compile times are cold if it is empty."),
    save: Path | None = typer.Option(None, help="Write the record to this file, after every case."),
    resume: bool = typer.Option(False, help="Continue the record in the file of --save: skip what it has."),
    compare_with: Path | None = typer.Option(None, "--compare", help="Show the changes since this record."),
    fail_on_regression: float | None = typer.Option(
        None, help="With --compare: exit with 1 if this backend is slower by more than this many per cent."
    ),
    brief: bool = typer.Option(False, help="Print a line per suite, and rows that do not count, but no tables."),
) -> None:
    """Compile, check and time suites, and print tables."""
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    names = tuple(n.strip() for n in contenders.split(",") if n.strip())
    try:
        if unknown := [n for n in names if n not in SETTINGS]:
            raise SuiteError(f"no contender is called {', '.join(unknown)}; there are {', '.join(SETTINGS)}")
        known = load(FILE)
        if list_suites or not suites:
            for suite in known.values():
                console.print(f"[bold]{suite.name}[/bold] ({suite.device}, {suite.dtype}): {suite.about}")
                console.print("  " + ", ".join(case.name for case in suite.cases), soft_wrap=True, markup=False)
            return
        if fail_on_regression is not None and compare_with is None:
            raise SuiteError("--fail-on-regression needs --compare")
        if resume and save is None:
            raise SuiteError("--resume needs --save")
        chosen = choose(known, suites, only)
        old = records.load(compare_with) if compare_with else None
        record = records.resume(save, command()) if resume and save else records.new(command())
    except (SuiteError, records.RecordError) as error:
        console.print(f"[red]{error}[/red]", soft_wrap=True)
        raise typer.Exit(2) from error

    with (
        tempfile.TemporaryDirectory(prefix="benchmarks-") as logs,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        run = Run(chosen, record, Caches(caches), progress, console, Path(logs), jobs, names)
        run.rounds, run.case_seconds, run.limit, run.save_to = rounds, case_seconds, limit_seconds, save
        try:
            if phase is not Phase.time:
                run.compile()
            if phase is not Phase.compile:
                run.time()
        except KeyboardInterrupt:
            console.print("interrupted; what was measured is kept")
        finally:
            run.save()
    left = sum(1 for _ in run.cases()) if phase is not Phase.compile else 0
    for suite, _ in chosen:
        print_suite(console, record, suite.name, brief)
    print_summary(console, record, [suite.name for suite, _ in chosen])
    if left:
        console.print(f"{left} case(s) were not measured: no time was left")
    if old is not None:
        changes = compare(record, old)
        if print_changes(console, changes, fail_on_regression):
            raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
