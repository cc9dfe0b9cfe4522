"""Training that goes on from its latest checkpoint, in which ranks are killed: while compiling, and within a step.

The first rank that compiles dies, whichever that is, and then a rank in a step, which are drawn by a seed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.ways import Case, device, start
from torch_max_backend.compile import programs

STEPS = 6


def kill(why: str) -> None:
    """End this rank as a machine that fails does."""
    print(f"killed: rank {os.environ['RANK']} {why}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def dying(build: Callable[..., bytes], died: Path) -> Callable[..., bytes]:
    """A compiler in which the first rank that calls it is killed."""

    def call(*args: Any, **how: Any) -> bytes:
        if not died.exists():
            died.touch()
            kill("compiles")
        return build(*args, **how)

    return call


def main(folder: Path, kind: str = "cpu", seed: str = "0") -> None:
    """Losses equal those of eager without a fault, whatever happens."""
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    start(kind)
    rank = dist.get_rank()
    if restarts == 0:
        for name in ("build_shared_library", "build_cubin"):
            setattr(programs, name, dying(getattr(programs, name), folder / "died"))
    chance = random.Random(seed)
    deadly = chance.randrange(1, STEPS) if rank == chance.randrange(dist.get_world_size()) else -1
    wanted = trained(Path(), 0, -1) if restarts == 2 else []
    losses = trained(folder, rank, deadly if restarts == 1 else -1, compiled=True)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted))
    if rank == 0:
        print(json.dumps({"restarts": restarts, "steps": list(range(len(losses)))}), flush=True)
    dist.destroy_process_group()


def trained(folder: Path, rank: int, deadly: int, compiled: bool = False) -> list[float]:
    """The losses of all steps, with those from before a restart."""
    case = Case("small", "ddp")
    model = DistributedDataParallel(case.model())
    call = torch.compile(model, backend="max_backend", options={"fallback": "error"}) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[float] = []
    kept = folder / "kept.pt"
    if compiled and kept.exists():
        state = torch.load(kept, map_location=device())
        losses = state["losses"]
        model.load_state_dict(state["model"])
    for step in range(len(losses), STEPS):
        optimizer.zero_grad()
        loss = call(*case.batch(step, dist.get_rank()))
        if step == deadly:
            kill(f"is in step {step}")
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss := loss.detach())
        losses.append(float(loss))
        if compiled and rank == 0:
            torch.save({"model": model.state_dict(), "losses": losses}, folder / "new.pt")
            os.replace(folder / "new.pt", kept)
    return losses


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
