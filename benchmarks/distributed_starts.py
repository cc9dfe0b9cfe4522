"""Starts of a group of ranks, one after the other, each with a time limit: none may hang, fail, or compile twice.

    python -m benchmarks.distributed_starts                    # 50 starts of four ranks, cold and warm in turns
    python -m benchmarks.distributed_starts --starts 4 --ranks 2

The ranks train a small transformer under DDP on gloo, compiled, and compare parameters. They are forks of one process
that has imported what they need, so that a start takes seconds. A cold one has an empty store, the warm one after it
what the cold one compiled.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.attack_store import ended, start
from tests.distributed import tiny
from torch_max_backend.compile.cache.store import Store

STORES = ("cold", "warm")


@dataclass(frozen=True)
class Start:
    """How the ranks of a start ended: exit statuses, none for one that hung, what they printed, and seconds."""

    statuses: list[int | None]
    output: str
    seconds: float


def started(ranks: int, folder: Path, limit_s: float) -> Start:
    """Start ranks that share the store in a folder; end those that hang."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(rank: int) -> None:
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": ranks, "RANK": rank, "LOCAL_RANK": rank}
        caches = {"TORCH_MAX_BACKEND_CACHE_DIR": folder / "store", "TORCHINDUCTOR_CACHE_DIR": folder / "torch"}
        os.environ.update({name: str(value) for name, value in {**group, **caches}.items()})
        tiny.main()

    log, begin = folder / "log", time.monotonic()
    children = [start(lambda rank=rank: run(rank), log) for rank in range(ranks)]  # type: ignore[misc]
    statuses = [ended(child, max(0.1, begin + limit_s - time.monotonic())) for child in children]
    for child, status in zip(children, statuses, strict=True):
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return Start(statuses, log.read_text(errors="replace"), time.monotonic() - begin)


def compiles(store: Path) -> list[str]:
    """The keys of what was compiled into a store."""
    return [str(e["key"]) for e in Store(store).lookups() if str(e["answer"]).startswith("miss")]


def faults_of(done: Start, keys: list[str], is_cold: bool) -> list[str]:
    """What is wrong with a start that compiled ``keys``."""
    if None in done.statuses:
        return [f"{done.statuses.count(None)} rank(s) hang"]
    if any(done.statuses):
        return [f"statuses {done.statuses}: {done.output[-1000:]}"]
    if bool(keys) != is_cold:
        return [f"{len(keys)} compiles with a {'cold' if is_cold else 'warm'} store"]
    return ["a library was compiled twice"] if len(set(keys)) < len(keys) else []


def main(
    starts: int = typer.Option(50, min=2, help="How many, half of them cold."),
    ranks: int = typer.Option(4, min=2, help="Ranks of a start."),
    timeout: float = typer.Option(120, help="Seconds after which a start hangs."),
) -> None:
    """Start all, print a table, and fail if one had a fault."""
    seconds: dict[str, list[float]] = {name: [] for name in STORES}
    faults: dict[str, list[str]] = {name: [] for name in STORES}
    for number in range(starts // 2):
        with tempfile.TemporaryDirectory() as name:
            before = 0
            for kind in STORES:
                done = started(ranks, Path(name), timeout)
                keys = compiles(Path(name) / "store")
                found = faults_of(done, keys[before:], kind == "cold")
                before = len(keys)
                seconds[kind].append(done.seconds)
                faults[kind] += [f"start {number}: {fault}" for fault in found]
                print(f"{number} {kind}: {done.seconds:.1f} s", *found, file=sys.stderr, flush=True)
    table = Table("store", "starts", "ranks", "median s", "longest s", "faults")
    for kind in STORES:
        times = sorted(seconds[kind])
        median, longest = f"{times[len(times) // 2]:.1f}", f"{times[-1]:.1f}"
        table.add_row(kind, str(len(times)), str(ranks), median, longest, str(len(faults[kind])))
    Console(width=100).print(table)
    if any(faults.values()):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
