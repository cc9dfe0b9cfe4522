"""What a patch changes, and what stays as it is."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import torch_max_backend
from tests.patching.models import (
    NEGATED,
    TRANSFORMERS,
    Model,
    OwnRMSNorm,
    X,
    assert_near,
    patched_paths,
    results,
    state,
)
from torch_max_backend.patching import RULES, patch, unpatch

pytestmark = pytest.mark.any_runner("classes of modules, before anything is compiled")


# -- what is changed ------------------------------------------------------------------------------------------------
def test_the_handle_lists_what_is_changed(model: Model) -> None:
    handle = patch(model)
    told = [(c.path, c.rule, c.before, c.after, round(c.share, 4)) for c in handle.changed]
    norm, mlp, total = 8, 3 * 16 * 8 + 8, 3 * 8 + 2 * (3 * 16 * 8 + 8)
    for i in range(2):
        at = f"layers.{i}"
        assert told[3 * i : 3 * i + 3] == [
            (f"{at}.norm", "rms_norm", f"{TRANSFORMERS}.OwnRMSNorm", "F.rms_norm", round(norm / total, 4)),
            (
                f"{at}.mlp",
                "gated_mlp",
                f"{TRANSFORMERS}.OwnMLP",
                "F.linear with the layers' weights",
                round(mlp / total, 4),
            ),
            (
                f"{at}.act",
                "written_out_gelu_tanh",
                "tests.patching.models.WrittenGELU",
                'F.gelu(approximate="tanh")',
                0.0,
            ),
        ]
    assert [c.path for c in handle.changed] == patched_paths(model)
    assert sum(c.share for c in handle.changed) == pytest.approx(1)
    assert handle.model is model and handle.active and not handle.skipped
    assert "layer_norm" in handle.unmatched and "rms_norm" not in handle.unmatched


def test_the_handle_reads_as_a_table(model: Model) -> None:
    model.norm.register_forward_hook(lambda *_: None)
    handle = patch(model, ["rms_norm", "mish"])
    assert str(handle).splitlines() == [
        "2 modules patched, which read 2.0% of the parameters",
        "  module         rule      before -> after           count  share",
        "  layers.*.norm  rms_norm  OwnRMSNorm -> F.rms_norm  2      1.98%",
        "",
        "1 left alone",
        "  module  rule      reason                 count",
        "  norm    rms_norm  it has a forward hook  1",
        "",
        "rules that select nothing: mish",
    ]
    handle.undo()
    assert str(handle).splitlines()[0].endswith("(undone)") and not handle.active


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_it_computes_the_same(dtype: torch.dtype) -> None:
    model, x = Model().to(dtype), X.to(dtype)
    wanted = results(model, x)
    with patch(model):
        assert patched_paths(model)
        if dtype == torch.float64:
            assert_near(results(model, x), wanted)
        else:
            torch.testing.assert_close(results(model, x), wanted)
    assert all(torch.equal(g, w) for g, w in zip(results(model, x), wanted, strict=True))


def test_all_that_a_model_consists_of_stays_what_it_is(model: Model) -> None:
    before = state(model)
    with patch(model):
        assert [k for k, _ in model.named_modules()] == [k for k, _ in Model().named_modules()]
        patched = state(model)
        assert patched["state"] == before["state"]
        # the class and the forward of patched modules are all that differs
        differ = {k for k in before if patched[k] != before[k]}
        assert differ == {f"{p}{end}" for p in patched_paths(model) for end in ("", ".forward")}
        assert all(isinstance(layer.norm, OwnRMSNorm) for layer in model.layers)
        assert repr(model) == repr(Model())
    assert state(model) == before


def test_it_runs_what_the_rule_says_and_no_more(model: Model) -> None:
    with patch(model, NEGATED) as handle:
        assert torch.equal(model.norm(X), -X)
        assert torch.equal(model.norm(hidden_states=X), -X)  # by the name that the module's own forward has
        assert [c.path for c in handle.changed] == ["layers.0.norm", "layers.1.norm", "norm"]
    assert torch.equal(model.norm(X), OwnRMSNorm.forward(model.norm, X))


def test_another_model_of_the_same_classes_is_left_alone(model: Model) -> None:
    other = Model().double()
    with patch(model, NEGATED):
        assert not torch.equal(other.norm(X), -X) and not patched_paths(other)


def test_modules_alike_share_a_class(model: Model) -> None:
    with patch(model):
        assert type(model.layers[0].norm) is type(model.layers[1].norm) is type(model.norm)


def test_a_module_in_two_places_is_patched_once(model: Model) -> None:
    model.layers[1].norm = model.norm
    with patch(model, "rms_norm") as handle:
        assert [c.path for c in handle.changed] == ["layers.0.norm", "layers.1.norm"]
    assert not patched_paths(model)


def test_the_model_itself_may_be_selected() -> None:
    norm = OwnRMSNorm(8)
    with patch(norm) as handle:
        assert [c.path for c in handle.changed] == [""] and "(the model)" in str(handle)
    assert type(norm) is OwnRMSNorm


# -- parameters, modes, devices ---------------------------------------------------------------------------------------
def test_parameters_are_shared(model: Model) -> None:
    twin = copy.deepcopy(model)
    with patch(model):
        for trained in (model, twin):
            optimizer = torch.optim.SGD(trained.parameters(), 0.1)  # Adam would make of a rounding a step
            for _ in range(3):
                optimizer.zero_grad()
                trained(X).square().mean().backward()
                optimizer.step()
        assert_near([model(X).detach()], [twin(X).detach()])
    assert_near(list(model.state_dict().values()), list(twin.state_dict().values()))


def test_load_state_dict_is_seen(model: Model) -> None:
    other = Model().double()
    with patch(model):
        assert model.load_state_dict(other.state_dict(), strict=True) == ([], [])
        assert_near([model(X).detach()], [other(X).detach()])
        assert other.load_state_dict(model.state_dict(), strict=True) == ([], [])


def test_dtypes_modes_and_devices_change_as_ever(model: Model) -> None:
    with patch(model):
        wanted = Model()
        wanted.load_state_dict(model.state_dict())
        torch.testing.assert_close(model.float()(X.float()), wanted(X.float()))
        assert not any(m.training for m in model.eval().modules()) and all(m.training for m in model.train().modules())
        assert model.to("meta")(X.float().to("meta")).shape == X.shape


def test_dtypes_that_differ_run_the_module_s_own_code(model: Model) -> None:
    with patch(model):
        mixed = X.to(torch.bfloat16)
        assert model.norm(mixed).dtype == torch.float64
        assert torch.equal(model.norm(mixed), OwnRMSNorm.forward(model.norm, mixed))


# -- copies -----------------------------------------------------------------------------------------------------------
def by_pickle(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def by_torch(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("copied", [copy.deepcopy, by_pickle, by_torch])
def test_copies_are_patched_and_independent(model: Model, copied: object) -> None:
    wanted = results(model, X)
    with patch(model):
        twin = copied(model)  # type: ignore[operator]
        assert patched_paths(twin) == patched_paths(model)
        assert type(twin.layers[0].norm) is type(model.layers[0].norm)
        assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in model.parameters()}
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(1)
        assert_near(results(model, X), wanted)
    assert not patched_paths(model)
    assert patched_paths(twin)  # a copy is its own
    assert unpatch(twin) == 7 and unpatch(twin) == 0
    assert not patched_paths(twin)


@pytest.mark.usefixtures("library")
def test_rules_of_one_s_own_are_pickled_too(model: Model) -> None:
    with patch(model, NEGATED):
        assert torch.equal(by_pickle(model).norm(X), -X)


def test_the_package_has_it() -> None:
    assert torch_max_backend.patch is patch and "patch" in torch_max_backend.__all__


def test_the_rules_have_names_of_their_own() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
