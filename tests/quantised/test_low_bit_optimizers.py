"""torchao's optimizers with states of 8 and 4 bits: compiled steps against the same steps in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchao.optim
from torch import nn
from torchao.optim.adam import single_param_adam

import torch_max_backend

OPTIONS = {"fallback": "error", "executor": "auto"}
STEPS = 3


def stepped(name: str, stochastic: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, Any]:
    """A parameter and the state of its first moment after some steps; torchao compiles a step by ``torch.compile``."""
    compile_ = torch.compile

    def step(function: Any, **options: Any) -> Any:
        assert function is single_param_adam
        return compile_(function, backend="max_backend", options=OPTIONS, **options) if compiled else function

    monkeypatch.setattr(torch, "compile", step)
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(64, 128).to(torch.bfloat16 if stochastic else torch.float32))
    optimizer = getattr(torchao.optim, name)([weight], lr=1e-2, bf16_stochastic_round=stochastic)
    for _ in range(STEPS):
        weight.grad = torch.randn(weight.shape).to(weight.dtype)
        optimizer.step()
    monkeypatch.undo()
    return weight.detach(), optimizer.state[weight]["exp_avg"]


@pytest.mark.sampled
@pytest.mark.parametrize("stochastic", [False, True], ids=["nearest", "stochastic"])
@pytest.mark.parametrize("name", ["AdamW8bit", "AdamW4bit", "AdamWFp8"])
def test_steps(name: str, stochastic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stochastic rounding draws its bits from torch's generator, so a seed gives eager's parameters in bfloat16."""
    torch._dynamo.reset()
    wanted, state = stepped(name, stochastic, False, monkeypatch)
    found, compiled_state = stepped(name, stochastic, True, monkeypatch)
    report = torch_max_backend.reports()[-1]
    assert report.stats.regions == report.stats.programs == 1
    assert not report.islands
    assert type(compiled_state) is type(state)
    if stochastic:
        assert float((found != wanted).double().mean()) < 0.001  # one that was drawn at the very edge
    else:
        torch.testing.assert_close(found, wanted, rtol=0, atol=4e-7)  # eager rounds between ops: a few last digits
