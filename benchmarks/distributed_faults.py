"""What goes wrong on one rank, and how the group ends: it goes on, or it says why, and never hangs.

- `killed`: a rank is killed while it compiles, and later one within a step, both at random. torchrun starts the ranks
  again, and they go on from a checkpoint to the losses that eager has without a fault.
- `late`: a rank does not come to a collective of a compiled graph. torch's own error ends the group after the `timeout`
  of `init_process_group`. `late-eager` is the same without this backend: how long torch takes to end.
- `differ`: a rank has another graph. Every rank raises an error that names the difference.
"""

from __future__ import annotations

import functools
import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.distributed_launch import ROOT, end, environment, torchrun

RANKS = 2


@dataclass(frozen=True)
class Ended:
    """How a group ended: exit status, what its ranks printed, and seconds. ``is_hung`` where it did not end at all."""

    status: int
    output: str
    seconds: float
    is_hung: bool


def ended(module: str, *arguments: object, store: Path, limit_s: float, flags: tuple[str, ...] = ()) -> Ended:
    """Run a module on two ranks until they end, or are ended after ``limit_s``."""
    begin = time.monotonic()
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # see docs/distributed.md
    process = subprocess.Popen(
        torchrun(RANKS, module, *map(str, arguments), flags=flags),
        cwd=ROOT,
        env={**environment(store, RANKS), **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    is_hung = False
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        is_hung = True
        end(process)
        output, _ = process.communicate()
    except SystemExit:
        end(process)
        raise
    return Ended(process.returncode, output, time.monotonic() - begin, is_hung)


def killed(folder: Path, kind: str, limit_s: float) -> tuple[Ended, bool, str]:
    """Ranks are killed and start again."""
    place = folder / f"killed-{kind}"
    shutil.rmtree(place, ignore_errors=True)  # nothing is compiled, and no step done
    place.mkdir(parents=True)
    flags, seed = ("--max-restarts=3",), random.randrange(1000)
    done = ended("tests.distributed.elastic", place, kind, seed, store=place / "store", limit_s=limit_s, flags=flags)
    told = [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]
    deaths = [line for line in done.output.splitlines() if line.startswith("killed")]
    is_right = done.status == 0 and bool(told) and told[-1]["restarts"] == 2 and len(deaths) == 2
    return done, is_right, "; ".join([f"seed {seed}", *deaths, *(json.dumps(t) for t in told)])


def late(folder: Path, kind: str, limit_s: float, backend: str = "max_backend") -> tuple[Ended, bool, str]:
    """A rank never comes to a collective."""
    done = ended("tests.distributed.late", kind, backend, store=folder / f"late-{kind}-{backend}", limit_s=limit_s)
    word = "Watchdog caught collective operation timeout" if kind == "cuda" else "Timed out waiting"
    lines = done.output.splitlines()
    said = [line for line in lines if word in line]
    came_back = any(line.startswith("came back") for line in lines)
    is_right = done.status not in (0, None) and not done.is_hung and bool(said) and not came_back
    return done, is_right, said[0] if said else done.output[-1000:]


def differ(folder: Path, kind: str, limit_s: float) -> tuple[Ended, bool, str]:
    """A rank has another graph."""
    done = ended("tests.distributed.faulty", "graph", kind, store=folder / f"differ-{kind}", limit_s=limit_s)
    said = sorted(line for line in done.output.splitlines() if line.startswith("rank "))
    is_right = len(said) == RANKS and all("RanksDifferError" in x and "all_reduce([5], sum) of f32" in x for x in said)
    return done, is_right and done.status == 1, "; ".join(said) or done.output[-1000:]


FAULTS: dict[str, Callable[[Path, str, float], tuple[Ended, bool, str]]] = {
    "killed": killed,
    "late": late,
    "late-eager": functools.partial(late, backend="eager"),
    "differ": differ,
}


def fact(name: str, folder: Path, kind: str, limit_s: float) -> dict[str, Any]:
    """What a record keeps of a fault: whether the group ended as it should, after how long, and what it said.

    Args:
        kind: ``cpu``, with gloo, or ``cuda``, with NCCL and a GPU a rank.
    """
    done, is_right, said = FAULTS[name](folder, kind, limit_s)
    backend = "nccl" if kind == "cuda" else "gloo"
    facts = {"fault": name, "backend": backend, "passed": is_right, "seconds": round(done.seconds, 1), "said": said}
    return facts if is_right else {**facts, "hung": done.is_hung, "output": done.output[-4000:]}
