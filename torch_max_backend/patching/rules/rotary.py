"""Rotary embeddings: cosine and sine of half the angles, since the other half repeats them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torch_max_backend.patching.rule import Rule


def rotary_embedding(module: Any, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine ``[batch, length, 2 * frequencies]`` in the dtype of ``x``, computed in float32."""
    frequencies = module.inv_freq.to(device=x.device, dtype=torch.float32)
    angles = position_ids[..., None].float() * frequencies
    cos = (angles.cos() * module.attention_scaling).to(x.dtype)
    sin = (angles.sin() * module.attention_scaling).to(x.dtype)
    return torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)


def _has_fixed_frequencies(module: nn.Module) -> str | None:
    if "inv_freq" not in module._buffers:
        return "it has no buffer inv_freq"
    rope_type = getattr(module, "rope_type", "default")
    if not isinstance(rope_type, str) or "dynamic" in rope_type or rope_type == "longrope":
        return f"its frequencies change with the length (rope_type={rope_type!r})"
    return None


def _positions(module: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 5, 1), torch.tensor([[0, 1, 2, 3, 4], [3, 900, 901, 7, 0]])


ROTARY = (
    Rule(
        "rotary_embedding",
        rotary_embedding,
        "cosine and sine of half the angles",
        types=("transformers.models.*RotaryEmbedding",),
        fits=_has_fixed_frequencies,
        sample=_positions,
    ),
)
