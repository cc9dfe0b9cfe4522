"""Public ops beside plain PyTorch, in eager and by Inductor, and beside a copy of as many bytes.

    python -m benchmarks.public_ops
    python -m benchmarks.public_ops --only rms_norm --dtype bfloat16 --threads 2

The cases stand in the ops' declarations. All contenders take turns in one process; a figure is the lower quartile of
their times, since what disturbs a call makes it longer. A copy reads and writes half of the bytes each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import typer

from torch_max_backend import ops
from torch_max_backend.ops.declaration import BenchmarkCase, Declaration, Maker, declarations


def lower_quartiles(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Seconds that each takes."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return {name: sorted(own)[len(own) // 4] for name, own in times.items()}


def row(declaration: Declaration, case: BenchmarkCase, dtype: torch.dtype, rounds: int) -> str:
    """A line of the table."""
    torch._dynamo.reset()
    args = case.arguments(Maker(dtype, "cpu"))
    op, plain = getattr(ops, declaration.name), torch.compile(case.plain, backend="inductor")
    moved = int(declaration.bytes(args))
    source = torch.empty(moved // 2, dtype=torch.uint8)
    target = torch.empty_like(source)
    contenders = {
        "op": lambda: op(*args),
        "eager": lambda: case.plain(*args),
        "Inductor": lambda: plain(*args),
        "clone": source.clone,
        "copy": lambda: target.copy_(source),
    }
    lower_quartiles(contenders, 3)  # compiles, and warms up
    found = lower_quartiles(contenders, rounds)
    shown = " | ".join(f"{1e3 * t:.3f}" for t in found.values())
    shares = " | ".join(f"{found[other] / found['op']:.2f}" for other in ("eager", "Inductor", "clone", "copy"))
    return f"| {declaration.name} {case.name} | {moved / 1e6:.1f} | {shown} | {shares} |"


def main(
    only: list[str] = typer.Option([], help="Names of ops; all of them if none is given."),
    dtype: str = typer.Option("float32", help="float32, bfloat16 or float16."),
    rounds: int = typer.Option(60, help="Calls of each contender."),
    threads: int = typer.Option(2, help="PyTorch's threads."),
) -> None:
    """Time public ops, and print a table: milliseconds, and how many times as fast the op is."""
    torch.set_num_threads(threads)
    print("| op | MB | op ms | eager ms | Inductor ms | clone ms | copy ms | x eager | x Inductor | x clone | x copy |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for declaration in declarations():
        for case in declaration.cases if not only or declaration.name in only else ():
            print(row(declaration, case, getattr(torch, dtype), rounds), flush=True)


if __name__ == "__main__":
    typer.run(main)
