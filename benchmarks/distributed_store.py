"""A thousand ranks at one store: what it sees when all of them want the same libraries, and how long they wait.

    python -m benchmarks.distributed_store                       # 1,000 readers, 4 libraries
    python -m benchmarks.distributed_store --readers 64 --processes 4 --libraries 2 --seconds 0.2

Real: readers run the package's own code on a real folder (`LibraryJob.done`: look, take the lock or wait, look again,
compile or load) and compare as ranks do before a collective (`runtime/agreement.py`) through torch's own `TCPStore`.
Simulated: readers are threads of some processes of one machine, a compile sleeps and gives bytes of chance, and the
folder is this machine's own, where a cluster has a network between. So counts (compiles, reads, tries to lock, bytes,
requests) are those of as many ranks, and seconds are those of this machine.

- `cold`: all start at once with an empty store. `slowest` is what the last one waited beyond the compiles.
- `warm`: the same with what the first run left.
- `killed`: the process with the reader that compiles first is killed within its compile. Others take over.
- `agree`: each compares a program's collectives with the others', on as many connections.

A row passes if each library was compiled once (in `killed`, one of them once more), every reader of a process that
lives has the bytes that were compiled, and nothing is locked at the end.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
import typer
from filelock import FileLock
from rich.console import Console
from rich.table import Table

from torch_max_backend.compile.cache.store import FORMAT, Entry, Store
from torch_max_backend.compile.program_libraries import LibraryJob
from torch_max_backend.compile.stats import CompileStats
from torch_max_backend.runtime.agreement import _Place

LIMIT_S = 300.0
"""Readers that take longer hang."""


@dataclass(frozen=True)
class Load:
    """How much there is to do: libraries of so many bytes, of which each takes so many seconds to compile."""

    readers: int
    processes: int
    libraries: int
    size: int
    seconds: float

    @property
    def threads(self) -> int:
        """Readers of a process."""
        return self.readers // self.processes


@dataclass
class Seen:
    """What readers did: counts, and for each the seconds until it had all."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


Prepared = Callable[[int, Seen], Callable[[], None]]
"""Gives what a reader, by its number, does once all begin."""


COUNTING = threading.Lock()


def count(counts: Counter[str], **more: int) -> None:
    """Add to counts that all threads of a process have."""
    with COUNTING:
        counts.update(more)


class CountingStore(Store):
    """A store that counts what is asked of its folder."""

    def __init__(self, folder: Path, counts: Counter[str]) -> None:
        super().__init__(folder)
        self.counts = counts

    def get(self, key: str) -> Entry | None:
        entry = super().get(key)
        count(self.counts, looks=1, bytes=entry.blob.stat().st_size if entry else 0)
        return entry


def content(number: int, size: int) -> bytes:
    """The bytes of a library."""
    return hashlib.shake_128(str(number).encode()).digest(size)


def count_locks(counts: Counter[str]) -> None:
    """Count how often this process tries to take a lock."""
    acquire = FileLock._acquire

    def counted(self: FileLock) -> None:
        count(counts, tries=1)
        acquire(self)

    FileLock._acquire = counted  # type: ignore[method-assign]


def reader(folder: Path, load: Load, seen: Seen, is_deadly: bool) -> Callable[[], None]:
    """What a rank does with the libraries of its programs, in order."""
    store = CountingStore(folder / "store", seen.counts)

    def build(number: int) -> bytes:
        if is_deadly and not (folder / "died").exists():
            (folder / "died").touch()
            time.sleep(load.seconds / 2)
            os.kill(os.getpid(), signal.SIGKILL)
        count(seen.counts, compiles=1)
        time.sleep(load.seconds)
        return content(number, load.size)

    def read() -> None:
        for number in range(load.libraries):
            made_of, stats = {"source": str(number)}, CompileStats()
            path, _ = LibraryJob(made_of, "program", functools.partial(build, number), store, kernels=1).done(stats)
            if path.read_bytes() != content(number, load.size):
                seen.faults.append(f"library {number} has other bytes")

    return read


CONNECTING = multiprocessing.get_context("fork").Lock()
"""Connections are made one by one: a host is slow to answer hundreds at once."""


def agreeing(port: int, rank: int, load: Load) -> Callable[[], None]:
    """What a rank does before the first call of a program with collectives, on the connection that it has."""
    with CONNECTING:
        store = dist.TCPStore("127.0.0.1", port, load.readers + 1, False, timedelta(seconds=LIMIT_S), False)
    place = _Place("0", store, rank, load.readers, 0)

    def agree() -> None:
        place.arrive(json.dumps(["torch", "torch-max-backend", "all_reduce([1024], sum) of f32"]))
        place.wait()
        if not store.check([f"{place.key}/verdict"]):
            raise RuntimeError(f"rank {rank} lost patience")

    return agree


