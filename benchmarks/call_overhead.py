"""The backend's own time per call, for models with 2, 50 and 200 parameters.

    python benchmarks/call_overhead.py

The model multiplies a small vector by each of its parameters, so that arithmetic is next to nothing. Reported, as the
best of interleaved rounds, in microseconds a call: the whole call through ``backend="eager"`` and through this backend;
MAX's own execution of the region with buffers that are bound already; and what is left, the backend's own time:
binding, wrapping, checking and handing out, without Dynamo, which both backends pay alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from torch_max_backend.runtime.region_call import RegionCall


class Scaled(nn.Module):
    """Multiplies by each of its parameters."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.ones(16) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in self.scales:
            x = x * scale
        return x


def best(functions: dict[str, Callable[[], object]], rounds: int = 15, calls: int = 200) -> dict[str, float]:
    """Smallest mean microseconds a call of each function over interleaved rounds."""
    found = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(calls):
                function()
            found[name] = min(found[name], (time.perf_counter() - start) / calls * 1e6)
    return found


def measure(count: int) -> dict[str, float]:
    """Microseconds a call for a model with ``count`` parameters."""
    torch._dynamo.reset()
    calls: list[tuple[RegionCall, tuple]] = []
    original = RegionCall.__call__

    def spy(self: RegionCall, *args):  # type: ignore[no-untyped-def]
        calls.append((self, args))
        return original(self, *args)

    model, x = Scaled(count).eval(), torch.ones(16)
    eager = torch.compile(model, backend="eager")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="max_backend", options={"fallback": "error"})
    with torch.no_grad():
        compiled(x)
        RegionCall.__call__ = spy  # type: ignore[method-assign]
        compiled(x)
        RegionCall.__call__ = original  # type: ignore[method-assign]
        region, args = calls[-1]
        execute, buffers = region.execute, region.buffers_for(*args)
        functions = {
            "eager": lambda: eager(x),
            "max_backend": lambda: compiled(x),
            "region": lambda: region(*args),
            "engine": lambda: execute(buffers),
        }
        for function in functions.values():
            function()
        found = best(functions)
    found["own"] = found["region"] - found["engine"]
    return found


def main() -> None:
    """Print the table."""
    table = Table("parameters", "eager", "max_backend", "difference", "engine", "own time", title="us a call")
    for count in (2, 50, 200):
        m = measure(count)
        cells = (m["eager"], m["max_backend"], m["max_backend"] - m["eager"], m["engine"], m["own"])
        table.add_row(str(count), *(f"{c:.0f}" for c in cells))
    Console().print(table, f"torch {torch.__version__}, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
