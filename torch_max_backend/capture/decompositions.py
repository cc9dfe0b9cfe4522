"""Which ops AOTAutograd decomposes: torch's core table, less every overload that the registry handles itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._ops import OpOverload
from torch.nn import functional as F

from torch_max_backend.aten_functions.registry import registered_overloads
from torch_max_backend.capture.foreach_ops import foreach_decompositions
from torch_max_backend.capture.quantized_decomposed_ops import quantized_decomposed_rules
from torch_max_backend.capture.user_controlled_ops import is_named

aten = torch.ops.aten


@functools.cache
def _core() -> dict[Any, Callable[..., Any]]:
    table = dict(core_aten_decompositions())
    table.update(get_decompositions([aten._scaled_dot_product_attention_math, aten._to_copy, aten._unsafe_index]))
    table.update(foreach_decompositions())
    table[aten._transformer_encoder_layer_fwd.default] = transformer_encoder_layer
    return table


_own: dict[OpOverload, Callable[..., Any]] = {}


def decompose(op: OpOverload, rule: Callable[..., Any]) -> None:
    """Have an op of this package's own taken apart: ``rule`` is plain PyTorch and takes the op's arguments."""
    _own[op] = rule


def decomposition_table(left_whole: Collection[str] = ()) -> dict[OpOverload, Callable[..., Any]]:
    """The table for AOTAutograd: a registered lowering, the user's included, wins over a decomposition.

    Args:
        left_whole: Names of ops that PyTorch shall run; of these, this package's own are not taken apart.
    """
    kept = set(registered_overloads())
    own = {op: rule for op, rule in _own.items() if not is_named(op, left_whole)}
    rules = _core() | quantized_decomposed_rules() | own
    return {op: rule for op, rule in rules.items() if op not in kept}


def transformer_encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    """``nn.TransformerEncoderLayer``'s fused inference op as the layer's own equations (torch has no decomposition).

    ``src`` is [batch, sequence, embed_dim]. With a mask the op stays whole: its masked softmax gives zeros, not NaN,
    for a row that is masked in full.
    """
    if mask is not None or src.is_nested:
        return NotImplemented

    def first_norm(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attend(x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = F.linear(x, qkv_weight, qkv_bias).view(batch, length, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        return F.linear(mixed.transpose(1, 2).reshape(batch, length, embed_dim), proj_weight, proj_bias)

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attend(first_norm(src))
        return x + feed_forward(second_norm(x))
    x = first_norm(src + attend(src))
    return second_norm(x + feed_forward(x))
