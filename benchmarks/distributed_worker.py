"""One rank of `benchmarks.distributed`: contenders train in one way, one after the other, and then in turns."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from filelock import FileLock
from torch import nn
from torch.distributed.tensor import DTensor

from benchmarks import overlap
from benchmarks.distributed_models import Shape, shared_out
from torch_max_backend import reports
from torch_max_backend.measurement.machine import device_facts
from torch_max_backend.measurement.statistics import spread

CONTENDERS = ("eager", "inductor", "max")
RATE = 0.05
TRACED = 3
"""Steps of a trace."""
WAIT_S = 0.05
RELATIVE, ABSOLUTE = 1e-4, 1e-5
"""How far losses in float32 may be apart, in which sums are of another order: of the loss, and besides."""


class Training:
    """A contender with its own model and optimizer.

    Args:
        contender: Or `float32`: eager in float32 from parameters that are rounded to the task's dtype, as they are
            after each step. On a GPU its products are in TF32, whose rounding is an eighth of bfloat16's.
    """

    def __init__(self, task: dict[str, Any], contender: str, device: str) -> None:
        self.shape, self.device, self.is_exact = Shape(**task["shape"]), device, contender == "float32"
        self.dtype = getattr(torch, task["dtype"])
        dtype = torch.float32 if self.is_exact else self.dtype
        self.model, blocks, self.part = shared_out(self.shape, task["way"], device, dtype, self.dtype)
        self.call = compiled(self.model, blocks, contender, task["way"])
        groups: dict[Any, list[nn.Parameter]] = {}
        for p in self.model.parameters():  # one call updates parameters of one layout
            groups.setdefault(p.device_mesh if isinstance(p, DTensor) else None, []).append(p)
        self.optimizer = torch.optim.SGD([{"params": g} for g in groups.values()], lr=RATE, foreach=True)

    def step(self, number: int) -> torch.Tensor:
        """One step; the loss on this rank."""
        size, seed = (self.shape.batch, self.shape.length), 1000 * number + self.part
        tokens = torch.randint(self.shape.words, size, generator=torch.Generator().manual_seed(seed)).to(self.device)
        self.optimizer.zero_grad()
        loss = self.call(input_ids=tokens, labels=tokens).loss
        loss.backward()
        self.optimizer.step()
        if self.is_exact:
            with torch.no_grad():
                for p in self.model.parameters():
                    p.copy_(p.to(self.dtype))
        return (loss.full_tensor() if isinstance(loss, DTensor) else loss).detach()

    def losses(self, steps: range) -> list[float]:
        """Those of some steps, after which there are no gradients."""
        found = [float(self.step(k)) for k in steps]
        self.optimizer.zero_grad()
        return found


def compiled(model: nn.Module, blocks: nn.ModuleList, contender: str, way: str) -> Callable[..., Any]:
    """The model by a contender: block by block where parameters are gathered for each, else as a whole."""
    if contender in ("eager", "float32"):
        return model
    how: dict[str, Any] = {"backend": "inductor"}
    if contender == "max":
        how = {"backend": "max_backend", "options": {"fallback": "error"}}
    if way not in ("fsdp2", "2d"):
        return torch.compile(model, **how)
    for block in blocks:
        block.compile(**how)
    return model


def limits(eager: list[float], rounding: float | None) -> list[float]:
    """How far a loss may be from eager's in each step.

    Args:
        rounding: In a narrower dtype, the largest distance of eager's losses from those with float32 arithmetic: one
            that is no farther from these is at most twice as far from eager. In float32, None: sums have another order.
    """
    if rounding is not None:
        return [2 * rounding] * len(eager)
    return [ABSOLUTE + RELATIVE * abs(x) for x in eager]


def farthest(some: list[float], others: list[float]) -> float:
    """The largest distance of two losses of one step."""
    return max(abs(a - b) for a, b in zip(some, others, strict=True))


def in_units(losses: list[float], eager: list[float], rounding: float | None) -> float:
    """The largest distance from eager's losses, of which more than 1 is too much."""
    pairs = zip(losses, eager, limits(eager, rounding), strict=True)
    return max(abs(a - b) / max(limit, sys.float_info.min) for a, b, limit in pairs)


