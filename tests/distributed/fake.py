"""One rank of a thousand, in a group of torch's that has no other: it tells what it compiles, and what it calls."""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.distributed.ways import Case, made, sharded, tensor_parallel
from torch_max_backend import reports
from torch_max_backend.compile.cache.configured_store import store_for
from torch_max_backend.options import resolve

RANKS, PARTS = 1000, 4


def laid_out(case: Case) -> nn.Module:
    """The model on a rank. ``words`` is tensor parallel that shares the rows of the embedding out as well."""
    if case.way == "fsdp2":
        return made(case)[0]
    mesh = init_device_mesh("cpu", (RANKS // PARTS, PARTS), mesh_dim_names=("dp", "tp"))
    model = case.model()
    tensor_parallel(case, model, mesh["tp"])
    if case.way == "words":
        parallelize_module(model, mesh["tp"], {"words": RowwiseParallel(input_layouts=Replicate())})
    else:
        sharded(case, model, mesh["dp"])
    return model


def main(rank: int, way: str) -> None:
    """A step of training."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=RANKS)
    case = Case("small", way)
    loss = torch.compile(laid_out(case), backend="max_backend", options={"fallback": "error"})(*case.batch(0, 0))
    loss.backward()
    own = [e for e in store_for(resolve()).lookups() if e["pid"] == os.getpid()]
    compiled = sum(str(e["answer"]).startswith("miss") for e in own)
    calls = sorted({name for report in reports() for name in report.library_calls if "distributed" in name})
    print(json.dumps({"libraries": len(own), "compiled": compiled, "calls": calls}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
