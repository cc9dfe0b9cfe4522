"""A small transformer that ranks train in each of the ways that torch has, eager or compiled."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint_of
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WORDS, WIDTH, HEADS = 64, 32, 4


def start(kind: str = "cpu", **how: Any) -> torch.device:
    """Join the group of this rank: with gloo on the CPU, or with NCCL on a GPU of its own (`cuda`)."""
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", **how)
    return device()


def device() -> torch.device:
    """That of this rank: a GPU of its own with NCCL."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


class Block(nn.Module):
    """Attention and a perceptron, of whose products each reads what another one made."""

    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self._forward, x, use_reentrant=False) if self.checkpointed else self._forward(x)

    def _forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        q, k, v = (f(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Model(nn.Module):
    """A language model of two blocks."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(checkpointed) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), wanted.flatten())


def tensor_parallel(model: Model, mesh: DeviceMesh) -> None:
    """Share products out by columns and rows, as Megatron does."""
    columns, rows = ("q", "k", "v", "up"), ("out", "down")
    plan = {**{n: ColwiseParallel() for n in columns}, **{n: RowwiseParallel() for n in rows}}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)


def sharded(model: Model, mesh: DeviceMesh) -> None:
    """Share parameters out, block by block."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def made(way: str) -> tuple[nn.Module, DeviceMesh | None]:
    """A model that is laid out over the ranks, and the mesh over which batches differ."""
    torch.manual_seed(0)
    world = dist.get_world_size()
    model = Model(checkpointed="checkpointed" in way).to(device())
    if way == "ddp_compiled_autograd":
        with torch._dynamo.config.patch(optimize_ddp="python_reducer"):  # DDP asks when it is made
            return DistributedDataParallel(model, bucket_cap_mb=0.05), None
    if way == "ddp":
        return DistributedDataParallel(model), None
    if way == "tp":
        tensor_parallel(model, init_device_mesh(device().type, (world,)))
        return model, None
    if way == "2d":
        mesh = init_device_mesh(device().type, (2, world // 2), mesh_dim_names=("dp", "tp"))
        tensor_parallel(model, mesh["tp"])
        sharded(model, mesh["dp"])
        return model, mesh
    sharded(model, init_device_mesh(device().type, (world,)))
    return model, None


def batch(step: int, part: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and the words behind them, which ranks of one part share."""
    generator = torch.Generator().manual_seed(100 * step + part)
    tokens = torch.randint(WORDS, (4, 17), generator=generator).to(device())
    return tokens[:, :-1], tokens[:, 1:]


def whole(x: torch.Tensor | None) -> torch.Tensor:
    """A tensor that ranks may have shared out."""
    assert x is not None
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().clone()


def part_of(way: str, mesh: DeviceMesh | None) -> int:
    """Which batches a rank has."""
    if way == "tp":
        return 0
    return mesh["dp"].get_local_rank() if mesh is not None else dist.get_rank()


def trained(
    way: str, steps: int, compiler: Callable[..., Any] | None, folder: Path | None = None
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of all steps, and the gradients of the last one.

    Args:
        folder: Where a checkpoint is saved half-way, from which another model goes on.
    """
    model, mesh = made(way)
    losses: list[float] = []
    half = steps // 2 if folder is not None else steps
    run(way, model, mesh, range(half), compiler, losses)
    if folder is not None:
        model, mesh = handed_on(way, model, folder)
        run(way, model, mesh, range(half, steps), compiler, losses)
    return losses, {n.removeprefix("module."): whole(p.grad) for n, p in model.named_parameters()}


def handed_on(way: str, model: nn.Module, folder: Path) -> tuple[nn.Module, DeviceMesh | None]:
    """A new model with the parameters of one, by way of a checkpoint."""
    checkpoint_of.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
    other, mesh = made(way)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    state = get_model_state_dict(other)
    checkpoint_of.load({"model": state}, checkpoint_id=folder)
    set_model_state_dict(other, state)
    return other, mesh


def run(
    way: str,
    model: nn.Module,
    mesh: DeviceMesh | None,
    steps: Iterable[int],
    compiler: Callable[..., Any] | None,
    losses: list[float],
) -> None:
    """Some steps of stochastic gradient descent, whose state a checkpoint need not have."""
    call = model if compiler is None else compiler(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)  # some are DTensors
    for step in steps:
        optimizer.zero_grad()
        with backward_of(way, compiler):
            loss = call(*batch(step, part_of(way, mesh)))
            loss.backward()
        optimizer.step()
        losses.append(float(whole(loss)))


@contextlib.contextmanager
def backward_of(way: str, compiler: Callable[..., Any] | None) -> Iterator[None]:
    """How the backward is run: by torch's engine, or traced as one graph with DDP's collectives in it."""
    if compiler is None or not way.endswith("compiled_autograd"):
        yield
        return
    with torch._dynamo.compiled_autograd._enable(functools.partial(compiler, fullgraph=True)):
        yield
