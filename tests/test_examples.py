"""The comparison with eager that the training examples make can fail."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

FILE = Path(__file__).resolve().parents[1] / "examples" / "training.py"


@pytest.fixture(scope="module")
def training() -> Any:
    spec = importlib.util.spec_from_file_location("training_example", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
    return module


def test_check(training: Any) -> None:
    def run(model: nn.Module, other: torch.Tensor | None = None) -> Any:
        trained = training.train("eager", model, batches, loss_of, 1e-2, "eager")
        return trained if other is None else training.Run(trained.losses + other, trained.model, trained.step_s)

    def loss_of(model: nn.Module, inputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(model(inputs), wanted)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    batches = [(torch.randn(16, 4), torch.randn(16, 1)) for _ in range(20)]
    eager, nudged = run(model), run(training.nudged(model))
    assert not torch.equal(eager.losses, nudged.losses)
    assert "as eager" in training.check(eager, eager, [nudged])
    assert "as eager" in training.check(nudged, eager, [nudged])
    one_step = torch.zeros(20).index_fill(0, torch.tensor(7), 1e-3)
    with pytest.raises(AssertionError, match="step 7: losses differ"):
        training.check(run(model, one_step), eager, [nudged])
    with torch.no_grad():
        next(model.parameters()).add_(1e-3)
    with pytest.raises(AssertionError, match="losses differ"):
        training.check(run(model), eager, [nudged])
    moved = training.Run(eager.losses, run(model).model, eager.step_s)
    with pytest.raises(AssertionError, match="final parameters"):
        training.check(moved, eager, [nudged])
