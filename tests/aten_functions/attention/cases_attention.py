"""Attention: masks, causal order, scale, grouped heads, rows that attend to nothing, 16-bit floats and gradients."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.support.cases import Case, randn

aten = torch.ops.aten
BF16, F64 = torch.bfloat16, torch.float64
INF = float("inf")

MASK = torch.zeros(9, 7).masked_fill(torch.arange(63).view(9, 7) % 3 == 0, -INF)
DEAD = MASK.clone().index_fill_(0, torch.tensor([2, 8]), -INF)

QKV = (randn(2, 4, 9, 8), randn(2, 4, 7, 8), randn(2, 4, 7, 8))


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    sdpa = F.scaled_dot_product_attention
    return (
        sdpa(q, k, v),
        sdpa(q, k, v, is_causal=True),
        sdpa(q, k, v, scale=0.3),
        sdpa(q, k, v, attn_mask=DEAD.to(q.dtype)),
        sdpa(q, k, v, attn_mask=DEAD == 0),
        sdpa(q, k, v, attn_mask=(DEAD == 0)[None, None, :1].expand(2, 1, 1, 7)),
        sdpa(q[:, :, :1], k, v),
        sdpa(q.transpose(1, 2).contiguous().transpose(1, 2), k, v),
    )


def with_logarithms(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    flash = aten._scaled_dot_product_flash_attention_for_cpu
    return (
        *flash(q, k, v),
        *flash(q, k, v, is_causal=True, scale=0.3),
        *flash(q, k, v, attn_mask=DEAD.to(q.dtype)),
        *flash(q, k, v, attn_mask=torch.sin(q[:, :1] @ k[:, :1].transpose(2, 3))),
    )


def backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    results: list[torch.Tensor] = []
    for causal, mask, scale in ((False, None, None), (True, None, 0.3), (False, MASK.to(q.dtype), None)):
        out, sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        results += aten._scaled_dot_product_flash_attention_for_cpu_backward(
            torch.sin(out), q, k, v, out, sums, 0.0, causal, attn_mask=mask, scale=scale
        )
    return tuple(results)


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    sdpa = F.scaled_dot_product_attention
    k, v = k[:, :2], v[:, :2]
    return sdpa(q, k, v, enable_gqa=True), sdpa(q, k, v, is_causal=True, enable_gqa=True)


HALF = {"rtol": 3e-2, "atol": 1e-2, "why": "eager rounds the weights to 16 bits before the second product"}

CASES = [
    Case("forward_f32", forward, QKV),
    Case("forward_f64", forward, tuple(randn(2, 4, n, 8, dtype=F64) for n in (9, 7, 7))),
    Case("forward_bf16", forward, tuple(randn(2, 4, n, 8, dtype=BF16) for n in (9, 7, 7)), **HALF),
    Case("logarithms_f32", with_logarithms, QKV),
    Case("logarithms_bf16", with_logarithms, tuple(randn(2, 4, n, 8, dtype=BF16) for n in (9, 7, 7)), **HALF),
    Case("backward_f32", backward, QKV),
    Case("backward_bf16", backward, tuple(randn(2, 4, n, 8, dtype=BF16) for n in (9, 7, 7)), **HALF),
    Case("grouped_f32", grouped, QKV),
    Case(
        "decomposed",
        lambda q, k, v: (
            F.scaled_dot_product_attention(q[0], k[0], v[0]),
            F.scaled_dot_product_attention(q, k, torch.cat([v, v], -1)),
        ),
        QKV,
    ),
    Case(
        "dynamic",
        lambda q, k, v: (
            F.scaled_dot_product_attention(q, k, v),
            F.scaled_dot_product_attention(q, k, v, is_causal=True),
        ),
        QKV,
        dynamic=True,
        second=(randn(3, 4, 11, 8), randn(3, 4, 6, 8), randn(3, 4, 6, 8)),
    ),
    Case(
        "dynamic_backward",
        lambda q, k, v: aten._scaled_dot_product_flash_attention_for_cpu_backward(
            torch.sin(q), q, k, v, torch.cos(q), (q * q).sum(-1), 0.0, True
        ),
        QKV,
        dynamic=True,
        second=(randn(3, 4, 11, 8), randn(3, 4, 6, 8), randn(3, 4, 6, 8)),
    ),
]
