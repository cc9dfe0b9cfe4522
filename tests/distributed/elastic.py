"""Training that goes on from its latest checkpoint, in which ranks are killed: while compiling, and within a step."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.ways import Model, batch
from torch_max_backend.compile import programs

STEPS, DEADLY_STEP = 6, 3


def kill(why: str) -> None:
    """End this rank as a machine that fails does."""
    print(f"killed: rank {os.environ['RANK']} {why}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path) -> None:
    """Losses equal those of eager without a fault, whatever happens."""
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if restarts == 0:
        build = programs.build_shared_library

        def dying(*args: Any, **how: Any) -> bytes:
            if not (folder / "died").exists():
                (folder / "died").touch()
                kill("compiles")
            return build(*args, **how)

        programs.build_shared_library = dying
    wanted = trained(Path(), 0, -1) if restarts == 2 else []
    losses = trained(folder, rank, DEADLY_STEP if restarts == 1 else -1, compiled=True)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted))
    if rank == 0:
        print(json.dumps({"restarts": restarts, "steps": list(range(len(losses)))}), flush=True)
    dist.destroy_process_group()


def trained(folder: Path, rank: int, deadly: int, compiled: bool = False) -> list[float]:
    """The losses of all steps, with those from before a restart."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    call = torch.compile(model, backend="max_backend", options={"fallback": "error"}) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[float] = []
    kept = folder / "kept.pt"
    if compiled and kept.exists():
        state = torch.load(kept)
        losses = state["losses"]
        model.load_state_dict(state["model"])
    for step in range(len(losses), STEPS):
        optimizer.zero_grad()
        loss = call(*batch(step, dist.get_rank()))
        if step == deadly and rank == 1:
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
    main(Path(sys.argv[1]))
