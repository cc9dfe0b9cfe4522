"""Attacks on the store of compiled regions: killed processes, broken disks, damaged files, many processes at once.

    python benchmarks/attack_store.py            # 200 kills while compiling and 200 while writing, about 20 minutes
    python benchmarks/attack_store.py --small    # what the tests run

Every attack runs real programs that compile a small function with this backend and compare its result with eager.
They are forked from one that has imported everything, so that a run takes seconds. A row of the table passes if no
answer was wrong, every process ended in time, none was left over, no lock was held afterwards, every entry in the
store could be read, and temporary files of dead processes were deleted.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
import typer
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import track
from rich.table import Table

from torch_max_backend import aten_functions, max_backend  # noqa: F401  (imported once, before any fork)
from torch_max_backend.compile import scratch_folder
from torch_max_backend.compile.cache.store import FORMAT, Record, Store

LIMIT_S = 240.0
"""A process that takes longer hangs."""
MARK = "ATTACK_MARK"


@dataclass
class Row:
    """What one attack came to."""

    attack: str
    runs: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    notes: str = ""


def program(factor: float, compile: str = "wait") -> None:
    """Compile a function and compare it with eager."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.cos() * factor + 1) * x

    x = torch.linspace(-1, 1, 37)
    options = {"fallback": "error", "compile": compile, "compile_workers": 1}
    compiled = torch.compile(function, backend="max_backend", options=options)
    torch.testing.assert_close(compiled(x), function(x))


def start(function: Callable[[], None], log: Path) -> int:
    """Run ``function`` in a forked child, with an exit status of 1 if it raises; returns the process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        function()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        from torch_max_backend.compile.worker_pool import close_pools

        close_pools()  # what the end of a program does
        os._exit(status)


def ended(child: int, seconds: float) -> int | None:
    """The exit status of a child, or ``None`` if it did not end in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return None


