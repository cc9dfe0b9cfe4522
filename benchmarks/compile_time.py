"""How long MAX takes for graphs that grow: an optimizer's step, and blocks of a convolutional network in training.

    python benchmarks/compile_time.py adamw 4 16 40 77
    python benchmarks/compile_time.py blocks 4 6 12 --without-cuts

Every compile is a process of its own, with empty caches (MAX's too).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

WHAT = {
    "adamw": """
shapes = (128, 128), (128,), (384, 128), (384,)
parameters = [torch.nn.Parameter(torch.randn(shapes[i % 4])) for i in range(n)]
for p in parameters:
    p.grad = torch.randn_like(p)
function, arguments = torch.optim.AdamW(parameters, 1e-3).step, ()
""",
    "blocks": """
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(16)

    def forward(self, x):
        return torch.relu(self.norm(self.convolution(x))) + x

function, arguments = torch.nn.Sequential(*(Block() for _ in range(n))).train(), (torch.randn(8, 16, 16, 16),)
""",
}

PROGRAM = """
import json, sys, time
import torch, torch_max_backend
from torch_max_backend.partition import connected_components, optimizer_updates, partitioner

n = {n}
if {without_cuts}:
    connected_components.LARGE = partitioner.MANY_STORES = optimizer_updates.FEWEST_STORES = 10**9
{what}
start = time.perf_counter()
torch.compile(function, backend="max_backend", options={{"fallback": "error"}})(*arguments)
seconds = time.perf_counter() - start
(report,) = torch_max_backend.reports()
print(json.dumps([n, report.nodes, report.stats.regions, report.stats.compile_s, seconds]))
"""


def main(what: str, sizes: list[int], without_cuts: bool = False, limit: float = 600.0) -> None:
    """Compile WHAT (adamw: parameters; blocks: their number) in each of SIZES; --limit is in seconds."""
    table = Table(what, "nodes", "regions", "compile s", "first call s")
    for n in sizes:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "program.py")
            program.write_text(PROGRAM.format(n=n, what=WHAT[what], without_cuts=without_cuts))
            caches = {"TORCH_MAX_BACKEND_CACHE_DIR": f"{folder}/ours", "MODULAR_MAX_CACHE_DIR": f"{folder}/max"}
            try:
                done = subprocess.run(
                    [sys.executable, program],
                    env={**os.environ, **caches},
                    capture_output=True,
                    text=True,
                    timeout=limit,
                )
            except subprocess.TimeoutExpired:
                table.add_row(str(n), "", "", f"over {limit:.0f}", "")
                continue
            if done.returncode:
                raise SystemExit(done.stderr)
            n, nodes, regions, *seconds = json.loads(done.stdout.splitlines()[-1])
            table.add_row(str(n), str(nodes), str(regions), *(f"{s:.1f}" for s in seconds))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
