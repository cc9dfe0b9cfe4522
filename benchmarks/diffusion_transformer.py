"""A diffusion transformer: patches of a noisy image; a condition shifts, scales and gates what is in a block."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


def waves(time: torch.Tensor, width: int) -> torch.Tensor:
    """Cosines and sines of ``time`` [B] at ``width / 2`` frequencies: [B, width] in float32."""
    half = width // 2
    rates = torch.exp(torch.arange(half, device=time.device, dtype=torch.float32) * (-math.log(10_000.0) / half))
    angles = time.float()[:, None] * rates
    return torch.cat((angles.cos(), angles.sin()), -1)


class Block(nn.Module):
    """Attention and a two-layer network; the condition makes three vectors for each of them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-6, elementwise_affine=False) for _ in range(2))
        self.condition = nn.Linear(width, 6 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Self-attention of [B, S, W]."""
        b, s, w = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, w))

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """``x`` [B, S, W], condition ``c`` [B, W]."""
        vectors = self.condition(F.silu(c))[:, None].chunk(6, -1)
        shift, scale, gate, shift_2, scale_2, gate_2 = vectors
        x = x + gate * self.attend(self.norms[0](x) * (1 + scale) + shift)
        inner = self.norms[1](x) * (1 + scale_2) + shift_2
        return x + gate_2 * self.down(F.gelu(self.up(inner), approximate="tanh"))


class DiffusionTransformer(nn.Module):
    """Predicts noise and variance of a latent image [B, C, size, size] at a time, for a class."""

    def __init__(
        self, size: int = 32, channels: int = 4, patch: int = 2, width: int = 768, depth: int = 12, heads: int = 12
    ) -> None:
        super().__init__()
        self.patch, self.channels, self.side = patch, 2 * channels, size // patch
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.places = nn.Parameter(torch.randn(1, self.side**2, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(1001, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.condition = nn.Linear(width, 2 * width)
        self.last = nn.Linear(width, patch * patch * self.channels)

    def forward(self, image: torch.Tensor, time: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """``image`` [B, C, size, size], ``time`` and ``label`` [B] integers; the result has 2 C channels."""
        x = self.patches(image).flatten(2).transpose(1, 2) + self.places
        c = self.time(waves(time, 256).to(x.dtype)) + self.classes(label)
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.condition(F.silu(c))[:, None].chunk(2, -1)
        x = self.last(self.norm(x) * (1 + scale) + shift)
        x = x.view(-1, self.side, self.side, self.patch, self.patch, self.channels)
        return x.permute(0, 5, 1, 3, 2, 4).reshape(image.shape[0], self.channels, *image.shape[2:])
