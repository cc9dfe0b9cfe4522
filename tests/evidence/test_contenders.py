"""Contenders, cases and settings: what there is, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from torch_max_backend.base.errors import CoverageError, EvidenceError
from torch_max_backend.evidence.cases import Case, cases_of, load_cases
from torch_max_backend.evidence.contenders import compiled, subject
from torch_max_backend.evidence.settings import Settings
from torch_max_backend.evidence.study import study

pytestmark = pytest.mark.any_runner("nothing is compiled")


class WrittenGELU(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def test_a_patched_contender_runs_a_copy() -> None:
    model = nn.Sequential(nn.Linear(4, 4), WrittenGELU())
    patched, note = subject("eager+patch", model)
    assert note == "1 module(s) patched"
    assert type(model[1]) is WrittenGELU and type(patched[1]) is not WrittenGELU
    assert subject("max", model) == (model, "")
    assert subject("max+patch", nn.Linear(2, 2))[1] == "the patch changed nothing"
    with pytest.raises(EvidenceError, match=r"contender 'max\+patch' needs a torch.nn.Module, got a function"):
        subject("max+patch", lambda x: x)


def test_each_contender_has_code_of_its_own() -> None:
    def add(x: torch.Tensor, *, by: int = 2) -> torch.Tensor:
        return x + by

    seen: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(torch._guards.CompileContext.current_compile_id())
        return graph.forward

    for name in ("inductor", "inductor-max-autotune"):
        for function in (add, nn.ReLU()):
            ready = compiled(name, function)
            own = ready._torchdynamo_orig_callable  # type: ignore[attr-defined]
            assert own.__code__ is not add.__code__ and own.__code__.co_name == name.replace("-", "_")
            assert torch.equal(own(torch.ones(2)), function(torch.ones(2)))


def test_cases_of_a_function() -> None:
    (one,) = cases_of(lambda: (nn.ReLU(), (torch.ones(2),)), "relu", "cpu")
    assert one.name == "relu" and isinstance(one.function, nn.ReLU)
    found = cases_of(lambda device: {"a": (torch.sin, (torch.ones(2, device=device),)), "b": (len, [()])}, "f", "cpu")
    assert [case.name for case in found] == ["f[a]", "f[b]"]


def test_cases_of_a_file(models: str) -> None:
    (case,) = load_cases(models + "mlp", "cpu")
    assert case.name == "models_to_measure.py:mlp".replace(".py", "") and case.origin == models + "mlp"
    with pytest.raises(EvidenceError, match="models_to_measure:empty must give at least one case, got an empty dict"):
        load_cases(models + "empty", "cpu")
    with pytest.raises(CoverageError, match="got NoneType"):
        load_cases(models + "nothing", "cpu")


def test_a_call_has_arguments_of_its_own() -> None:
    x = torch.zeros(3)
    case = Case("grows", lambda x: x.add_(1), (x,))
    call = case.caller(case.function, (), training=False)
    call(0)
    assert call(1).eq(2).all() and x.eq(0).all()


def test_training_gives_gradients() -> None:
    model, x = nn.Linear(3, 2), torch.ones(4, 3, requires_grad=True)
    step = Case("linear", model, (x,)).caller(model, list(model.parameters()), training=True)
    results, (weight, bias, inputs) = step(0)
    assert results.shape == (4, 2) and inputs.shape == (4, 3)
    assert torch.equal(weight, torch.full((2, 3), 4.0)) and torch.equal(bias, torch.full((2,), 4.0))
    assert model.weight.grad is None
    with pytest.raises(EvidenceError, match="case sine has nothing that wants a gradient"):
        Case("sine", torch.sin, (torch.ones(2),)).caller(torch.sin, (), training=True)(0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"contenders": ()}, "contenders must be one or more of eager, inductor, .*; got none"),
        ({"contenders": ("eagre",)}, r"got 'eagre' \(did you mean 'eager'\?\)"),
        ({"contenders": ("max+fast",)}, r"each also with \+patch; got 'max\+fast'"),
        ({"contenders": ("max", "max")}, "contenders must be named once each, got 'max' 2 times"),
        ({"baseline": "max-reduce-overhead"}, "baseline must be one of eager, inductor, max, got 'max-reduce"),
        ({"device": "tpu"}, "--device must be one of cpu"),
        ({"by": "device"}, "by='device' needs a GPU, and device is 'cpu'"),
        ({"by": "luck"}, "by must be wall or device, got 'luck'"),
        ({"rounds": 1}, "rounds must be at least 2, got 1"),
        ({"items": -1}, "items must be at least 0, got -1"),
        ({"sample_s": 0.0}, "sample_s must be a positive number of seconds, got 0.0"),
        ({"warm_up_s": float("inf")}, "warm_up_s must be a positive number of seconds, got inf"),
        ({"confidence": 95.0}, "confidence must lie between 0 and 1, got 95"),
        ({"tolerance": {"float99": 1.0}}, "tolerance must be for a dtype of torch such as float32, got 'float99'"),
        ({"tolerance": {"float32": -1.0}}, "tolerance of float32 must be 0 or more, got -1"),
    ],
)
def test_settings_are_checked(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        Settings(**wrong)


def test_a_study_needs_cases() -> None:
    with pytest.raises(EvidenceError, match="cases must hold at least one case, got none"):
        study({})
    same = [Case("x", torch.sin, (torch.ones(2),))] * 2
    with pytest.raises(EvidenceError, match="cases must have names of their own, got 'x' twice"):
        study(same)
