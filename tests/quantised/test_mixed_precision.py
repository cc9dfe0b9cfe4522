"""Autocast, scaled gradients, and parameters of 16 bits with an optimizer's state of 32."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import torch_max_backend

OPTIONS = {"fallback": "error", "executor": "auto"}
F = nn.functional


def model_and_input() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 8)), torch.randn(6, 32)


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="max_backend", options=OPTIONS)


def assert_near(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    """Within some roundings of the dtype that is computed in: eager rounds between its ops, and a program does not."""
    assert found.dtype is wanted.dtype
    step = torch.finfo(dtype).eps * max(1.0, float(wanted.abs().max()))
    assert float((found.double() - wanted.double()).abs().max()) <= 4 * step


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("inside", [True, False], ids=["in the function", "around the call"])
def test_autocast(dtype: torch.dtype, inside: bool) -> None:
    model, x = model_and_input()

    def function(x: torch.Tensor) -> torch.Tensor:
        if not inside:
            return model(x)
        with torch.autocast("cpu", dtype):
            return model(x)

    with torch.autocast("cpu", dtype, enabled=not inside), torch.no_grad():
        assert_near(compiled(function)(x), function(x), dtype)
    assert not torch_max_backend.reports()[-1].islands


def test_autocast_that_is_off_in_a_part() -> None:
    model, x = model_and_input()

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = model[0](x)
            with torch.autocast("cpu", enabled=False):
                return F.linear(y.float(), model[3].weight)

    with torch.no_grad():
        found, wanted = compiled(function)(x), function(x)
    assert found.dtype is torch.float32
    assert_near(found, wanted, torch.bfloat16)


def test_gradients_under_autocast() -> None:
    model, x = model_and_input()
    twin = copy.deepcopy(model)
    for one, run in ((model, compiled(model)), (twin, twin)):
        with torch.autocast("cpu", torch.bfloat16):
            loss = run(x).float().square().mean()
        loss.backward()
        assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in one.parameters())
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert_near(a.grad, b.grad, torch.bfloat16)  # type: ignore[arg-type]


def test_a_step_with_scaled_gradients() -> None:
    """An infinite gradient skips the step and halves the scale, as in eager: exactly."""
    model, x = model_and_input()
    twin = copy.deepcopy(model)
    scales, weights = [], []
    for one, run in ((model, compiled(model)), (twin, twin)):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        for factor in (1.0, float("inf"), 1.0):
            before = [p.detach().clone() for p in one.parameters()]
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = run(x).float().square().mean() * factor
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            same = all(torch.equal(a, b) for a, b in zip(before, one.parameters(), strict=True))
            assert same is (factor != 1.0)
        weights.append([p.detach() for p in one.parameters()])
    assert scales[:3] == scales[3:] == [2.0**11, 2.0**10, 2.0**11]
    for a, b in zip(*weights, strict=True):
        assert_near(a, b, torch.float16)


def test_an_optimizer_with_wider_state() -> None:
    """Parameters of bfloat16, moments and a master copy of float32, in one compiled step: equal to eager's."""
    torch.manual_seed(0)
    master = torch.randn(64, 32)
    gradient = torch.randn(64, 32).to(torch.bfloat16)

    def step(weight: torch.Tensor, master: torch.Tensor, moment: torch.Tensor, gradient: torch.Tensor) -> None:
        moment.mul_(0.875).add_(gradient.float(), alpha=0.125)
        master.sub_(moment * 0.0625)
        weight.copy_(master)

    states = [[master.to(torch.bfloat16), master.clone(), torch.zeros_like(master)] for _ in range(2)]
    for run, state in zip((compiled(step), step), states, strict=True):
        for _ in range(3):
            run(*state, gradient)
    for a, b in zip(*states, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
