"""Selecting, the check of a replacement on a small copy, and the shipped rules that need no library to be tested."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.patching.models import TRANSFORMERS, OwnMLP, OwnOffsetRMSNorm, OwnRMSNorm, X, assert_near, results
from torch_max_backend.patching import Rule, patch
from torch_max_backend.patching.check import small_copy

pytestmark = pytest.mark.any_runner("plain torch, before anything is compiled")


def identity(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x


# -- selecting --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("selected", "paths"),
    [
        ({"types": OwnRMSNorm}, ["a", "b.0", "b.1"]),
        ({"types": f"{TRANSFORMERS}.*RMSNorm"}, ["a", "b.0", "b.1"]),
        ({"types": re.compile(r".*\.OwnOffset\w+")}, ["b.1"]),
        ({"types": (nn.Identity, "*.OwnOffsetRMSNorm")}, ["b.1", "c"]),
        ({"names": "b.*"}, ["b.0", "b.1"]),
        ({"names": re.compile(r"b\.\d|c")}, ["b.0", "b.1", "c"]),
        ({"names": "b.*", "types": [OwnRMSNorm]}, ["b.0", "b.1"]),
        ({"where": lambda m: hasattr(m, "variance_epsilon")}, ["a", "b.0", "b.1"]),
    ],
)
def test_selecting(selected: dict[str, Any], paths: list[str]) -> None:
    model = nn.ModuleDict(
        {"a": OwnRMSNorm(8), "b": nn.ModuleList([OwnRMSNorm(8), OwnOffsetRMSNorm(8)]), "c": nn.Identity()}
    )
    rule = Rule("identity", identity, "x", **selected)
    handle = patch(model, rule)
    seen = sorted([c.path for c in handle.changed] + [s.path for s in handle.skipped])
    assert seen == paths


# -- the check --------------------------------------------------------------------------------------------------------
def test_the_check_tells_norms_apart_that_have_one_kind_of_name() -> None:
    model = nn.Sequential(OwnRMSNorm(8), OwnOffsetRMSNorm(8)).double()
    wanted = results(model, X)
    with patch(model) as handle:
        assert [(c.path, c.rule) for c in handle.changed] == [("0", "rms_norm"), ("1", "rms_norm_offset")]
        assert_near(results(model, X), wanted)


def test_a_replacement_with_another_result_is_not_applied() -> None:
    handle = patch(OwnOffsetRMSNorm(8), "rms_norm")
    assert not handle.changed
    assert re.fullmatch(r"output 0 is not the same: off by \S+ beside \S+", handle.skipped[0].reason)


def sample(module: nn.Module) -> tuple[torch.Tensor]:
    return (torch.randn(2, 8),)


class Detached(nn.Module):
    """The same output as the replacement, and another gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach() * 2 - x


class Rounding(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float()


class Raising(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("not today")


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (Detached, "gradient 0 is not the same: off by 2 beside 1"),
        (Rounding, "output 0 is not the same: (2, 8) of torch.float64 for (2, 8) of torch.float32"),
        (Raising, "the check raised ArithmeticError: not today"),
    ],
)
def test_what_the_check_finds(cls: type[nn.Module], reason: str) -> None:
    handle = patch(cls(), Rule("identity", identity, "x", types=cls, sample=sample))
    assert [s.reason for s in handle.skipped] == [reason]


def test_the_check_leaves_no_trace() -> None:
    model = nn.Sequential(OwnRMSNorm(8), OwnMLP(8))
    random = torch.get_rng_state()
    versions = [p._version for p in model.parameters()]
    patch(model)
    assert torch.equal(torch.get_rng_state(), random)
    assert [p._version for p in model.parameters()] == versions
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.device("meta")])
def test_the_check_works_anywhere(mode: Any) -> None:
    with mode():
        assert len(patch(nn.Sequential(OwnRMSNorm(8), OwnMLP(8))).changed) == 2


def test_large_layers_are_checked_in_small() -> None:
    mlp = OwnMLP(4096).to("meta")
    twin = small_copy(mlp)
    assert {n: tuple(p.shape) for n, p in twin.named_parameters()} == {
        "gate_proj.weight": (2, 1),
        "up_proj.weight": (2, 1),
        "down_proj.weight": (1, 2),
        "down_proj.bias": (1,),
    }
    assert (twin.gate_proj.in_features, twin.gate_proj.out_features) == (1, 2)
    assert [c.rule for c in patch(mlp).changed] == ["gated_mlp"]


# -- shipped rules ----------------------------------------------------------------------------------------------------
def test_pytorch_s_norms_are_told_to_be_one_op_already() -> None:
    handle = patch(nn.Sequential(nn.LayerNorm(8), nn.RMSNorm(8)))
    assert {s.reason for s in handle.skipped} == {"it runs F.layer_norm or F.rms_norm already"}


class Rotary(nn.Module):
    """A rotary embedding with the attributes that transformers' have."""

    def __init__(self, rope_type: str = "default") -> None:
        super().__init__()
        self.rope_type, self.attention_scaling = rope_type, 1.5
        self.register_buffer("inv_freq", 0.1 ** torch.arange(4.0), persistent=False)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].float() * self.inv_freq.float()
        both = torch.cat((angles, angles), -1)
        return tuple((f(both) * self.attention_scaling).to(x.dtype) for f in (torch.cos, torch.sin))


class RepeatingRotary(Rotary):
    """Angles in pairs, as Cohere has them."""

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = super().forward(x, position_ids)
        return cos[..., :4].repeat_interleave(2, -1), sin[..., :4].repeat_interleave(2, -1)


for cls in (Rotary, RepeatingRotary):
    cls.__module__, cls.__qualname__ = TRANSFORMERS, f"{cls.__name__}Embedding"


def test_rotary_embeddings_are_equal_to_the_last_bit() -> None:
    model, positions = Rotary(), torch.arange(700)[None]
    wanted = model(X.float(), positions)
    with patch(model, strict=False) as handle:
        assert [c.rule for c in handle.changed] == ["rotary_embedding"]
        given = model(X.float(), position_ids=positions)
        assert all(torch.equal(g, w) for g, w in zip(given, wanted, strict=True))


def test_rotary_embeddings_that_are_another_thing() -> None:
    model = nn.Sequential(Rotary("dynamic"), RepeatingRotary(), nn.Identity())
    reasons = [s.reason for s in patch(model).skipped]
    assert reasons[0] == "its frequencies change with the length (rope_type='dynamic')"
    assert reasons[1].startswith("output 0 is not the same")


class SoftTargetCrossEntropy(nn.Module):
    """As timm has it."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.sum(-target * F.log_softmax(x, dim=-1), dim=-1).mean()


SoftTargetCrossEntropy.__module__ = "timm.loss.cross_entropy"


def test_a_loss_of_other_shapes_runs_its_own_code() -> None:
    loss, x, target = SoftTargetCrossEntropy(), X, X.softmax(-1)
    wanted = loss(x, target), loss(x[0], target[0])
    with patch(loss) as handle:
        assert [c.rule for c in handle.changed] == ["soft_target"]
        assert torch.equal(loss(x, target), wanted[0])  # three dimensions, which F.cross_entropy reads in another way
        torch.testing.assert_close(loss(x[0], target[0]), wanted[1], rtol=1e-14, atol=0)
