"""Rotary position embeddings, from tables or from positions."""

from __future__ import annotations

import math
from typing import Any

import torch

from torch_max_backend.ops.arguments import Sizes
from torch_max_backend.ops.declaration import FLOATS, INTEGERS, BenchmarkCase, Tolerance
from torch_max_backend.ops.define import gradient_of, public_op
from torch_max_backend.ops.precision import as_wide, rows_of

_TOLERANCE = Tolerance(8, 1, 1, 8, "two products and a sum, rounded once")
_OF_POSITIONS = Tolerance(
    8, 1, 1, 1 << 16, "as of tables; the angle of a position below 2^16 is off by so many roundings of float64"
)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Pairs of columns turned by angles."""
    wide, half = as_wide(x), x.shape[-1] // 2
    a, b = (wide[..., 0::2], wide[..., 1::2]) if interleaved else (wide[..., :half], wide[..., half:])
    first, second = a * cos - b * sin, b * cos + a * sin
    if interleaved:
        return torch.stack([first, second], -1).flatten(-2).to(x.dtype)
    return torch.cat([first, second], -1).to(x.dtype)


def _angles(x: torch.Tensor, positions: torch.Tensor, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines: position ``p`` turns pair ``i`` of ``r`` by ``p * base^(-i / r)``."""
    half = x.shape[-1] // 2
    steps = torch.arange(half, dtype=torch.float64, device=x.device) * (-math.log(base))
    angle = positions.double().unsqueeze(-1) * torch.exp(steps / half)
    angle = torch.remainder(angle, 2 * math.pi).to(as_wide(x).dtype)
    return angle.cos(), angle.sin()


def _plain_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """What a program without the op writes."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def _flops(sizes: Sizes) -> Any:
    return 6 * rows_of(sizes) * sizes["s"] * sizes["r"]


@public_op(
    "rope(Tensor x, Tensor cos, Tensor sin, bool interleaved=False) -> Tensor",
    shapes={"x": "... s 2r", "cos": "s r", "sin": "s r"},
    results=["... s 2r"],
    dtypes={"cos": FLOATS, "sin": FLOATS},
    differentiable=("x",),
    tolerance=_TOLERANCE,
    flops=_flops,
    cases=(
        BenchmarkCase("half", lambda new: (new(new.rows // 16, 512, 128), new(512, 64), new(512, 64)), _plain_rope),
    ),
)
def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """Turn pairs of columns by angles whose cosines and sines are in tables.

    Args:
        x: [..., s, 2r].
        cos: [s, r], of any floating-point dtype. It has no gradient.
        sin: The same.
        interleaved: Whether columns 2i and 2i + 1 are a pair, and not i and i + r.
    """
    wide = as_wide(x).dtype
    return _turned(x, cos.to(wide), sin.to(wide), interleaved)


@gradient_of("rope")
def _rope_backward(grad: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor]:
    wide = as_wide(grad).dtype
    return (_turned(grad, cos.to(wide), -sin.to(wide), interleaved),)


@public_op(
    "rope_at(Tensor x, Tensor positions, float base=10000.0, bool interleaved=False) -> Tensor",
    shapes={"x": "... s 2r", "positions": "... s"},
    results=["... s 2r"],
    dtypes={"positions": INTEGERS},
    differentiable=("x",),
    tolerance=_OF_POSITIONS,
    flops=_flops,
    cases=(
        BenchmarkCase(
            "half",
            lambda new: (new(new.rows // 16, 512, 128), new.integers(4096, 512).expand(new.rows // 16, 512)),
            lambda x, p: _plain_rope(x, *_angles(x, p, 10000.0)),
        ),
    ),
)
def rope_at(x: torch.Tensor, positions: torch.Tensor, base: float = 10000.0, interleaved: bool = False) -> torch.Tensor:
    """Turn pairs of columns by angles of positions: pair i of r by ``position * base^(-i / r)``.

    Args:
        x: [..., s, 2r].
        positions: [..., s], int32 or int64. Positions that are shared are expanded, which takes no memory.
        base: Of the frequencies.
        interleaved: Whether columns 2i and 2i + 1 are a pair, and not i and i + r.
    """
    return _turned(x, *_angles(x, positions, base), interleaved)


@gradient_of("rope_at")
def _rope_at_backward(
    grad: torch.Tensor, positions: torch.Tensor, base: float, interleaved: bool
) -> tuple[torch.Tensor]:
    cos, sin = _angles(grad, positions, base)
    return (_turned(grad, cos, -sin, interleaved),)
