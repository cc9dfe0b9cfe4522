"""What is left alone, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from tests.patching.models import (
    NEGATED,
    Model,
    OwnRMSNorm,
    X,
    assert_near,
    negated,
    patched_paths,
    state,
)
from torch_max_backend import MaxBackendError
from torch_max_backend.base.errors import PatchError
from torch_max_backend.patching import Rule, patch, unpatch

pytestmark = pytest.mark.any_runner("classes of modules, before anything is compiled")


# -- what is left alone -----------------------------------------------------------------------------------------------
class Overriding(OwnRMSNorm):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states) + 1


class Inheriting(OwnRMSNorm):
    """A class of one's own with the library's forward."""


class CopiesItself(OwnRMSNorm):
    def __deepcopy__(self, memo: dict[int, object]) -> CopiesItself:
        return self


class Marked(nn.Parameter):
    """A parameter whose operations may mean something else."""


def with_hook(register: str) -> nn.Module:
    norm = OwnRMSNorm(8)
    getattr(norm, register)(lambda *_: None)
    return norm


def own_forward() -> nn.Module:
    norm = OwnRMSNorm(8)
    norm.forward = lambda x: x
    return norm


def parametrized() -> nn.Module:
    return parametrize.register_parametrization(OwnRMSNorm(8), "weight", nn.Identity())


def with_weight(weight: nn.Parameter) -> nn.Module:
    norm = OwnRMSNorm(8)
    norm.weight = weight
    return norm


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: with_hook("register_forward_hook"), "it has a forward hook"),
        (lambda: with_hook("register_forward_pre_hook"), "it has a forward pre-hook"),
        (lambda: with_hook("register_full_backward_hook"), "it has a backward hook"),
        (lambda: with_hook("register_full_backward_pre_hook"), "it has a backward pre-hook"),
        (lambda: Overriding(8), "Overriding overrides forward of OwnRMSNorm"),
        (lambda: CopiesItself(8), "it copies or pickles itself in its own way (__deepcopy__)"),
        (own_forward, "its forward is set on the instance"),
        (parametrized, "it is parametrized: weight"),
        (lambda: with_weight(Marked(torch.ones(8))), "its weight is a Marked"),
        (
            lambda: with_weight(nn.Parameter(torch.ones(8, dtype=torch.int8), requires_grad=False)),
            "its weight is quantised to torch.int8",
        ),
    ],
)
def test_an_instance_that_the_rule_does_not_fit(model: Model, make: object, reason: str) -> None:
    model.norm = make()  # type: ignore[operator]
    handle = patch(model, "rms_norm")
    assert [(s.path, s.rule, s.reason) for s in handle.skipped] == [("norm", "rms_norm", reason)]
    assert [c.path for c in handle.changed] == ["layers.0.norm", "layers.1.norm"]
    handle.undo()


def test_a_subclass_without_a_forward_of_its_own_is_patched(model: Model) -> None:
    model.norm = Inheriting(8).double()
    with patch(model, "rms_norm") as handle:
        assert handle.changed[-1].path == "norm" and isinstance(model.norm, Inheriting)


class LowRank(nn.Module):
    """An adapter, as it takes the place of a layer."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x.mean()


@pytest.mark.parametrize("when", ["before", "after"])
def test_layers_that_are_adapted_or_hooked_are_called(model: Model, when: str) -> None:
    """A patched MLP reads its layers' weights, unless somebody wants to see the call."""
    handle = patch(model) if when == "after" else None
    first, second = (layer.mlp for layer in model.layers)
    first.up_proj = LowRank(first.up_proj)
    seen: list[torch.Size] = []
    second.down_proj.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    plain = copy.deepcopy(model)
    unpatch(plain)
    if handle is None:
        handle = patch(model)
        reasons = {s.path: s.reason for s in handle.skipped}
        assert reasons == {
            "layers.0.mlp": "its up_proj is a LowRank",
            "layers.1.mlp": "its down_proj has a forward hook",
        }
    seen.clear()
    given = model(X)
    assert seen == [X.shape]
    assert_near([given.detach()], [plain(X).detach()])


def test_scripted_parts_are_left_alone(model: Model) -> None:
    model.layers[0].norm = torch.jit.script(nn.Identity())
    with patch(model, NEGATED) as handle:
        assert [(s.path, s.reason) for s in handle.skipped] == [("layers.0.norm", "it is a ScriptModule")]


# -- wrong arguments --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model", [None, 3, Model, lambda x: x])
def test_a_model_that_is_no_module(model: object) -> None:
    with pytest.raises(PatchError, match=r"model must be a torch.nn.Module, got .*(NoneType|int|Model|function)"):
        patch(model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", ["script", "trace", "freeze"])
def test_a_scripted_model(how: str) -> None:
    plain = nn.Sequential(nn.Linear(8, 8)).eval()
    made = torch.jit.trace(plain, torch.zeros(1, 8)) if how == "trace" else torch.jit.script(plain)
    made = torch.jit.freeze(made) if how == "freeze" else made
    with pytest.raises(PatchError, match=r"model must not be scripted, traced or frozen by torch.jit, got a torch"):
        patch(made)


def test_wrong_rules(model: Model) -> None:
    with pytest.raises(PatchError, match=r"rules has an unknown name 'rmsnorm'; did you mean 'rms_norm'\?"):
        patch(model, "rmsnorm")
    with pytest.raises(PatchError, match=r"unknown name 'x'; there are: built_in_norm, "):
        patch(model, ["x"])
    with pytest.raises(PatchError, match=r"rules must hold rules or names of rules, got a builtins.int"):
        patch(model, [3])
    with pytest.raises(PatchError, match=r"rules must be rules or names of rules, got a builtins.int"):
        patch(model, 3)
    with pytest.raises(PatchError, match=r"rules must have names of their own, got 'mish' twice"):
        patch(model, ["mish", "mish"])
    assert issubclass(PatchError, (MaxBackendError, ValueError))


def test_wrong_declarations() -> None:
    with pytest.raises(PatchError, match="name must be a text that is not empty"):
        Rule("", negated, "-x", names="*")
    with pytest.raises(PatchError, match="'n': it must select by types, names, where or pattern; none is given"):
        Rule("n", negated, "-x")
    with pytest.raises(PatchError, match="'n': types must hold str, Pattern, type, got 3"):
        Rule("n", negated, "-x", types=[nn.Linear, 3])
    with pytest.raises(PatchError, match=r"'n': names must hold str, Pattern, got <class"):
        Rule("n", negated, "-x", names=nn.Linear)
    with pytest.raises(PatchError, match="'n': pattern rewrites forward, but attribute is 'loss_function'"):
        Rule("n", negated, "-x", pattern=negated, attribute="loss_function")


def test_a_rule_that_selects_nothing(model: Model) -> None:
    handle = patch(model, ["mish", "rms_norm"])
    assert handle.unmatched == ("mish",)
    handle.undo()
    with pytest.raises(PatchError, match="strict=True, but these of rules select no module of Model: mish, hardswish"):
        patch(model, ["mish", "rms_norm", "hardswish"], strict=True)
    assert not patched_paths(model)
    patch(model, [], strict=True).undo()


def test_a_class_that_cannot_be_changed_leaves_the_model_as_it_was(model: Model) -> None:
    class Guarded(OwnRMSNorm):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "__class__":
                raise TypeError("its class is fixed")
            super().__setattr__(name, value)

    model.norm = Guarded(8).double()
    before = state(model)
    with pytest.raises(PatchError, match="the class of norm cannot be changed: its class is fixed"):
        patch(model, NEGATED)
    assert state(model) == before