class Arena:
    """A store, a folder for temporary files, and what is checked after each attack."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.log = folder / "log"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.use(folder / "cache")
        os.environ.update({"TMPDIR": str(self.temporary), MARK: self.mark})
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "torch")
        os.environ["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"  # every run traces, looks up and compiles
        os.environ["MODULAR_MAX_CACHE_DIR"] = str(folder / "max")  # MAX's own cache makes most runs short
        tempfile.tempdir = str(self.temporary)

    def use(self, folder: Path) -> None:
        """Take another folder for the store."""
        self.store = Store(folder)
        os.environ["TORCH_MAX_BACKEND_CACHE_DIR"] = str(folder)

    def run(self, row: Row, function: Callable[[], None], status: int = 0) -> None:
        """Run a program to its end, which must be ``status``."""
        row.runs += 1
        self.log.unlink(missing_ok=True)
        child = start(function, self.log)
        found = ended(child, LIMIT_S)
        if found is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if found != status:
            row.faults.append("hang" if found is None else f"exit status {found}: {self.tail()}")

    def tail(self) -> str:
        """The end of what the last program printed."""
        return self.log.read_text(errors="replace").strip()[-600:] if self.log.exists() else ""

    def check(self, row: Row) -> None:
        """What must hold after every attack."""
        end = time.monotonic() + 5
        while left := self._processes():
            if time.monotonic() > end:
                row.faults.append(f"left over: processes {left}")
                for process in left:
                    os.kill(process, signal.SIGKILL)
                break
            time.sleep(0.02)
        for record in self.store.records():
            if self.store.get(record.key) is None:
                row.faults.append(f"an entry cannot be used: {record.key[:12]}")
        for path in (self.store.folder / FORMAT / "locks").glob("*.lock"):
            try:
                with FileLock(path, timeout=0):
                    pass
            except Timeout:
                row.faults.append(f"still locked: {path.name[:12]}")

    def sweep(self, row: Row) -> None:
        """Delete what dead processes left, as later ones do; nothing may stay."""
        files = self.store.remove_abandoned(-1.0)
        folders = scratch_folder.remove_abandoned(-1.0)
        row.notes += f"{files} files and {folders} folders of killed processes deleted later"
        left = [*(self.store.folder / FORMAT / "tmp").glob("*"), *self.temporary.glob(f"{scratch_folder.PREFIX}*")]
        row.faults += [f"left over: {path.name}" for path in left]

    def _processes(self) -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                process, environment = int(entry.name), (entry / "environ").read_bytes()
                if process != os.getpid() and f"{MARK}={self.mark}".encode() in environment:
                    found.append(process)
            except OSError:
                pass
        return found


# -- the attacks ---------------------------------------------------------------------------------------------------
def kill_compiles(arena: Arena, count: int, chance: random.Random, minutes: float) -> Row:
    """``kill -9`` at random moments between the start of a program and its end."""
    row, times = Row("kill -9 while compiling"), []
    for _ in range(2):
        arena.store.clear()
        begin = time.perf_counter()
        arena.run(row, lambda: program(2.0))
        times.append(time.perf_counter() - begin)
    outcomes: Counter[str] = Counter()
    end = time.monotonic() + 60 * minutes
    for _ in track(range(count), row.attack, console=Console(stderr=True)):
        if time.monotonic() > end:
            break
        arena.store.clear()
        child = start(lambda: program(2.0), arena.log)
        status = ended(child, chance.uniform(0, times[-1]))
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        elif status:
            row.faults.append(f"exit status {status}: {arena.tail()}")
        outcomes["had ended" if status is not None else "with an entry" if arena.store.records() else "before"] += 1
        row.runs += 1
        arena.check(row)
    arena.run(row, lambda: program(2.0))
    arena.check(row)
    row.notes = f"a run takes {times[-1]:.1f} s; " + ", ".join(f"{n} {what}" for what, n in outcomes.items()) + "; "
    arena.sweep(row)
    return row


def kill_writers(arena: Arena, count: int, chance: random.Random) -> Row:
    """``kill -9`` at random moments of a process that only writes entries and artifacts of a megabyte."""
    row, torn = Row("kill -9 while writing"), 0
    blobs = [chance.randbytes(1 << 20) for _ in range(8)]

    def write() -> None:
        for number in range(10_000):
            key = hashlib.sha256(str(number % 16).encode()).hexdigest()
            arena.store.put(blobs[number % 8] + bytes([number % 7]), {key: "g"}, {key: {"region": str(number)}})

    for _ in track(range(count), row.attack, console=Console(stderr=True)):
        arena.store.clear()
        child = start(write, arena.log)
        time.sleep(chance.uniform(0.0, 0.2))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        row.runs += 1
        torn += len(list((arena.store.folder / FORMAT / "tmp").glob("*")))
        arena.check(row)
    row.notes = f"{torn} half-written files seen; "
    arena.sweep(row)
    return row


def damage(arena: Arena, count: int, chance: random.Random) -> Row:
    """Truncated and bit-flipped entries and artifacts: each is a miss, or was not damaged in what counts."""
    row, outcomes = Row("truncated and bit-flipped files"), Counter[str]()
    arena.store.clear()
    arena.run(row, lambda: program(2.0))
    logging.getLogger("torch_max_backend").setLevel(logging.CRITICAL)
    for number in range(count):
        file, data, good = _broken(arena, number, chance)
        found = arena.store.get(good.key)
        outcomes["miss" if found is None else "the same"] += 1
        if found is not None and (found.sha, found.graph) != (good.sha, good.graph):
            row.faults.append(f"damage of {file.suffix} gave {found}")
        file.write_bytes(data)
        row.runs += 1
    for number in range(2):
        _, _, good = _broken(arena, number, chance)
        arena.run(row, lambda: program(2.0))
        if arena.store.get(good.key) is None:
            row.faults.append("the entry was not mended")
    logging.getLogger("torch_max_backend").setLevel(logging.NOTSET)
    row.notes = ", ".join(f"{n} {what}" for what, n in outcomes.items())
    arena.check(row)
    return row


def _broken(arena: Arena, number: int, chance: random.Random) -> tuple[Path, bytes, Record]:
    """Damage the artifact (even numbers) or the entry; gives the file, what it held, and the entry as it was."""
    (record,) = arena.store.records()
    file = arena.store._key_path(record.key) if number % 2 else arena.store.blob_path(record.sha)
    data = file.read_bytes()
    if number % 4 < 2:
        at = chance.randrange(len(data) * 8)
        broken = bytearray(data)
        broken[at // 8] ^= 1 << at % 8
    else:
        broken = bytearray(data[: chance.randrange(len(data))])
    file.write_bytes(broken)
    return file, data, record


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[bool]:
    """A file system of ``size`` at ``folder``; gives whether this machine lets us mount one."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    mounted = not subprocess.run(command, capture_output=True).returncode
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder], check=True)