def process(prepared: Prepared, first: int, load: Load, ready: Any, begin: Any, answers: Any) -> None:
    """Run the readers of one process, from the moment on at which all begin."""
    seen = Seen()
    count_locks(seen.counts)
    works = [prepared(first + k, seen) for k in range(load.threads)]

    def run(number: int, work: Callable[[], None]) -> None:
        begin.wait()
        start = time.monotonic()
        try:
            work()
        except Exception as error:
            seen.faults.append(f"reader {number}: {error!r}")
        seen.seconds.append(time.monotonic() - start)

    threads = [threading.Thread(target=run, args=(first + k, work)) for k, work in enumerate(works)]
    for thread in threads:
        thread.start()
    ready.put(first)
    for thread in threads:
        thread.join()
    answers.put(seen)


def together(prepared: Prepared, load: Load, dying: int = 0) -> Seen:
    """Run all readers; what they saw, in sum.

    Args:
        dying: How many processes may be killed.
    """
    forks = multiprocessing.get_context("fork")
    begin, ready, answers = forks.Event(), forks.Queue(), forks.Queue()
    shared = (load, ready, begin, answers)
    children = [
        forks.Process(target=process, args=(prepared, k * load.threads, *shared)) for k in range(load.processes)
    ]
    for child in children:
        child.start()
    for _ in children:
        ready.get(timeout=LIMIT_S)
    begin.set()
    whole, until = Seen(), time.monotonic() + LIMIT_S
    for _ in range(len(children) - dying):
        seen = answers.get(timeout=max(0.1, until - time.monotonic()))
        whole.counts += seen.counts
        whole.seconds += seen.seconds
        whole.faults += seen.faults
    for child in children:
        child.join(max(0.1, until - time.monotonic()))
    return whole


def judged(seen: Seen, compiles: int, readers: int, store: Path) -> list[str]:
    """What is wrong; nothing, if all went well."""
    faults = list(seen.faults)
    if seen.counts["compiles"] != compiles:
        faults.append(f"{seen.counts['compiles']} compiles in place of {compiles}")
    if len(seen.seconds) != readers:
        faults.append(f"{len(seen.seconds)} of {readers} readers came to an end")
    for path in (store / FORMAT / "locks").glob("*.lock"):
        with FileLock(path, timeout=0):  # raises if it is held
            pass
    return faults


def attempts(folder: Path, load: Load) -> dict[str, Callable[[], tuple[Seen, list[str], float]]]:
    """The rows by name: what readers saw, what was wrong, and the seconds that cannot be saved."""
    store = folder / "store"

    def cold() -> tuple[Seen, list[str], float]:
        Store(store).clear()
        seen = together(lambda _, seen: reader(folder, load, seen, False), load)
        return seen, judged(seen, load.libraries, load.readers, store), load.libraries * load.seconds

    def warm() -> tuple[Seen, list[str], float]:
        seen = together(lambda _, seen: reader(folder, load, seen, False), load)
        return seen, judged(seen, 0, load.readers, store), 0.0

    def killed() -> tuple[Seen, list[str], float]:
        Store(store).clear()
        seen = together(lambda _, seen: reader(folder, load, seen, True), load, dying=1)
        wanted = (load.libraries + 0.5) * load.seconds
        return seen, judged(seen, load.libraries, load.readers - load.threads, store), wanted

    def agree() -> tuple[Seen, list[str], float]:
        server = dist.TCPStore("127.0.0.1", 0, load.readers + 1, True, timedelta(seconds=LIMIT_S), False)
        seen = together(lambda rank, _: agreeing(server.port, rank, load), load)
        return seen, judged(seen, 0, load.readers, store), 0.0

    return {"cold": cold, "warm": warm, "killed": killed, "agree": agree}


def main(
    readers: int = typer.Option(1000, min=1, help="Ranks; a multiple of the processes."),
    processes: int = typer.Option(50, min=2, help="Processes whose threads they are."),
    libraries: int = typer.Option(4, min=1, help="That each rank needs: one for each program."),
    size: int = typer.Option(100_000, min=1, help="Bytes of a library."),
    seconds: float = typer.Option(5.0, help="That a compile takes."),
    only: list[str] = typer.Option([], help="Rows; all if none is given."),
) -> None:
    """Run all rows, print the table, and fail if one found a fault."""
    if readers % processes:
        raise typer.BadParameter(f"{readers} readers are no multiple of {processes} processes")
    load = Load(readers, processes, libraries, size, seconds)
    table = Table("row", "readers", "compiles", "looks", "tries to lock", "MB read", "seconds", "slowest", "faults")
    is_wrong = False
    with tempfile.TemporaryDirectory() as name:
        found = attempts(Path(name), load)
        for row in only or list(found):
            seen, faults, wanted = found[row]()
            is_wrong |= bool(faults)
            counts, last = seen.counts, max(seen.seconds, default=0.0)
            cells = [len(seen.seconds), counts["compiles"], counts["looks"], counts["tries"]]
            times = [f"{counts['bytes'] / 1e6:.0f}", f"{last:.2f}", f"{last - wanted:.2f}"]
            table.add_row(row, *(f"{n:,}" for n in cells), *times, str(len(faults)))
            for fault in itertools.islice(faults, 5):
                print(f"{row}: {fault}", file=sys.stderr)
    Console(width=120).print(table)
    if is_wrong:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
