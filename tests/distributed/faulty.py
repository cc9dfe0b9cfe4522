"""Ranks that do not fit together: each prints the error that it gets."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch._dynamo.backends import registry
from torch.distributed import _functional_collectives as functional

from tests.distributed.ways import start
from torch_max_backend.base import digests
from torch_max_backend.runtime import agreement


def say(line: str) -> None:
    """Print in one write, since ranks print at the same time."""
    os.write(1, f"{line}\n".encode())


def main(fault: str, kind: str = "cpu") -> None:
    """A sum over all ranks, of which the last one has another graph or another version, or lacks the package."""
    where = start(kind)
    is_odd = dist.get_rank() == dist.get_world_size() - 1
    if fault == "version" and is_odd:
        installed = digests.package_version
        agreement.package_version = lambda name: "0.0" if name == "torch-max-backend" else installed(name)

    def function(x: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        return functional.all_reduce(total, "max", dist.group.WORLD) + 1

    if fault == "package" and is_odd:  # what torch finds there
        registry.list_backends()  # which it looks for once
        registry._COMPILER_FNS.pop("max_backend", None)
        registry._BACKENDS.pop("max_backend", None)
    size = 5 if fault == "graph" and is_odd else 4
    try:
        compiled = torch.compile(function, backend="max_backend", options={"fallback": "error"})
        x = torch.ones(size, device=where)
        torch.testing.assert_close(compiled(x), function(x))
        say(f"rank {dist.get_rank()} is right")
    except Exception as error:
        say(f"rank {dist.get_rank()} raises {type(error).__name__}: {error}")
        sys.exit(0 if fault == "caught" else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
