"""A rank that does not come to a collective of a compiled graph: another one waits for it, but not for ever."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from tests.distributed.ways import start

TIMEOUT = timedelta(seconds=6)


def main(kind: str = "cpu", backend: str = "max_backend") -> None:
    """The last rank sleeps; torch ends the first one, and torchrun then this one."""
    where = start(kind, timeout=TIMEOUT)

    @torch.compile(backend=backend, fullgraph=True)
    def function(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    x = torch.ones(4, device=where)
    torch.testing.assert_close(function(x), torch.full_like(x, 2 * dist.get_world_size() + 1))
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(3600)
    print(f"came back: {function(x).tolist()}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
