"""What a patch changes, what it leaves as it is, and the way back."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import torch_max_backend
from tests.patching import models
from tests.patching.models import Model, OwnMLP, OwnOffsetRMSNorm, OwnRMSNorm, assert_near, patched_paths, results
from torch_max_backend import MaxBackendError
from torch_max_backend.base.errors import PatchError
from torch_max_backend.patching import RULES, Rule, patch, unpatch

pytestmark = pytest.mark.any_runner("classes of modules, before anything is compiled")

X = torch.linspace(-2, 2, 48, dtype=torch.float64).view(2, 3, 8).sin() * 3


@pytest.fixture
def model() -> Model:
    return Model().double()


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that the classes say they come from, so that they can be pickled."""
    for name in (models.TRANSFORMERS.rsplit(".", 2)[0], models.TRANSFORMERS):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for cls in (OwnRMSNorm, OwnOffsetRMSNorm, OwnMLP):
        setattr(sys.modules[models.TRANSFORMERS], cls.__name__, cls)


def negated(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A replacement with another meaning, so that one sees where it runs."""
    return -x


NEGATED = Rule("negated", negated, "-x", names="*norm")


def state(model: nn.Module) -> dict[str, object]:
    """All that one can see of a model, by identity."""
    seen: dict[str, object] = {}
    for path, module in model.named_modules():
        seen[path] = (id(module), type(module), module.training, [(k, id(v)) for k, v in vars(module).items()])
        seen[f"{path}.forward"] = (type(module).forward, module.forward.__func__)
        for name, value in vars(module).items():
            if isinstance(value, dict):
                seen[f"{path}.{name}"] = [(k, id(v)) for k, v in value.items()]
    seen["state"] = [(k, id(v)) for k, v in model.state_dict(keep_vars=True).items()]
    return seen


# -- what is changed ------------------------------------------------------------------------------------------------
def test_the_handle_lists_what_is_changed(model: Model) -> None:
    handle = patch(model)
    told = [(c.path, c.rule, c.before, c.after, round(c.share, 4)) for c in handle.changed]
    norm, mlp, total = 8, 3 * 16 * 8 + 8, 3 * 8 + 2 * (3 * 16 * 8 + 8)
    for i in range(2):
        at = f"layers.{i}"
        assert told[3 * i : 3 * i + 3] == [
            (f"{at}.norm", "rms_norm", f"{models.TRANSFORMERS}.OwnRMSNorm", "F.rms_norm", round(norm / total, 4)),
            (
                f"{at}.mlp",
                "gated_mlp",
                f"{models.TRANSFORMERS}.OwnMLP",
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


def test_rules_of_one_s_own_are_pickled_too(model: Model) -> None:
    with patch(model, NEGATED):
        assert torch.equal(by_pickle(model).norm(X), -X)


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


def test_the_package_has_it() -> None:
    assert torch_max_backend.patch is patch and "patch" in torch_max_backend.__all__


def test_the_rules_have_names_of_their_own() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
