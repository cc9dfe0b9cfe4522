"""A forward's tensors for its backward lie as kernels have them, and the backward is compiled for that."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import fx, nn

from tests.support.loop_programs import noted_programs
from torch_max_backend.frontend import pipeline
from torch_max_backend.partition.region import RESTRIDED

pytestmark = pytest.mark.any_runner("programs, which torch's own convolutions are a part of")


def network() -> nn.Module:
    torch.manual_seed(0)
    first = [nn.Conv2d(3, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*first, nn.Conv2d(8, 8, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(8 * 144, 4))


def gradients(model: nn.Module, function: Any, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    function(x).square().mean().backward()
    return [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]


def test_what_a_chain_of_convolutions_saves_has_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, found = pipeline.take_strides, list[tuple[int, ...]]()

    def noted(gm: fx.GraphModule, inputs: list[Any]) -> None:
        taken(gm, inputs)
        restrided = [n for n in gm.graph.find_nodes(op="placeholder") if n.meta.get(RESTRIDED)]
        found.extend(n.meta["val"].stride() for n in restrided)

    monkeypatch.setattr(pipeline, "take_strides", noted)
    model, x = network(), torch.randn(2, 3, 12, 12)
    compiled = torch.compile(model, backend="max_backend", options={"executor": "auto", "fallback": "error"})
    double = copy.deepcopy(model).double()
    exact = gradients(double, double, x.double())
    for got, want in zip(gradients(model, compiled, x), exact, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
    assert found and all(stride[1] == 1 for stride in found)


def test_what_a_pool_saves_lies_as_its_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image itself, behind a pointwise op, and the places of what windows have chosen."""
    programs = noted_programs(monkeypatch)
    x = torch.randn(2, 8, 12, 12).to(memory_format=torch.channels_last).requires_grad_()
    options = {"executor": "auto", "fallback": "error"}

    def pooled(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.max_pool2d(x.sin().relu(), 3, 2, 1)

    torch.compile(pooled, backend="max_backend", options=options)(x).square().sum().backward()
    got, x.grad = x.grad, None
    pooled(x).square().sum().backward()
    torch.testing.assert_close(got, x.grad)
    orders = [order for loops in programs for name, order in loops.outputs if name in loops.free]
    assert len(orders) >= 2 and set(orders) == {(0, 2, 3, 1)}
