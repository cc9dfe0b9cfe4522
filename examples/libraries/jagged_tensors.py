"""Nested tensors of the jagged layout: rows of different lengths through a layer, with gradients.

    python examples/libraries/jagged_tensors.py

Attention and means over the rows are left out: torch 2.15 cannot trace them on a CPU, whatever the backend.
"""

from __future__ import annotations

import torch
from torch import nn
from what_ran import print_what_ran


class Gated(nn.Module):
    """A gated layer on sequences of 32 features, each of its own length."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.inner(self.norm(x)).chunk(2, -1)
        return x + self.outer(nn.functional.silu(gate) * up)


def step(run: nn.Module, model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The rows of the result, and the gradients of the parameters."""
    rows = run(x).values()
    return [rows.detach(), *torch.autograd.grad(rows.square().sum(), list(model.parameters()))]


def main() -> None:
    """Run and differentiate in eager and compiled, and compare."""
    torch.manual_seed(0)
    model = Gated()
    compiled = torch.compile(model, backend="max_backend")
    for lengths in ([3, 5, 2], [7, 1, 4, 6]):
        x = torch.nested.nested_tensor([torch.randn(n, 32) for n in lengths], layout=torch.jagged)
        for given, wanted in zip(step(compiled, model, x), step(model, model, x)):
            torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-4)
    print("a layer on rows of different lengths: the same, with gradients")
    print_what_ran()


if __name__ == "__main__":
    main()
