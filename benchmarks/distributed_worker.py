"""One rank of `benchmarks.distributed`: three contenders train in one way, by turns."""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

CONTENDERS = ("eager", "inductor", "max")
WORDS = 1024
RELATIVE, ABSOLUTE = 1e-4, 1e-5


def built(task: dict[str, Any]) -> tuple[nn.Module, nn.ModuleList, dict[str, Any]]:
    """A causal language model of transformers, its blocks, and how a block is shared out by columns and rows.

    GPT-2 has queries, keys and values in one product, so that its attention stays whole.
    """
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    width, layers, heads = task["width"], task["layers"], max(2, task["width"] // 64)
    if task["model"] == "llama":
        shape = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
        count = {"num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": WORDS}
        model = LlamaForCausalLM(LlamaConfig(**shape, **count, use_cache=False))
        columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
        rows = ("self_attn.o_proj", "mlp.down_proj")
        plan = {**{n: ColwiseParallel() for n in columns}, **{n: RowwiseParallel() for n in rows}}
        return model, model.model.layers, plan
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
    config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, vocab_size=WORDS, **off)
    model = GPT2LMHeadModel(config)
    for block in model.transformer.h:
        block.mlp.c_fc, block.mlp.c_proj = linear(block.mlp.c_fc), linear(block.mlp.c_proj)
    return model, model.transformer.h, {"mlp.c_fc": ColwiseParallel(), "mlp.c_proj": RowwiseParallel()}


def linear(layer: nn.Module) -> nn.Linear:
    """A layer of GPT-2, which holds its weight transposed, as one that DTensor knows."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, torch.Tensor) and isinstance(bias, torch.Tensor)
    found = nn.Linear(*weight.shape)
    with torch.no_grad():
        found.weight.copy_(weight.t())
        found.bias.copy_(bias)
    return found


def shared_out(task: dict[str, Any], device: str) -> tuple[nn.Module, int]:
    """A model laid out over the ranks, and which batches this rank has."""
    torch.manual_seed(0)
    model, blocks, plan = built(task)
    model.to(device)
    way, world, rank = task["way"], dist.get_world_size(), dist.get_rank()
    if way == "ddp":
        return DistributedDataParallel(model), rank
    shape, names = ((2, world // 2), ("dp", "tp")) if way == "2d" else ((world,), ("tp" if way == "tp" else "dp",))
    mesh = init_device_mesh(device.partition(":")[0], shape, mesh_dim_names=names)
    if "tp" in names:
        for block in blocks:
            parallelize_module(block, mesh["tp"], plan)
    if "dp" in names:
        for block in blocks:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    return model, mesh["dp"].get_local_rank() if "dp" in names else 0


def compiled(model: nn.Module, contender: str, way: str) -> Callable[..., Any]:
    """The model by a contender: block by block where parameters are gathered for each, else as a whole."""
    if contender == "eager":
        return model
    how: dict[str, Any] = {"backend": "inductor"}
    if contender == "max":
        how = {"backend": "max_backend", "options": {"fallback": "error"}}
    if way not in ("fsdp2", "2d"):
        return torch.compile(model, **how)
    for block in next(m for m in model.modules() if isinstance(m, nn.ModuleList)):
        block.compile(**how)
    return model


class Training:
    """A contender with its own model and optimizer."""

    def __init__(self, task: dict[str, Any], contender: str, device: str) -> None:
        self.task, self.device = task, device
        self.model, self.part = shared_out(task, device)
        self.call = compiled(self.model, contender, task["way"])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, foreach=False)  # some are DTensors

    def step(self, number: int) -> torch.Tensor:
        """One step; the loss on this rank."""
        size, seed = (self.task["batch"], self.task["length"]), 1000 * number + self.part
        tokens = torch.randint(WORDS, size, generator=torch.Generator().manual_seed(seed)).to(self.device)
        self.optimizer.zero_grad()
        loss = self.call(input_ids=tokens, labels=tokens).loss
        loss.backward()
        self.optimizer.step()
        return loss.full_tensor() if isinstance(loss, DTensor) else loss


def timed(training: Training, number: int, device: str) -> float:
    """Milliseconds that a step takes, from a barrier on."""
    dist.barrier()
    start = time.perf_counter()
    training.step(number)
    if device != "cpu":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def slowest(values: list[float], device: str) -> list[float]:
    """Of each value, the largest that a rank has."""
    found = torch.tensor(values, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.tolist()


def main(task: dict[str, Any]) -> None:
    """Train, time, and print a line of JSON on rank 0."""
    local, world = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= world
    device = f"cuda:{local}" if on_gpus else "cpu"
    if on_gpus:
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    trainings = {c: Training(task, c, device) for c in CONTENDERS}
    losses = {c: [float(t.step(k)) for k in range(task["steps"])] for c, t in trainings.items()}
    limit = [ABSOLUTE + RELATIVE * abs(x) for x in losses["eager"]]
    units = max(abs(a - b) / n for a, b, n in zip(losses["max"], losses["eager"], limit, strict=True))
    times: dict[str, list[float]] = {c: [] for c in CONTENDERS}
    for k in range(task["rounds"]):
        for c in CONTENDERS[k % 3 :] + CONTENDERS[: k % 3]:
            times[c].append(timed(trainings[c], task["steps"] + k, device))
    times = {c: slowest(t, device) for c, t in times.items()}
    (worst,) = slowest([units], device)
    ratios = [a / b for a, b in zip(times["inductor"], times["max"], strict=True)]
    memory = torch.cuda.max_memory_allocated() / 2**20 if on_gpus else 0.0
    memory = memory or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    if dist.get_rank() == 0:
        facts = {
            "step_ms": {c: statistics.median(t) for c, t in times.items()},
            "to_inductor": statistics.median(ratios),
        }
        print(json.dumps({"losses": losses, "loss_units": worst, "memory_mib": memory, **facts}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
