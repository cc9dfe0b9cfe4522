"""What each rank runs: the ways of training, compiled beside eager. Rank 0 prints the facts as a line of JSON."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.distributed.ways import start, trained
from torch_max_backend import reports

OPTIONS = {"fallback": "error"}


def main(ways: list[str], steps: int, folder: Path, kind: str = "cpu") -> None:
    """Train in each way, with a checkpoint in between, and compare with eager on every rank."""
    start(kind)
    torch.set_num_threads(1)
    compiler = functools.partial(torch.compile, backend="max_backend", options=OPTIONS)
    facts = {}
    for way in ways:
        wanted, wanted_gradients = trained(way, steps, None)
        torch._dynamo.reset()
        first = len(reports())
        losses, gradients = trained(way, steps, compiler, folder / way)
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted))
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
    main(sys.argv[1].split(","), int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
