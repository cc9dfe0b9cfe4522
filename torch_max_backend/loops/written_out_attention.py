"""Attention that torch has no fused kernel for on a GPU, as products and loops: of float64, and of float32 with groups.

ATen computes it by a dozen kernels that each read and write all scores, and copies the keys and values of each group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch


def is_without_a_kernel(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether torch has no fused kernel for ``scaled_dot_product_attention`` of these tensors [B, H, L, D]."""
    query, key, value = args[:3]
    known = all(s.is_constant for x in (query, key, value) for s in x.shape)
    if not known or any(x.rank != 4 for x in (query, key, value)) or kwargs.get("dropout_p") or any(args[4:5]):
        return False
    has_groups = query.shape[1] != key.shape[1]
    fits = query.shape[0] == key.shape[0] == value.shape[0] and key.shape[1] == value.shape[1]
    is_long = all(s.constant > 0 for x in (query, key, value) for s in x.shape)
    return fits and is_long and (query.dtype is torch.float64 or (query.dtype is torch.float32 and has_groups))


# scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0,
#     bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor
def written_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """What attention gives, for :func:`make_fx` to trace. The heads of a group are rows of one product.

    Args:
        query: [B, H, L, D].
        key: [B, G, S, D], where G divides H.
        value: [B, G, S, V].
        attn_mask: Broadcast to [B, H, L, S].

    A query for which no key counts gives zeros, as in torch.
    """
    batch, heads, length, depth = query.shape
    groups, keys = key.shape[1:3]
    rows = query.reshape(batch, groups, heads // groups * length, depth)
    scores = torch.matmul(rows, key.transpose(-2, -1)).view(batch, heads, length, keys)
    scores = scores * (1 / math.sqrt(depth) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(length, keys, dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None:
        hidden = -math.inf
        is_bool = attn_mask.dtype is torch.bool
        scores = scores.masked_fill(attn_mask.logical_not(), hidden) if is_bool else scores + attn_mask
    weights = torch.ops.aten._safe_softmax.default(scores, -1)
    found = torch.matmul(weights.view(batch, groups, heads // groups * length, keys), value)
    return found.view(batch, heads, length, value.shape[-1])