class Rank:
    """This process in its group."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task, world = task, int(os.environ["WORLD_SIZE"])
        self.on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= world
        self.device = f"cuda:{os.environ['LOCAL_RANK']}" if self.on_gpu else "cpu"
        if self.on_gpu:
            torch.cuda.set_device(self.device)
        dist.init_process_group("nccl" if self.on_gpu else "gloo")
        self.host = dist.new_group(backend="gloo")
        self.is_first = dist.get_rank() == 0

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While no other group of the folder is here: float32 takes most memory."""
        with FileLock(Path(self.task["folder"]) / "alone.lock") if self.is_first else contextlib.nullcontext():
            dist.barrier(self.host)
            yield
            self.free()
            dist.barrier(self.host)

    def free(self) -> None:
        """Give back what torch's allocator keeps."""
        gc.collect()
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def held(self) -> int:
        """Bytes that torch's allocator has given out on a GPU; programs of this backend take all memory from there."""
        self.free()
        return torch.cuda.memory_allocated() if self.on_gpu else 0

    def exact_losses(self) -> list[float]:
        """Eager's with float32 arithmetic; none where that is what all contenders have."""
        if self.task["dtype"] == "float32":
            return []
        with self.alone():
            before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("high" if self.on_gpu else before)
            losses = Training(self.task, "float32", self.device).losses(range(self.task["steps"]))
            torch.set_float32_matmul_precision(before)
        self.say("float32: done")
        return losses

    def started(self, contender: str) -> tuple[Training, dict[str, Any]]:
        """A contender after its first steps: losses, seconds until the first one, and memory on a GPU."""
        before, begin = self.held(), time.perf_counter()
        training, steps = Training(self.task, contender, self.device), self.task["steps"]
        losses = training.losses(range(1))
        facts: dict[str, Any] = {"first_s": time.perf_counter() - begin}
        facts["losses"] = losses + training.losses(range(1, steps))
        after = self.held()
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
            training.losses(range(steps, steps + 1))
            held, peak = after - before, torch.cuda.max_memory_allocated() - after
            facts["memory"] = {"held": held, "torch_peak": peak, "peak": held + peak}
            self.free()
        whole = time.perf_counter() - begin
        self.say(f"{contender}: first step after {facts['first_s']:.1f} s, all after {whole:.1f} s")
        return training, facts

    def say(self, told: str) -> None:
        """A line for who looks why this takes so long."""
        if self.is_first:
            print(told, flush=True)

    def wait_for_turn(self) -> None:
        """Say that everything is compiled, and wait until nobody else runs; no GPU is used meanwhile."""
        place = Path(self.task["folder"])
        if self.is_first:
            (place / f"{self.task['name']}.ready").touch()
            while not (place / f"{self.task['name']}.go").exists():
                time.sleep(WAIT_S)
        dist.barrier(self.host)

    def timed(self, training: Training, number: int) -> float:
        """Seconds that a step takes, from a barrier on."""
        dist.barrier()
        if self.on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        training.step(number)
        if self.on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def largest(self, values: list[float]) -> list[float]:
        """Of each value, the largest that a rank has."""
        found = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return found.tolist()


def graphs() -> int:
    """How many graphs Dynamo has compiled in this process."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def measured(rank: Rank) -> dict[str, Any]:
    """Train, compare, wait for the turn, time and trace."""
    task = rank.task
    exact = rank.exact_losses()
    trainings: dict[str, Training] = {}
    entries: dict[str, dict[str, Any]] = {}
    for contender in CONTENDERS:
        before = graphs()
        trainings[contender], entries[contender] = rank.started(contender)
        entries[contender]["graphs"] = graphs() - before
    own = reports()
    entries["max"]["islands"] = sum(len(r.islands) for r in own)
    entries["max"]["regions_of_max"] = sum(r.stats.regions - len(r.programs) for r in own)
    eager = entries["eager"]["losses"]
    rounding = rank.largest([farthest(eager, exact)])[0] if exact else None
    rank.wait_for_turn()
    before, times = graphs(), {c: list[float]() for c in CONTENDERS}
    for k in range(task["warm_up"] + task["rounds"]):
        for c in CONTENDERS[k % 3 :] + CONTENDERS[: k % 3]:
            times[c].append(rank.timed(trainings[c], task["steps"] + k))
    for c, entry in entries.items():
        (entry["loss_units"],) = rank.largest([in_units(entry["losses"], eager, rounding)])
        entry["seconds"] = rank.largest(times[c])[task["warm_up"] :]
        entry["times"] = {"wall": spread(entry["seconds"])}
        if rank.on_gpu:
            step = trainings[c].step
            entry.update(overlap.measured(functools.partial(step, 0), TRACED, rank.is_first))
    return {
        "compiled_while_timed": graphs() - before,
        "exact_losses": exact,
        "rounding": rounding,
        "device": device_facts(rank.device),
        "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "contenders": entries,
    }


def main(task: dict[str, Any]) -> None:
    """Measure, and write a file of JSON on rank 0."""
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    rank = Rank(task)
    found = measured(rank)
    if rank.is_first:
        Path(task["answer"]).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
