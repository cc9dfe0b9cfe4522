"""ResNet-18, trained on images that are drawn here, compiled against eager.

    uv run python examples/train_resnet.py
    uv run python examples/train_resnet.py --steps 20 --batch 8

The classes are ten grids of stripes of another direction and width, under noise. The compiled run must follow eager's
loss at every step (see `check` in training.py), running statistics included; the curves are written as a PNG.
"""

from __future__ import annotations

import math
from pathlib import Path

import timm
import torch
import typer
from torch import nn
from torch.nn import functional as F
from training import Batch, compare

RATE = 1e-4
"""At 1e-3, the first steps amplify rounding so much that eager's own runs share only the shape of the curve."""


def loss_of(model: nn.Module, images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the class."""
    return F.cross_entropy(model(images), classes)


def batches(steps: int, batch: int, size: int) -> list[Batch]:
    """Noisy stripes, float32 [batch, 3, size, size], and their classes, int64 [batch]."""
    generator = torch.Generator().manual_seed(0)
    y, x = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    patterns = []
    for kind in range(10):
        angle, width = math.pi * (kind % 5) / 5, 4 + 6 * (kind // 5)
        patterns.append(torch.sin(width * (x * math.cos(angle) + y * math.sin(angle))))
    grids = torch.stack(patterns)[:, None].expand(-1, 3, -1, -1)
    found = []
    for _ in range(steps):
        classes = torch.randint(10, (batch,), generator=generator)
        found.append((grids[classes] + 1.5 * torch.randn(batch, 3, size, size, generator=generator), classes))
    return found


def main(
    size: int = 32,
    batch: int = 32,
    steps: int = 300,
    plot: Path = Path("resnet.png"),
    backend: str = "max_backend",
) -> None:
    """Train and compare."""
    torch.manual_seed(0)
    model = timm.create_model("resnet18", pretrained=False, num_classes=10, drop_rate=0.1)
    compare(model, batches(steps, batch, size), loss_of, RATE, plot, "ResNet-18 on stripes", backend)


if __name__ == "__main__":
    typer.run(main)
