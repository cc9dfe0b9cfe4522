"""What large pages are worth on a CPU: functions with large results, with and without them, in turns.

    python -m benchmarks.large_pages
    python -m benchmarks.large_pages --threads 1 --rounds 5

Reported are medians of the wall clock in milliseconds, of eager, Inductor, and this backend twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

from benchmarks.work import Call
from torch_max_backend.measurement.clocks import clock_for
from torch_max_backend.measurement.statistics import spread
from torch_max_backend.measurement.turns import interleave
from torch_max_backend.runtime import large_pages

Function = Callable[..., torch.Tensor]
NAMES = ("eager", "inductor", "max", "max, small pages")


def cases() -> dict[str, tuple[Function, tuple[torch.Tensor, ...]]]:
    """Functions by name, with their inputs."""
    x, y = torch.randn(2, 1 << 24)
    rows, w, b, v = torch.randn(6304, 768), torch.randn(768, 3072), torch.randn(3072), torch.randn(3072, 768)
    return {
        "x * 2 + y, 64 MiB": (lambda x, y: x * 2 + y, (x, y)),
        "softmax, 64 MiB": (lambda x: x.softmax(-1), (torch.randn(4096, 4096),)),
        "relu(x * 1.1 + 0.3), 49 MiB": (lambda x: F.relu(x * 1.1 + 0.3), (torch.randn(16, 64, 112, 112),)),
        "x @ w, bfloat16, 128 MiB": (lambda x, w: x @ w, (rows_of(16384, 64), rows_of(64, 4096))),
        "two products with GELU, 74 MiB": (lambda x, w, b, v: F.gelu(torch.addmm(b, x, w)) @ v, (rows, w, b, v)),
    }


def rows_of(*shape: int) -> torch.Tensor:
    """A matrix in bfloat16."""
    return torch.randn(shape).to(torch.bfloat16)


def contenders(function: Function, inputs: tuple[torch.Tensor, ...]) -> dict[str, Call]:
    """Calls by name."""
    ours = torch.compile(function, backend="max_backend", dynamic=False, options={"fallback": "error"})

    def without(*args: torch.Tensor) -> torch.Tensor:
        with patch.object(large_pages, "_advise", None):
            return ours(*args)

    functions = (function, torch.compile(function, dynamic=False), ours, without)
    return {name: partial(_call, f, inputs) for name, f in zip(NAMES, functions, strict=True)}


def _call(function: Function, inputs: tuple[torch.Tensor, ...], number: int) -> torch.Tensor:
    return function(*inputs)


@torch.no_grad()
def main(threads: int = 2, rounds: int = 15) -> None:
    """Print the table."""
    torch.set_num_threads(threads)
    table = Table("function", *NAMES, title=f"ms, {threads} threads, torch {torch.__version__}")
    for name, (function, inputs) in cases().items():
        calls = contenders(function, inputs)
        for call in calls.values():
            call(0)
        times, errors = interleave(calls, clock_for("cpu", 0.05), rounds)
        for which, error in errors.items():
            print(f"{name}, {which}: {error}")
        medians = {which: spread(t.wall)["median"] for which, t in times.items() if which not in errors}
        table.add_row(name, *(f"{medians[n] * 1e3:.1f}" if n in medians else "failed" for n in NAMES))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
