"""Attention of one query, as where a language model decodes, as loops.

It takes the time of reading keys and values. A library's kernel has a block for each head, which goes through all keys;
loops share keys out, too, and read those that several heads have in common where they lie.
"""

from __future__ import annotations

import math

import torch

from torch_max_backend.loops.expr import Scalar, cast, constant, select
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.rules.registry import rule_of
from torch_max_backend.loops.tensor import Shape, Tensor, broadcast_at, define, reduce

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""Those whose scores are computed in float32."""


# scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0,
#     bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor
def attention_of_a_row(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """What attention gives, ``None`` if it is of more than one query or else no such loops are made for it.

    Args:
        query: [B, H, 1, D].
        key: [B, G, S, D], where G is H, or a divisor of it with ``enable_gqa``.
        value: [B, G, S, V].
        attn_mask: Broadcast to [B, H, 1, S]: what is added to scores, or where a key counts.

    Scores and sums are of float32. A query for which no key counts gives zeros, as in torch.
    """
    if query.rank != 4 or query.shape[2] != 1 or query.dtype not in DTYPES or dropout_p:
        return None
    if not all(s.is_constant for x in (query, key, value) for s in x.shape) or key.shape[2].constant < 1:
        return None
    if is_causal and key.shape[2] != 1:
        return None
    batch, heads, _, depth = query.shape
    group = _heads_of_a_group(query, key, value) if enable_gqa or key.shape[:2] == query.shape[:2] else 0
    if not group:
        return None
    factor = constant(1 / math.sqrt(depth.constant) if scale is None else scale, torch.float32)
    shape = (batch, heads, Index.of(1), key.shape[2])
    added = None if attn_mask is None else broadcast_at(attn_mask, shape)

    def product(i: Shape, over: Shape) -> Scalar:
        return _exact(query.at((*i[:3], *over))) * _exact(key.at((i[0], i[1] // group, i[3], *over)))

    sums = reduce("sum", shape, (depth,), product)

    def score(i: Shape) -> Scalar:
        found = sums.at(i) * factor
        if added is None or attn_mask is None:
            return found
        mask = added(i)
        if attn_mask.dtype is torch.bool:
            return select(mask, found, constant(-math.inf, torch.float32))
        return found + _exact(mask)

    weights = _softmax(define(shape, torch.float32, score))

    def weighted(i: Shape, over: Shape) -> Scalar:
        return weights.at((*i[:3], *over)) * _exact(value.at((i[0], i[1] // group, *over, i[3])))

    return reduce("sum", (batch, heads, Index.of(1), value.shape[3]), (key.shape[2],), weighted, query.dtype)


def _heads_of_a_group(query: Tensor, key: Tensor, value: Tensor) -> int:
    """How many heads of queries have one of keys and values; 0 if that is none's business here."""
    heads, groups = query.shape[1].constant, key.shape[1].constant
    fits = key.shape[:1] == value.shape[:1] == query.shape[:1] and key.shape[1:3] == value.shape[1:3]
    return heads // groups if fits and key.shape[3] == query.shape[3] and heads % groups == 0 else 0


def _exact(x: Scalar) -> Scalar:
    return cast(x, torch.float32)


def _softmax(scores: Tensor) -> Tensor:
    softmax = rule_of(torch.ops.aten._safe_softmax.default)
    assert softmax is not None
    found = softmax(scores, -1)
    assert isinstance(found, Tensor)
    return found
