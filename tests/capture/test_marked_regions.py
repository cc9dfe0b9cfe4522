"""Regions that are marked by ``nested_compile_region``: their ops are the graph's, with eager's results."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torch_max_backend.partition.partitioner import Plan

pytestmark = pytest.mark.sampled

STRICT = {"fallback": "error", "executor": "auto"}


class Block(nn.Module):
    """A marked layer of four features with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    @torch.compiler.nested_compile_region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(self.norm(x)).tanh()


def gradients(run: nn.Module, model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    y = run(x)
    return [y.detach(), *torch.autograd.grad(y.square().mean(), list(model.parameters()))]


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients(dynamic: bool, plans: list[Plan]) -> None:
    """Torch reuses the trace of the second call for the third and fourth, with its promises."""
    model = nn.Sequential(*(Block() for _ in range(4)))
    run = torch.compile(model, backend="max_backend", fullgraph=True, options=STRICT)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(gradients(run, model, x), gradients(model, model, x), rtol=1e-4, atol=1e-5)
    assert {len(plan.regions) for plan in plans} == {1}
    assert not any(plan.islands for plan in plans)


def test_without_gradients(plans: list[Plan]) -> None:
    model = nn.Sequential(*(Block() for _ in range(3)))
    x = torch.randn(3, 4)
    with torch.no_grad():
        run = torch.compile(model, backend="max_backend", fullgraph=True, options=STRICT)
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
    assert [len(plan.regions) for plan in plans] == [1]


def test_a_region_in_a_region(plans: list[Plan]) -> None:
    @torch.compiler.nested_compile_region
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * torch.arange(4.0)

    @torch.compiler.nested_compile_region
    def outer(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return inner(x).sin(), inner(x + 1)

    def twice(x: torch.Tensor) -> torch.Tensor:
        a, b = outer(x)
        c, d = outer(b)
        return a + c + d

    x = torch.randn(3, 4)
    run = torch.compile(twice, backend="max_backend", fullgraph=True, options=STRICT)
    torch.testing.assert_close(run(x), twice(x), rtol=1e-4, atol=1e-5)
    assert [len(plan.regions) for plan in plans] == [1]
