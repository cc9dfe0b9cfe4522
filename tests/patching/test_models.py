"""Models of transformers and timm compute the same with the shipped rules, and are as before afterwards."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.patching.model_zoo import MODELS, Zoo
from tests.patching.models import patched_paths
from torch_max_backend import reports
from torch_max_backend.patching import patch

CPP = next((c for c in ("g++", "clang++") if shutil.which(c)), None)
FAST = 2  # models of the ordinary run
EVERY = [pytest.param(z, id=z.name, marks=[] if i < FAST else pytest.mark.full) for i, z in enumerate(MODELS)]
LLAMA, GPT2 = MODELS[:2]


class Float64Stays(TorchFunctionMode):
    """Casts of float64 to float32 are left out.

    Norms and losses of transformers compute in float32 whatever they are given. Without that, two forms of one formula
    agree to float64's precision, and another formula does not.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
            if func is torch.Tensor.float:
                return args[0]
            args = tuple(torch.float64 if a is torch.float32 else a for a in args)
            kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in kwargs.items()}
        return func(*args, **kwargs)


def assert_near(got: list[torch.Tensor], wanted: list[torch.Tensor], dtype: torch.dtype) -> None:
    """Equal up to some thousand roundings beside the largest value: sums of up to a thousand terms in another order,
    through a dozen ops that each may double a difference. Another formula differs by percents.
    """
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g, w, rtol=0, atol=4096 * torch.finfo(dtype).eps * max(1e-3, float(w.abs().max())))


@pytest.mark.any_runner("eager")
@pytest.mark.parametrize("zoo", EVERY)
def test_a_model_computes_the_same(zoo: Zoo) -> None:
    pytest.importorskip("timm" if zoo.config == "timm" else "transformers")
    model = zoo.make()
    classes = [type(m) for m in model.modules()]
    for dtype in (torch.float64, torch.float32):
        model = model.to(dtype)
        with Float64Stays():
            wanted = zoo.results(model, dtype)
            with patch(model) as handle:
                assert {c.rule for c in handle.changed} == zoo.rules, str(handle)
                assert {s.rule for s in handle.skipped} <= {"built_in_norm", "timm_mlp"}, str(handle)
                assert_near(zoo.results(model, dtype), wanted, dtype)
            again = zoo.results(model, dtype)
        assert all(torch.equal(a, w) for a, w in zip(again, wanted, strict=True))
    assert [type(m) for m in model.modules()] == classes and not patched_paths(model)


@pytest.mark.any_runner("eager")
def test_the_strict_check_sees_another_epsilon() -> None:
    """What makes the comparison above one: a thousandth of one norm's epsilon of 1e-6 is more than its tolerance."""
    pytest.importorskip("transformers")
    model = LLAMA.make().double()
    with Float64Stays(), patch(model, "rms_norm"):
        wanted = LLAMA.results(model, torch.float64)
        model.model.norm.variance_epsilon *= 1 + 1e-3
        with pytest.raises(AssertionError, match="not close"):
            assert_near(LLAMA.results(model, torch.float64), wanted, torch.float64)


