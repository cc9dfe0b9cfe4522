"""Two steps of the small model under DDP, compiled: what `benchmarks.distributed_starts` starts again and again."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.distributed.ways import Case, made, start, whole


def main() -> None:
    """All ranks have the same parameters in the end."""
    start()
    torch.set_num_threads(1)
    case = Case("small", "ddp")
    model, _ = made(case)
    compiled = torch.compile(model, backend="max_backend", options={"fallback": "error", "executor": "auto"})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        compiled(*case.batch(step, dist.get_rank())).backward()
        optimizer.step()
    own = torch.cat([whole(p).flatten() for p in model.parameters()])
    first = own.clone()
    dist.broadcast(first, 0)
    torch.testing.assert_close(own, first, rtol=0, atol=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
