"""MLPs: the products read the layers' weights, without a call of a module for each.

Weights that a model keeps apart are not packed into one product: that gains nothing on a CPU (``docs/patching.md``),
and packed weights would have to be kept in step with the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from torch_max_backend.patching.eligibility import is_plain_linear
from torch_max_backend.patching.rule import Rule

Names = tuple[str, ...]


def gated(name: str, layers: tuple[str, str, str], act: str, between: Names = (), after: Names = ()) -> Rule:
    """``down(act(gate(x)) * up(x))`` with the layers gate, up and down.

    The modules ``between`` and ``after`` are called before and behind ``down``.
    """

    def gated_mlp(module: Any, x: torch.Tensor) -> Any:
        gate, up, down = (getattr(module, layer) for layer in layers)
        if not (is_plain_linear(gate) and is_plain_linear(up) and is_plain_linear(down)):
            return NotImplemented
        hidden = getattr(module, act)(_product(gate, x)) * _product(up, x)
        return _called(module, after, _product(down, _called(module, between, hidden)))

    return _rule(name, gated_mlp, layers, (act, *between, *after))


def packed(name: str, layers: tuple[str, str], act: str, between: Names = (), after: Names = ()) -> Rule:
    """The same with one matrix for gate and up, the gate's rows first: one product."""

    def packed_gated_mlp(module: Any, x: torch.Tensor) -> Any:
        both, down = (getattr(module, layer) for layer in layers)
        if not (is_plain_linear(both) and is_plain_linear(down)):
            return NotImplemented
        gates, values = _product(both, x).chunk(2, dim=-1)
        hidden = getattr(module, act)(gates) * values
        return _called(module, after, _product(down, _called(module, between, hidden)))

    return _rule(name, packed_gated_mlp, layers, (act, *between, *after))


def plain(name: str, layers: tuple[str, str], act: str, between: Names = (), after: Names = ()) -> Rule:
    """``down(act(up(x)))``."""

    def mlp(module: Any, x: torch.Tensor) -> Any:
        up, down = (getattr(module, layer) for layer in layers)
        if not (is_plain_linear(up) and is_plain_linear(down)):
            return NotImplemented
        hidden = getattr(module, act)(_product(up, x))
        return _called(module, after, _product(down, _called(module, between, hidden)))

    return _rule(name, mlp, layers, (act, *between, *after))


# A hint on a container, or on a local variable, would break graphs where beartype is on: it draws what it checks.
def _product(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """What ``Linear`` and transformers' ``Conv1D`` compute; the latter has its weight transposed."""
    return F.linear(x, layer.weight if type(layer) is nn.Linear else layer.weight.t(), layer.bias)


def _called(module: nn.Module, names: Any, x: torch.Tensor) -> torch.Tensor:
    for name in names:
        x = getattr(module, name)(x)
    return x


def _rule(name: str, replacement: Callable[..., Any], reads: Names, calls: Names) -> Rule:
    """A rule for the MLPs of transformers and timm that have these children and no others."""
    children = {*reads, *calls}

    def has_these_children(module: nn.Module) -> bool:
        return set(module._modules) == children

    def rows(module: nn.Module) -> tuple[torch.Tensor]:
        first = module.get_submodule(reads[0])
        width = first.weight.shape[-1 if type(first) is nn.Linear else 0]
        return (torch.randn(2, 3, int(width)),)

    return Rule(
        name,
        replacement,
        "F.linear with the layers' weights",
        types=("transformers.models.*MLP", "timm.layers.mlp.*"),
        where=has_these_children,
        reads=reads,
        sample=rows,
    )


MLPS = (
    gated("gated_mlp", ("gate_proj", "up_proj", "down_proj"), "act_fn"),  # Llama, Mistral, Qwen, Gemma
    packed("packed_gated_mlp", ("gate_up_proj", "down_proj"), "activation_fn"),  # Phi-3, GLM
    plain("gpt2_mlp", ("c_fc", "c_proj"), "act", after=("dropout",)),
    plain("gpt_neox_mlp", ("dense_h_to_4h", "dense_4h_to_h"), "act"),
    plain("mlp", ("fc1", "fc2"), "activation_fn"),  # Phi, CLIP, ViT
    plain("timm_mlp", ("fc1", "fc2"), "act", between=("drop1", "norm"), after=("drop2",)),
    gated("timm_swiglu", ("fc1_g", "fc1_x", "fc2"), "act", between=("drop1", "norm"), after=("drop2",)),
)
