"""Several patches of one model, and the way back."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from tests.patching.models import (
    NEGATED,
    Model,
    OwnRMSNorm,
    X,
    patched_paths,
    state,
)
from torch_max_backend.base.errors import PatchError
from torch_max_backend.patching import Rule, patch, unpatch

pytestmark = pytest.mark.any_runner("classes of modules, before anything is compiled")


# -- several patches --------------------------------------------------------------------------------------------------
def doubled(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x + x


def declining(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return NotImplemented


DOUBLED = Rule("doubled", doubled, "x + x", types=OwnRMSNorm)
DECLINING = Rule("declining", declining, "nothing", types=OwnRMSNorm)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_patches_nest_and_are_undone_in_any_order(model: Model, order: tuple[int, ...]) -> None:
    before, own = state(model), model.norm(X)
    rules = [NEGATED, DOUBLED, DECLINING]
    values = [-X, 2 * X, None]
    handles = [patch(model, rule) for rule in rules]
    on = [0, 1, 2]
    for i in [*order, None]:
        last = [values[k] for k in on if values[k] is not None]
        assert torch.equal(model.norm(X), last[-1] if last else own)  # declining leaves it to the one below
        if i is not None:
            handles[i].undo()
            on.remove(i)
    assert state(model) == before


def test_a_rule_is_applied_once(model: Model) -> None:
    patch(model, NEGATED)
    before = state(model)
    with pytest.raises(PatchError, match=r"'negated', which is applied to layers.0.norm already; undo that"):
        patch(model, ["rms_norm", NEGATED])
    assert state(model) == before


def test_a_part_of_the_model_may_be_patched_first(model: Model) -> None:
    patch(model.layers[1])
    with pytest.raises(PatchError, match=r"applied to layers.1.norm already"):
        patch(model)


def test_the_first_rule_that_fits_is_applied(model: Model) -> None:
    with patch(model, [DOUBLED, NEGATED]) as handle:
        assert {c.rule for c in handle.changed} == {"doubled"} and not handle.skipped


# -- the way back -----------------------------------------------------------------------------------------------------
def test_hooks_stay(model: Model) -> None:
    calls: list[str] = []
    model.layers[0].register_forward_hook(lambda *_: calls.append("forward"))
    model.layers[0].register_forward_pre_hook(lambda *_: calls.append("pre"))
    model.layers[0].register_full_backward_hook(lambda *_: calls.append("backward"))
    model.norm.register_state_dict_post_hook(lambda *_: calls.append("state"))
    model.norm.register_load_state_dict_pre_hook(lambda *_: calls.append("load"))
    before = state(model)
    with patch(model) as handle:
        assert "norm" in [c.path for c in handle.changed]
        calls.clear()
        model(X).sum().backward()
        model.load_state_dict(model.state_dict())
        assert calls == ["pre", "forward", "backward", "state", "load"]
        model.norm.register_forward_hook(lambda *_: calls.append("later"))
        model(X)
        assert calls[-1] == "later"
        model.norm._forward_hooks.clear()
    assert state(model) == before


def test_a_module_replaced_in_the_meantime_is_named(model: Model) -> None:
    handle = patch(model)
    kept, model.layers[0].norm = model.layers[0].norm, nn.Identity()
    before = state(model)
    with pytest.raises(PatchError, match=r"layers.0.norm has been replaced by a torch\S*Identity. Nothing was undone"):
        handle.undo()
    assert state(model) == before and handle.active
    model.layers[0].norm = kept
    handle.undo()
    assert not patched_paths(model)


def test_a_module_that_is_gone_is_named(model: Model) -> None:
    handle = patch(model)
    del model.norm
    with pytest.raises(PatchError, match="norm is no longer in the model"):
        handle.undo()
    assert patched_paths(model) and unpatch(model) == 6


def test_a_forward_set_in_the_meantime_is_named(model: Model) -> None:
    handle = patch(model)
    inner = model.norm.forward
    model.norm.forward = lambda x: inner(x)
    with pytest.raises(PatchError, match="forward of norm has been set on the instance"):
        handle.undo()
    assert len(patched_paths(model)) == 7
    del model.norm.forward
    handle.undo()


def test_a_class_changed_in_the_meantime_is_named(model: Model) -> None:
    handle = patch(model)
    parametrize.register_parametrization(model.norm, "weight", nn.Identity())
    with pytest.raises(PatchError, match=r"the class of norm has been changed to \S*ParametrizedOwnRMSNorm"):
        handle.undo()
    parametrize.remove_parametrizations(model.norm, "weight")
    handle.undo()
    assert not patched_paths(model)


def test_undone_twice_is_an_error(model: Model) -> None:
    with patch(model) as handle:
        handle.undo()  # and not again at the end of the block
    with pytest.raises(PatchError, match="undone before"):
        handle.undo()


def test_unpatched_by_another_is_an_error(model: Model) -> None:
    handle = patch(model, NEGATED)
    unpatch(model)
    with pytest.raises(PatchError, match=r"layers.0.norm is not patched by negated any more"):
        handle.undo()


def test_an_exception_in_the_block_undoes_too(model: Model) -> None:
    with pytest.raises(ZeroDivisionError), patch(model):
        1 / 0  # noqa: B018
    assert not patched_paths(model)
