"""Rules that select by a pattern of ``torch.fx``."""

from __future__ import annotations

import copy
import pickle
import traceback
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.patching.models import WrittenGELU, assert_near, patched_paths
from torch_max_backend.patching import Rule, patch

pytestmark = pytest.mark.any_runner("torch.fx, before anything is compiled")

X = torch.linspace(-2, 2, 24, dtype=torch.float64).view(3, 8).sin() * 3


def swish(x: Any) -> Any:
    return x * torch.sigmoid(x)


def fused(x: Any) -> Any:
    return F.silu(x)


SWISH = Rule("swish", fused, "F.silu", pattern=swish)


class Gated(nn.Module):
    """A layer, the pattern, a plain attribute and a dropout that depends on the mode."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.layer = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(x) * self.scale
        return F.dropout(hidden * torch.sigmoid(hidden) * self.weight, 0.5, self.training)


def test_the_pattern_is_replaced_and_the_rest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(Gated(2.0), Gated(3.0), nn.Linear(8, 8)).double()
    for mode in (False, True):
        model.train(mode)
        torch.manual_seed(1)
        wanted = model(X)
        with patch(model, SWISH) as handle:
            assert [c.path for c in handle.changed] == ["0", "1"]
            assert type(model[0]) is not type(model[1])  # the scale is a constant of the rewritten forward
            torch.manual_seed(1)
            assert_near([model(X).detach()], [wanted.detach()])
            monkeypatch.setattr(torch, "sigmoid", None)
            model(X)  # which is not called any more
            monkeypatch.undo()
            with torch.no_grad():
                model[0].weight.zero_()
            assert torch.equal(model[0](X), torch.zeros_like(X))  # while parameters are read in each call
            model[0].train(not mode)
            dropped = patch_free(model[1].train(not mode))
            torch.manual_seed(2)
            given = model[1](X)
            torch.manual_seed(2)
            assert_near([given.detach()], [dropped(X).detach()])
            model.train(mode)
        with torch.no_grad():
            model[0].weight.fill_(1)


def patch_free(module: Gated) -> Gated:
    """A module with the same values that was never patched."""
    made = Gated(module.scale).double().train(module.training)
    made.load_state_dict(module.state_dict())
    return made


def test_modules_alike_share_a_class() -> None:
    model = nn.Sequential(WrittenGELU(), WrittenGELU())
    with patch(model):
        assert type(model[0]) is type(model[1]) is not WrittenGELU


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(copied: Any) -> None:
    model = nn.Sequential(Gated(2.0)).double().eval()
    with patch(model, SWISH):
        twin = copied(model)
        assert patched_paths(twin) == ["0"] and torch.equal(twin(X), model(X))
        with torch.no_grad():
            twin[0].weight.zero_()
        assert not torch.equal(twin(X), model(X))


def test_hooks_of_children_are_called() -> None:
    model = Gated(2.0).double()
    with patch(model, SWISH):
        seen: list[torch.Tensor] = []
        model.layer.register_forward_hook(lambda module, inputs, output: seen.append(output))
        model(X)
        assert len(seen) == 1


def test_tracebacks_show_the_rewritten_line() -> None:
    model = Gated(2.0).double()
    with patch(model, SWISH), pytest.raises(TypeError) as raised:
        model("text")
    assert "layer = self.layer(x)" in "".join(traceback.format_exception(raised.value))


class Optional(nn.Module):
    def forward(self, x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        return swish(x)


class Identities(nn.Module):
    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return swish(x) if gate is x else x


class Instances(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return swish(x) if isinstance(x, nn.Parameter) else x


class Counting(nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return swish(x)


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return swish(x) if x.sum() > 0 else x


class Drawing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return swish(x) + torch.rand(8)


class Decorated(nn.Module):
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return swish(x)


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (
            Optional,
            "a trace of its forward may not hold for every call: gate: 'torch.Tensor | None' = None may be",
        ),
        (Identities, "a trace does not see what its forward does with IS_OP"),
        (Instances, "a trace does not see what its forward does with isinstance"),
        (Counting, "a trace does not see what its forward does with STORE_ATTR"),
        (Branching, "torch.fx cannot trace its forward: symbolically traced variables cannot be used as inputs"),
        (Drawing, "its forward runs aten.rand.default on other things than its inputs"),
        (Decorated, "its forward is decorated or patched"),
    ],
)
def test_what_a_trace_does_not_see_is_left_alone(cls: type[nn.Module], reason: str) -> None:
    module = cls()
    before = dict(vars(module))
    handle = patch(module, SWISH)
    assert not handle.changed
    assert handle.skipped[0].reason.startswith(reason)
    assert vars(module) == before


def test_where_the_pattern_is_not_nothing_is_told() -> None:
    handle = patch(nn.Sequential(nn.Linear(2, 2), nn.ModuleList()), SWISH)
    assert not handle.changed and not handle.skipped and handle.unmatched == ("swish",)


def test_a_pattern_may_be_looked_for_in_some_modules_alone() -> None:
    model = nn.ModuleDict({"a": Gated(1.0), "b": Gated(1.0)})
    with patch(model, Rule("swish", fused, "F.silu", names="b", pattern=swish)):
        assert patched_paths(model) == ["b"]


def test_a_hook_is_a_reason_here_too() -> None:
    model = Gated(1.0)
    model.register_forward_hook(lambda *_: None)
    assert patch(model, SWISH).skipped[0].reason == "it has a forward hook"
