"""What each rank runs: the ways of training, compiled beside eager. Rank 0 prints the facts as a line of JSON."""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from tests.distributed.models import KINDS
from tests.distributed.ways import Case, start, trained
from torch_max_backend import reports

OPTIONS = {"fallback": "error"}
FLOOR = 1e-6
"""Some units in the last place of a loss."""
Trained = tuple[list[float], dict[str, torch.Tensor]]
"""Losses, and the last gradients."""


def check(ours: Trained, eager: Trained, exact: Trained) -> None:
    """On the rank where each is farthest, ours may be twice as far from float64 as eager in float32.

    Layers amplify what is rounded, and steps carry it on: no limit that is known beforehand holds for all models.
    """
    rounding, found = farthest(eager, exact), farthest(ours, exact)
    assert (found <= 2 * rounding + FLOOR).all(), f"losses and gradients are {found} away, eager's {rounding}"


def farthest(found: Trained, exact: Trained) -> torch.Tensor:
    """The largest distance of a loss on any rank, and that of all gradients, relative to them."""
    loss = max(abs(a - b) for a, b in zip(found[0], exact[0], strict=True))
    away, whole = (
        sum(float(g.double().square().sum()) for g in gradients) ** 0.5
        for gradients in ([found[1][n].double() - g for n, g in exact[1].items()], exact[1].values())
    )
    both = torch.tensor([loss, away / whole], dtype=torch.float64)
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return both


def main(kind: str, ways: list[str], steps: int, folder: Path, device: str = "cpu") -> None:
    """Train in each way, with a checkpoint in between, and compare with eager on every rank."""
    start(device)
    torch.set_num_threads(1)
    compiler = functools.partial(torch.compile, backend="max_backend", options=OPTIONS, dynamic=KINDS[kind].dynamic)
    facts = {}
    for way in ways:
        case = Case(kind, way, KINDS[kind].dtype)
        wanted, wanted_gradients = trained(case, steps, None)
        torch._dynamo.reset()
        first = len(reports())
        losses, gradients = trained(case, steps, compiler, folder / way)
        if kind == "gpt2":
            exact = trained(replace(case, dtype=torch.float64), steps, None)
            check((losses, gradients), (wanted, wanted_gradients), exact)
        else:
            torch.testing.assert_close(*(torch.tensor(x, dtype=case.dtype) for x in (losses, wanted)))
            torch.testing.assert_close(gradients, wanted_gradients)
        own = reports()[first:]
        facts[way] = {
            "losses": losses,
            "graphs": len(own),
            "islands": sum(len(r.islands) for r in own),
            "calls": sorted({name for r in own for name in r.library_calls if "distributed" in name}),
        }
    if dist.get_rank() == 0:
        print(json.dumps(facts), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), Path(sys.argv[4]), *sys.argv[5:])