def full_disk(arena: Arena, folder: Path, runs: int) -> Row:
    """A disk that is full at once, or after the first bytes."""
    row = Row("a full disk")

    def without_space() -> None:
        def write(self: Store, path: Path, data: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        Store._write = write  # type: ignore[method-assign]
        program(2.0)

    before = arena.store.folder
    with small_disk(folder, "16k") as mounted:
        arena.use(folder / "cache")
        row.notes = "a file system of 16 kB" if mounted else "injected ENOSPC: no file system can be mounted"
        for _ in range(runs):
            arena.run(row, (lambda: program(2.0)) if mounted else without_space)
            if "cannot be written" not in arena.tail():
                row.faults.append(f"no warning: {arena.tail()}")
        arena.check(row)
    arena.use(before)
    return row


def read_only(arena: Arena, folder: Path) -> Row:
    """A store that may only be read: what it has is used, what it lacks is compiled and not kept."""
    row, before = Row("a read-only folder"), arena.store.folder
    with small_disk(folder, "64m") as mounted:
        arena.use(folder / "cache")
        arena.run(row, lambda: program(2.0))
        entries = arena.store.usage()
        if mounted:
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
            row.notes = "a file system mounted read-only"
        elif os.geteuid():
            for path in [folder, *folder.rglob("*")]:
                path.chmod(0o500 if path.is_dir() else 0o400)
            row.notes = "permissions"
        else:
            row.notes = "not tried: root may write everywhere, and no file system can be mounted"
            arena.use(before)
            return row
        arena.run(row, lambda: program(2.0))
        if "cannot be written" in arena.tail():
            row.faults.append("a hit tried to write")
        arena.run(row, lambda: program(3.0))
        if "cannot be written" not in arena.tail():
            row.faults.append(f"no warning: {arena.tail()}")
        if arena.store.usage() != entries:
            row.faults.append("the store changed")
        for path in [folder, *folder.rglob("*")] if not mounted else ():
            path.chmod(0o700)
    arena.use(before)
    return row


def together(arena: Arena, count: int, compile: str, one: bool = False) -> Row:
    """Processes that compile at once, half of them the same function, or all (``one``)."""
    row, before = Row(f"{count} processes at once ({compile})"), len(arena.store.compiles())
    arena.store.clear()

    def background(factor: float) -> None:
        from torch_max_backend import wait_for_compiles

        program(factor, compile)
        assert wait_for_compiles(LIMIT_S)

    factors = [2.0 if one or i % 2 else 3.0 + i for i in range(count)]
    arena.log.unlink(missing_ok=True)
    children = [start(lambda factor=factor: background(factor), arena.log) for factor in factors]  # type: ignore[misc]
    end = time.monotonic() + LIMIT_S
    for child in children:
        row.runs += 1
        status = ended(child, max(0.1, end - time.monotonic()))
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if status != 0:
            row.faults.append("hang" if status is None else f"exit status {status}: {arena.tail()}")
    arena.check(row)
    regions, compiles = len(arena.store.records()), len(arena.store.compiles()) - before
    row.notes = f"{len(set(factors))} functions, {regions} entries, {compiles} compiles"
    if not regions == compiles == len(set(factors)):
        row.faults.append("a region was compiled twice, or is missing")
    return row


def main(
    kills: int = typer.Option(200, help="How many processes are killed while compiling, and while writing."),
    processes: int = typer.Option(8, min=2, help="How many compile at once."),
    minutes: float = typer.Option(60.0, help="Kill compiles for at most so long."),
    small: bool = typer.Option(False, "--small", help="A few of everything."),
    seed: int = typer.Option(0, help="Of the random moments and places."),
) -> None:
    """Run all attacks, print the table, and fail if one found a fault."""
    torch.set_num_threads(1)
    chance, folder = random.Random(seed), Path(tempfile.mkdtemp(prefix="attack-"))
    compiles, writes, damages, at_once = (3, 20, 40, 3) if small else (kills, kills, 2 * kills, processes)
    rows = []
    try:
        arena = Arena(folder)
        attacks: list[Callable[[], Row]] = [
            lambda: kill_writers(arena, writes, chance),
            lambda: damage(arena, damages, chance),
            lambda: full_disk(arena, folder / "full", 1 if small else 2),
            lambda: read_only(arena, folder / "read_only"),
            lambda: together(arena, at_once, "background", small),
            lambda: kill_compiles(arena, compiles, chance, minutes),
            *([] if small else [lambda: together(arena, at_once, "wait")]),
        ]
        for attack in attacks:
            begin = time.perf_counter()
            rows.append(attack())
            rows[-1].seconds = time.perf_counter() - begin
            Console(stderr=True).print(f"{rows[-1].attack}: {len(rows[-1].faults)} faults")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = Table("attack", "runs", "seconds", "faults", "notes")
    for row in rows:
        table.add_row(row.attack, str(row.runs), f"{row.seconds:.0f}", str(len(row.faults)), row.notes)
    Console(width=150 if not sys.stdout.isatty() else None).print(table)
    for row in rows:
        for fault in row.faults[:5]:
            Console().print(f"{row.attack}: {fault}", soft_wrap=True, markup=False)
    if any(row.faults for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
