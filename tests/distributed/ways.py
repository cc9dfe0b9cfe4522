"""Models that ranks train in each of the ways that torch has, eager or compiled."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint_of
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.models import KINDS, Batch, loss_of


def start(kind: str = "cpu", **how: Any) -> torch.device:
    """Join the group of this rank: with gloo on the CPU, or with NCCL on a GPU of its own (`cuda`)."""
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", **how)
    return device()


def device() -> torch.device:
    """That of this rank: a GPU of its own with NCCL."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A model, by its kind, that is trained in one way, with parameters and arithmetic of a dtype."""

    kind: str
    way: str
    dtype: torch.dtype = torch.float32

    @property
    def is_pipeline(self) -> bool:
        """Whether each rank has some of the layers."""
        return self.way.startswith("pp")

    def model(self) -> nn.Module:
        """The same on every rank."""
        torch.manual_seed(0)
        return KINDS[self.kind].make("checkpointed" in self.way).to(device(), self.dtype)

    def batch(self, step: int, part: int) -> Batch:
        """Inputs and what is wanted, which ranks of one part share."""
        x, wanted = KINDS[self.kind].batch(torch.Generator().manual_seed(100 * step + part))
        return x.to(device(), self.dtype if x.is_floating_point() else x.dtype), wanted.to(device())


def tensor_parallel(case: Case, model: nn.Module, mesh: DeviceMesh) -> None:
    """Share products out."""
    for module, plan in KINDS[case.kind].plan(model):
        parallelize_module(module, mesh, plan)


def sharded(case: Case, model: nn.Module, mesh: DeviceMesh) -> None:
    """Share parameters out, block by block."""
    for block in KINDS[case.kind].blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def made(case: Case) -> tuple[nn.Module, DeviceMesh | None]:
    """A model that is laid out over the ranks, and the mesh over which batches differ."""
    way, world, model = case.way, dist.get_world_size(), case.model()
    if way == "ddp_compiled_autograd":
        with torch._dynamo.config.patch(optimize_ddp="python_reducer"):  # DDP asks when it is made
            return DistributedDataParallel(model, bucket_cap_mb=0.05), None
    if way == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=8), None
    if case.is_pipeline:
        stages = KINDS[case.kind].stages(model)
        own = range(dist.get_rank() * len(stages) // world, (dist.get_rank() + 1) * len(stages) // world)
        return nn.Sequential(OrderedDict((f"stage{k}", stages[k]) for k in own)), None
    if way == "tp":
        tensor_parallel(case, model, init_device_mesh(device().type, (world,)))
        return model, None
    if way == "2d":
        mesh = init_device_mesh(device().type, (2, world // 2), mesh_dim_names=("dp", "tp"))
        tensor_parallel(case, model, mesh["tp"])
        sharded(case, model, mesh["dp"])
        return model, mesh
    sharded(case, model, init_device_mesh(device().type, (world,)))
    return model, None


def whole(x: torch.Tensor | None) -> torch.Tensor:
    """A tensor that ranks may have shared out."""
    assert x is not None
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().clone()


def part_of(case: Case, mesh: DeviceMesh | None) -> int:
    """Which batches a rank has."""
    if case.way == "tp" or case.is_pipeline:
        return 0
    return mesh["dp"].get_local_rank() if mesh is not None else dist.get_rank()


def trained(
    case: Case, steps: int, compiler: Callable[..., Any] | None, folder: Path | None = None
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of all steps, and the gradients of the last one.

    Args:
        folder: Where a checkpoint is saved half-way, from which another model goes on.
    """
    model, mesh = made(case)
    losses: list[float] = []
    half = steps // 2 if folder is not None else steps
    run(case, model, mesh, range(half), compiler, losses)
    if folder is not None:
        model, mesh = handed_on(case, model, folder)
        run(case, model, mesh, range(half, steps), compiler, losses)
    return losses, {n.removeprefix("module."): whole(p.grad) for n, p in model.named_parameters()}


def handed_on(case: Case, model: nn.Module, folder: Path) -> tuple[nn.Module, DeviceMesh | None]:
    """A new model with the parameters of one, by way of a checkpoint."""
    checkpoint_of.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
    other, mesh = made(case)
    with torch.no_grad():
        for p in (*other.parameters(), *other.buffers()):
            p.zero_()
    state = get_model_state_dict(other)
    checkpoint_of.load({"model": state}, checkpoint_id=folder)
    set_model_state_dict(other, state)
    return other, mesh


def run(
    case: Case,
    model: nn.Module,
    mesh: DeviceMesh | None,
    steps: Iterable[int],
    compiler: Callable[..., Any] | None,
    losses: list[float],
) -> None:
    """Some steps of stochastic gradient descent, whose state a checkpoint need not have."""
    call = model if compiler is None else compiler(model)
    if case.is_pipeline:
        call = pipeline(case, call)
    optimizer = torch.optim.SGD(model.parameters(), lr=KINDS[case.kind].rate, foreach=False)  # some are DTensors
    for step in steps:
        optimizer.zero_grad()
        with backward_of(case, compiler):
            loss = call(*case.batch(step, part_of(case, mesh)))
            if not case.is_pipeline:
                loss.backward()
        optimizer.step()
        losses.append(float(whole(loss)))


def pipeline(case: Case, stage: nn.Module) -> Callable[..., torch.Tensor]:
    """What runs a step of a pipeline, backward included, with this rank's stage; it gives the loss on every rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    schedule = {"pp_gpipe": ScheduleGPipe, "pp_1f1b": Schedule1F1B}[case.way](
        PipelineStage(stage, rank, world, device()), n_microbatches=4, loss_fn=loss_of
    )

    def step(x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        parts: list[torch.Tensor] = []
        has_loss = rank == world - 1
        schedule.step(*((x,) if rank == 0 else ()), **({"target": wanted, "losses": parts} if has_loss else {}))
        loss = torch.stack(parts).mean().detach() if has_loss else torch.zeros((), dtype=case.dtype, device=device())
        dist.broadcast(loss, world - 1)
        return loss

    return step


@contextlib.contextmanager
def backward_of(case: Case, compiler: Callable[..., Any] | None) -> Iterator[None]:
    """How the backward is run: by torch's engine, or traced as one graph with DDP's collectives in it."""
    if compiler is None or not case.way.endswith("compiled_autograd"):
        yield
        return
    with torch._dynamo.compiled_autograd._enable(functools.partial(compiler, fullgraph=True)):
        yield
