"""The comparison with eager that the training examples make can fail."""

from __future__ import annotations

import copy
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.any_runner("the examples' comparison with eager, on runs of eager")

FILE = Path(__file__).resolve().parents[2] / "examples" / "training.py"


@pytest.fixture(scope="module")
def training() -> Any:
    spec = importlib.util.spec_from_file_location("training_example", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def problem(training: Any) -> Any:
    """A model, batches, its loss, and eager's runs: plain, and nudged."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    batches = [(torch.randn(16, 4), torch.randn(16, 1)) for _ in range(20)]
    size = training.nudge_size(model, batches, loss_of)
    nudges = [training.Nudge(size, seed) for seed in range(2, 2 + training.NUDGES)]
    nudged = [training.train("nudged", model, batches, loss_of, 1e-2, "eager", nudge) for nudge in nudges]
    return model, batches, training.train("eager", model, batches, loss_of, 1e-2, "eager"), nudged


def loss_of(model: nn.Module, inputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(inputs), wanted)


class Scaled(torch.autograd.Function):
    """The same values, and a gradient that is 1 % too large."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 1.01


def wrong_loss(model: nn.Module, inputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model[2](Scaled.apply(model[1](model[0](inputs)))), wanted)


def test_nudges(training: Any, problem: Any) -> None:
    model, batches, eager, nudged = problem
    assert not torch.equal(eager.losses, nudged[0].losses)
    before = copy.deepcopy(model)
    with training.Nudge(1e-3, 2).moved(model):
        assert training.apart(model.parameters(), before.parameters()) > 0
    assert training.apart(model.parameters(), before.parameters()) == 0
    size = training.nudge_size(model, batches, loss_of)
    assert 2**-26 < size < 2**-16


def test_check(training: Any, problem: Any) -> None:
    _, _, eager, nudged = problem
    for run in (eager, *nudged):
        assert "as eager" in training.check(run, eager, nudged)
    one_step = torch.zeros(20).index_fill(0, torch.tensor(7), 1e-3)
    with pytest.raises(AssertionError, match="step 7: losses differ"):
        training.check(replace(eager, losses=eager.losses + one_step), eager, nudged)
    with pytest.raises(AssertionError, match="losses differ"):
        training.check(replace(eager, losses=eager.losses * float("nan")), eager, nudged)


def test_a_right_run_passes(training: Any, problem: Any) -> None:
    """An eager run of which nothing was learned, with errors as large as those of the nudged runs."""
    model, batches, eager, nudged = problem
    other = training.Nudge(training.nudge_size(model, batches, loss_of), 2 + training.NUDGES)
    right = training.train("right", model, batches, loss_of, 1e-2, "eager", other)
    assert "as eager" in training.check(right, eager, nudged)


def test_a_learning_rate_that_is_one_percent_off(training: Any, problem: Any) -> None:
    model, batches, eager, nudged = problem
    other = training.train("too fast", model, batches, loss_of, 1.01e-2, "eager")
    with pytest.raises(AssertionError, match="step 1: losses differ"):
        training.check(other, eager, nudged)
    with pytest.raises(AssertionError, match="final parameters"):
        training.check(replace(eager, model=other.model), eager, nudged)


def test_predicted(training: Any) -> None:
    """One more of nine numbers is above what eight predict as often as was asked for."""
    logs = -torch.empty(4000, 9).exponential_(generator=torch.Generator().manual_seed(1)).log() * 3 + 2
    above = sum(float(row[-1].exp()) > training.predicted(row[:-1].exp(), 0.05) for row in logs)
    assert abs(above - 200) <= 3 * (200 * 0.95) ** 0.5


def test_how_often_a_right_run_fails(training: Any) -> None:
    """Runs that drift apart by random factors, with jumps, until they are as far apart as they can be."""
    generator = torch.Generator().manual_seed(0)
    tries, runs, steps = 400, training.NUDGES + 1, 300
    failed = 0
    for _ in range(tries):
        jumps = 3 * (torch.rand(runs, steps, generator=generator) < 0.01)
        growth = (0.1 + 0.2 * torch.randn(runs, steps, generator=generator) + jumps).cumsum(1)
        drift = (growth.clamp(max=12).exp() * 1e-7) * torch.randn(runs, steps, generator=generator)
        found = []
        for row in drift:
            model = nn.Linear(1, 1, bias=False)
            nn.init.constant_(model.weight, 1 + float(row.abs().sum()))
            found.append(training.Run(1 + row, model, 0.0, loss_of))
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        try:
            training.check(found[0], training.Run(torch.ones(steps), model, 0.0, loss_of), found[1:])
        except AssertionError:
            failed += 1
    assert failed <= tries * training.ERRORS + 3 * (tries * training.ERRORS) ** 0.5


def test_check_gradients(training: Any, problem: Any) -> None:
    model, batches, eager, _ = problem
    right = replace(eager, model=copy.deepcopy(model))
    assert "1.00 times as far" in training.check_gradients(right, eager, batches, loss_of)
    with pytest.raises(AssertionError, match="times as far from float64's as eager's, allowed is 8"):
        training.check_gradients(replace(right, compute=wrong_loss), eager, batches, loss_of)