@pytest.mark.parametrize("zoo", [GPT2, pytest.param(LLAMA, marks=pytest.mark.full)], ids=lambda z: z.name)
def test_compiled(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph with the loss in it, of which the backend runs everything."""
    pytest.importorskip("transformers")
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    model = zoo.make()
    wanted = zoo.results(model, torch.float32)
    with patch(model):
        options = {"fallback": "error"}
        compiled: Any = torch.compile(model, backend="max_backend", fullgraph=True, options=options)
        before = len(reports())
        out, loss = zoo.call(compiled, torch.float32)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        assert_near([out.detach(), loss.detach(), *gradients], wanted, torch.float32)
        assert len(reports()) == before + 2  # forward and backward
    again = zoo.results(model, torch.float32)
    assert all(torch.equal(a, w) for a, w in zip(again, wanted, strict=True))


@pytest.mark.full
def test_the_backend_fuses_what_is_written_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    model, counted = LLAMA.make(), []

    def count() -> None:
        torch._dynamo.reset()
        before = len(reports())
        compiled: Any = torch.compile(model, backend="max_backend", fullgraph=True, options={"fallback": "error"})
        LLAMA.results(compiled, torch.float32)
        programs = [program for report in reports()[before:] for program in report.programs]
        counted.append([[p.launches, len(p.library_calls), p.bytes_moved] for p in programs])

    count()
    with patch(model):
        count()
    for own, patched in zip(*counted, strict=True):
        assert own[1] == patched[1]
        # cosines of half the angles are kept, and PyTorch's gradient of an RMS norm is written in another way
        assert own[0] == pytest.approx(patched[0], rel=0.05)
        assert own[2] == pytest.approx(patched[2], rel=0.05)
    assert len(counted[0]) == 2  # forward and backward


@pytest.mark.full
@pytest.mark.any_runner("Inductor")
@pytest.mark.skipif(CPP is None, reason="Inductor needs a C++ compiler on a CPU")
def test_compiled_by_inductor() -> None:
    pytest.importorskip("transformers")
    model = LLAMA.make()
    wanted = LLAMA.call(model, torch.float32)
    with patch(model), torch.no_grad():
        compiled: Any = torch.compile(model, fullgraph=True)
        assert_near(list(LLAMA.call(compiled, torch.float32)), [w.detach() for w in wanted], torch.float32)


@pytest.mark.any_runner("Dynamo")
def test_a_patch_after_torch_compile_is_seen() -> None:
    """Dynamo guards the class, so the function is compiled once more, and once again after the way back."""
    pytest.importorskip("transformers")
    model, compiles = LLAMA.make(), []

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        compiles.append(sum("rms_norm" in str(n.target) for n in gm.graph.nodes))
        return gm.forward

    compiled: Any = torch.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        LLAMA.call(compiled, torch.float32)
        with patch(model):
            LLAMA.call(compiled, torch.float32)
        LLAMA.call(compiled, torch.float32)
    assert compiles[:2] == [0, 5] and compiles[2:] in ([], [0])


@pytest.mark.any_runner("eager")
def test_a_loss_that_is_set_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    model = GPT2.make()
    own = model.loss_function
    with patch(model):
        model.loss_function = lambda logits, labels, **kwargs: logits.sum() * 0 + 7
        assert GPT2.call(model, torch.float32)[1] == 7
        del model._loss_function
        logits, labels = torch.randn(2, 5, 9), torch.randint(0, 9, (2, 5))
        for extra in ({}, {"num_items_in_batch": 3}, {"num_items_in_batch": torch.tensor(3)}, {"shift_labels": labels}):
            given = model.loss_function(logits, labels, vocab_size=9, **extra)
            assert torch.equal(given, own(logits, labels, vocab_size=9, **extra))
    assert model.loss_function is own


@pytest.mark.any_runner("eager")
@pytest.mark.full
@pytest.mark.parametrize("module", ["timm.layers.activations", "transformers.activations"])
def test_activations_of_the_libraries(module: str) -> None:
    library = pytest.importorskip(module)
    x = torch.linspace(-5, 5, 1001, dtype=torch.float64, requires_grad=True)
    names = {"NewGELUActivation", "FastGELUActivation", "AccurateGELUActivation", "GELUTanh", "GELUActivation"}
    names |= {"QuickGELUActivation", "SiLUActivation", "MishActivation"}
    names = names if "transformers" in module else {"QuickGELU", "Swish", "Mish", "HardSwish"}
    for name in sorted(names):
        activation = getattr(library, name)()
        wanted = activation(x), torch.autograd.grad(activation(x).sum(), x)[0]
        with patch(activation) as handle:
            assert handle.changed, name
            given = activation(x), torch.autograd.grad(activation(x).sum(), x)[0]
            # FastGELU has sqrt(2 / pi) to ten digits
            torch.testing.assert_close(given, wanted, rtol=0, atol=1e-10 if name.startswith("Fast") else 1e-14)


@pytest.mark.any_runner("eager")
@pytest.mark.full
def test_norms_and_losses_of_timm() -> None:
    layers, losses = pytest.importorskip("timm.layers"), pytest.importorskip("timm.loss")
    image, rows = torch.randn(2, 6, 4, 5, dtype=torch.float64), torch.randn(3, 6, dtype=torch.float64)
    labels = torch.tensor([0, 5, 2])
    for module, inputs in [
        (layers.LayerNorm(6), (rows,)),
        (layers.LayerNorm2d(6), (image,)),
        (layers.RmsNorm(6), (rows,)),
        (layers.RmsNorm2d(6), (image,)),
        (losses.LabelSmoothingCrossEntropy(0.2), (rows, labels)),
        (losses.SoftTargetCrossEntropy(), (rows, rows.softmax(-1))),
        (layers.SwiGLU(6, 12), (rows,)),
    ]:
        module = module.double()
        wanted = module(*inputs)
        with patch(module) as handle:
            assert handle.changed[0].path == "", type(module)
            torch.testing.assert_close(module(*inputs), wanted, rtol=0, atol=1e-14)
