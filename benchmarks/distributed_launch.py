"""Groups of ranks, started by torchrun: side by side while they compile, and one at a time while they are timed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_max_backend.compile.cache.store import Store

ROOT = Path(__file__).resolve().parents[1]
LOOK_S = 0.1
END_S = 20.0
"""How long ranks that shall end may take."""


def torchrun(ranks: int, module: str, *arguments: str, flags: Sequence[str] = ()) -> list[str]:
    """The command that runs a module on so many ranks of this machine."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *flags]
    return [*start, "-m", module, *arguments]


def environment(store: Path, share: int) -> dict[str, str]:
    """What ranks see that share a store, and the processors with others.

    Args:
        share: How many processes share the processors.
    """
    threads = str(max(1, (os.cpu_count() or 1) // share))
    own = {
        "OMP_NUM_THREADS": threads,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "TORCHINDUCTOR_CACHE_DIR": f"{store}-of-torch",
        "TORCHINDUCTOR_COMPILE_THREADS": threads,
        "TORCH_MAX_BACKEND_CACHE_DIR": str(store),
    }
    return {**os.environ, **own}


def end(*processes: subprocess.Popen[str]) -> None:
    """End groups that torchrun leads: at first kindly, since their ranks are in sessions of their own."""
    until = time.monotonic() + END_S
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(LOOK_S, until - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass
class Group:
    """The ranks of a case. ``folder`` is what it shares with others: stores, who is ready, and who may go on."""

    name: str
    folder: Path
    task: dict[str, Any]
    ranks: int
    at_once: int
    process: subprocess.Popen[str] = field(init=False)
    begin: float = field(init=False, default_factory=time.monotonic)
    ready_s: float | None = None
    is_late: bool = False

    def __post_init__(self) -> None:
        for kind in ("ready", "go", "answer", "out"):
            self.file(kind).unlink(missing_ok=True)
        task = {**self.task, "name": self.name, "folder": str(self.folder), "answer": str(self.file("answer"))}
        with self.file("out").open("w") as out:
            self.process = subprocess.Popen(
                torchrun(self.ranks, "benchmarks.distributed_worker", json.dumps(task)),
                cwd=ROOT,
                env=environment(self.store, self.ranks * self.at_once),
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    @property
    def store(self) -> Path:
        """What this backend compiles is kept there, for every run with this folder."""
        return self.folder / self.name

    def file(self, kind: str) -> Path:
        """One of the files by which this process and the ranks know of each other."""
        return self.folder / f"{self.name}.{kind}"

    def is_over(self) -> bool:
        """Whether its ranks have ended."""
        return self.process.poll() is not None

    def is_compiling(self) -> bool:
        """Whether its ranks neither wait for their turn nor have ended."""
        if self.ready_s is None and self.file("ready").exists():
            self.ready_s = time.monotonic() - self.begin
        return self.ready_s is None and not self.is_over()

    def answer(self) -> dict[str, Any]:
        """What rank 0 tells and its store says, or why there is nothing."""
        keys = [e["key"] for e in Store(self.store).lookups() if str(e["answer"]).startswith("miss")]
        counted = {"compiles": len(keys), "twice": len(keys) - len(set(keys)), "ready_s": self.ready_s}
        if self.process.returncode == 0:
            return {**counted, **json.loads(self.file("answer").read_text())}
        lines = self.file("out").read_text(errors="replace").splitlines()
        said_by_ranks = [line for line in lines if line.startswith("[rank") and ":W" not in line]
        why = "took too long" if self.is_late else "\n".join(said_by_ranks or lines)[-4000:]
        return {**counted, "error": why or f"status {self.process.returncode}"}


def side_by_side(tasks: dict[str, dict[str, Any]], folder: Path, ranks: int, limit_s: float) -> Iterator[Group]:
    """Start a group for each task at once; yield each after its turn, in which the others do nothing.

    A group whose ranks still compile at three quarters of the limit gets no turn, nor does one that fails.
    """
    groups = [Group(name, folder, task, ranks, len(tasks)) for name, task in tasks.items()]
    until = time.monotonic() + limit_s
    try:
        while sum(g.is_compiling() for g in groups) and time.monotonic() < until - limit_s / 4:
            time.sleep(LOOK_S)
        end_late([g for g in groups if g.is_compiling()])
        for group in groups:
            group.file("go").touch()
            with contextlib.suppress(subprocess.TimeoutExpired):
                group.process.wait(max(LOOK_S, until - time.monotonic()))
            end_late([group])
            yield group
    finally:
        end_late(groups)


def end_late(groups: Sequence[Group]) -> None:
    """End those that are not over."""
    late = [group for group in groups if not group.is_over()]
    for group in late:
        group.is_late = True
    end(*(group.process for group in late))
