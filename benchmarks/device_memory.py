"""Device memory and time of a training step on a GPU, each case in a process of its own.

    python -m benchmarks.device_memory --model gpt --backends eager,inductor,max_backend --shares 60,10,0

A step is forward and backward under bfloat16 autocast and fused AdamW. Reported for each case: the card's used memory
after the steps (``torch.cuda.mem_get_info``, so that every allocator counts), what PyTorch's allocator has reserved of
it, what MAX's pool has in use of its share, and the time of a step. ``--shares`` are values of the option
``gpu_memory_share``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

STEPS = 8
COLUMNS = ("model", "backend", "share", "used_gb", "torch_gb", "pool_in_use_gb", "ms", "first_s")


class Block(nn.Module):
    """A transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.project, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [batch, length, width]."""
        batch, length, width = x.shape
        q, k, v = self.project(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.widen(self.norms[1](x))))


class LanguageModel(nn.Module):
    """Eight blocks of width 1024 and 32,000 tokens; gives the mean cross-entropy."""

    def __init__(self, width: int = 1024, tokens: int = 32_000) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, 16) for _ in range(8)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """``ids`` and ``labels`` [batch, length]."""
        return F.cross_entropy(self.head(self.norm(self.blocks(self.embed(ids)))).flatten(0, 1), labels.flatten())


class Classifier(nn.Module):
    """An image model of timm; gives the mean cross-entropy."""

    def __init__(self, name: str) -> None:
        from timm import create_model

        super().__init__()
        self.model = create_model(name, num_classes=1000)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """``images`` [batch, 3, 224, 224], ``labels`` [batch]."""
        return F.cross_entropy(self.model(images), labels)


def _gpt() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    ids = torch.randint(0, 32_000, (8, 1024))
    return LanguageModel(), (ids, ids.roll(-1, 1))


def _images(name: str, batch: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Classifier(name), (torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,)))


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "gpt": _gpt,
    "vit_small_patch16_224": lambda: _images("vit_small_patch16_224", 128),
    "convnext_tiny": lambda: _images("convnext_tiny", 64),
}


def measure(name: str, backend: str, share: int) -> dict[str, Any]:
    """Train a few steps in this process; sizes in GB (1e9 bytes)."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model, inputs = model.cuda(), tuple(x.cuda() for x in inputs)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    options = {"gpu_memory_share": share} if backend == "max_backend" else None
    compute: Any = model if backend == "eager" else torch.compile(model, backend=backend, options=options)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = compute(*inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def seconds(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    first = seconds(1)
    seconds(3)
    ms = seconds(STEPS) / STEPS * 1e3
    free, total = torch.cuda.mem_get_info()
    found = {
        "used_gb": (total - free) / 1e9,
        "torch_gb": torch.cuda.memory_reserved() / 1e9,
        "ms": ms,
        "first_s": first,
    }
    if backend == "max_backend" and share:
        from max.driver import Accelerator

        stats = Accelerator(0).stats
        found["pool_in_use_gb"] = (stats["total_memory"] - stats["free_memory"]) / 1e9
    return {"model": name, "backend": backend, "share": share if backend == "max_backend" else "", **found}


def _in_own_process(name: str, backend: str, share: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.device_memory", "--only", name, backend, str(share)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[1])
    if done.returncode:
        raise RuntimeError(f"{name} with {backend} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure the cases one after the other, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", choices=list(MODELS), help="by default all")
    parser.add_argument("--backends", default="eager,inductor,max_backend")
    parser.add_argument("--shares", default="60,0")
    parser.add_argument("--only", nargs=3, metavar=("MODEL", "BACKEND", "SHARE"), help="one case, in this process")
    arguments = parser.parse_args()
    if arguments.only:
        name, backend, share = arguments.only
        print(json.dumps(measure(name, backend, int(share))))
        return
    table = Table(*COLUMNS)
    for name in arguments.model or MODELS:
        for backend in arguments.backends.split(","):
            for share in arguments.shares.split(",") if backend == "max_backend" else ["-1"]:
                row = _in_own_process(name, backend, int(share))
                cells = (row.get(column, "") for column in COLUMNS)
                table.add_row(*(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells))
    Console().print(table)


if __name__ == "__main__":
    main()
