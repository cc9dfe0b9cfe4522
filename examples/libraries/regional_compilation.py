"""Compiling a block once for all layers: a marked region in one graph, and each layer compiled by itself.

python examples/libraries/regional_compilation.py
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from what_ran import print_what_ran


class Block(nn.Module):
    """A layer of 32 features with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class MarkedBlock(Block):
    """The same, a region of its own in the graph."""

    @torch.compiler.nested_compile_region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def step(run: nn.Module, model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The result and the gradients of the parameters."""
    y = run(x)
    return [y.detach(), *torch.autograd.grad(y.square().mean(), list(model.parameters()))]


def main() -> None:
    """Run and differentiate in eager and compiled, and compare."""
    torch.manual_seed(0)
    plain = nn.Sequential(*(Block() for _ in range(4)))
    x = torch.randn(3, 5, 32)
    wanted = step(plain, plain, x)

    marked = nn.Sequential(*(MarkedBlock() for _ in range(4)))
    marked.load_state_dict(plain.state_dict())
    given = step(torch.compile(marked, backend="max_backend", fullgraph=True), marked, x)
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-5)
    print("marked regions: the same, with gradients")

    layers = copy.deepcopy(plain)
    for layer in layers:
        layer.compile(backend="max_backend", fullgraph=True)
    torch.testing.assert_close(step(layers, layers, x), wanted, rtol=1e-4, atol=1e-5)
    print("layer by layer: the same, with gradients")
    print_what_ran()


if __name__ == "__main__":
    main()
