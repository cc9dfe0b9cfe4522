"""The ops of exports that ``torchao.quantization.pt2e`` has quantised, as plain PyTorch.

These ops (``torch.ops.quantized_decomposed``) are Python functions to torch, and islands if they stay whole. Taken
apart they are loops, which unpack a weight where it is used. Those whose scale is a tensor read it as a number, which
ends a graph; here it stays a tensor, and its values are rounded as that number is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch._ops import OpOverload

Number: TypeAlias = int | float | torch.Tensor


def quantized_decomposed_rules() -> dict[OpOverload, Callable[..., object]]:
    """A function for each op; none while nothing has loaded the library that defines them."""
    if "torch.ao.quantization.fx._decomposed" not in sys.modules:
        return {}
    ops = torch.ops.quantized_decomposed
    return {
        ops.quantize_per_tensor.default: quantize_per_tensor,
        ops.quantize_per_tensor.tensor: quantize_per_tensor,
        ops.quantize_per_tensor.tensor2: quantize_per_tensor,
        ops.dequantize_per_tensor.default: dequantize_per_tensor,
        ops.dequantize_per_tensor.tensor: dequantize_per_tensor,
        ops.dequantize_per_tensor.tensor2: dequantize_per_tensor,
        ops.quantize_per_channel.default: quantize_per_channel,
        ops.dequantize_per_channel.default: dequantize_per_channel,
        ops.choose_qparams.tensor: choose_qparams,
        ops.choose_qparams_symmetric.tensor: choose_qparams_symmetric,
    }


def quantize_per_tensor(
    input: torch.Tensor,
    scale: Number,
    zero_point: Number,
    quant_min: Number,
    quant_max: Number,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Floats of up to 32 bits as integers of ``dtype``; the scale's reciprocal is taken in float64."""
    inverse: Number = 1.0 / (scale.double() if isinstance(scale, torch.Tensor) else scale)
    codes = torch.round(input.float() * _as_float(inverse)) + _as_float(zero_point)
    return _clamped(codes, _as_float(quant_min), _as_float(quant_max)).to(dtype)


def dequantize_per_tensor(
    input: torch.Tensor,
    scale: Number,
    zero_point: Number,
    quant_min: Number,
    quant_max: Number,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Integers as floats of ``out_dtype``, float32 unless it is given."""
    return (input.to(out_dtype or torch.float32) - _as_float(zero_point)) * _as_float(scale)


def quantize_per_channel(
    input: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The same with a scale and a zero for each index of dimension ``axis``."""
    scales, zero_points = (_along(x, axis, input.dim()) for x in (scales, zero_points))
    return torch.clamp(torch.round(input.float() * (1.0 / scales)) + zero_points, quant_min, quant_max).to(dtype)


def dequantize_per_channel(
    input: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Integers as floats, by a scale and a zero for each index of dimension ``axis``."""
    if zero_points is not None:
        input = input - _along(zero_points, axis, input.dim())
    return (input * _along(scales, axis, input.dim())).to(out_dtype or torch.float32)


def choose_qparams(
    input: torch.Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale ([1], float64, ``eps`` at least) and zero ([1], int64) for what is between the extremes of ``input``, or 0.

    Eager refuses NaN; here the scale is NaN then.
    """
    low, high = _extremes(input)
    scale = torch.maximum((high - low) / float(quant_max - quant_min), _eps(eps, input))
    zero = torch.clamp(quant_min - torch.round(low / scale).to(torch.int32), quant_min, quant_max)
    return scale.double(), zero.long()


def choose_qparams_symmetric(
    input: torch.Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with a zero that is 0, or 128 of ``uint8``."""
    low, high = _extremes(input)
    scale = torch.maximum(torch.maximum(-low, high) / (float(quant_max - quant_min) / 2), _eps(eps, input))
    zero = torch.full((1,), 128 if dtype is torch.uint8 else 0, dtype=torch.int64, device=input.device)
    return scale.double(), zero


def _extremes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the greatest element, 0 among them."""
    low, high = torch.aminmax(x)
    return torch.clamp_max(low, 0), torch.clamp_min(high, 0)


def _eps(eps: float, like: torch.Tensor) -> torch.Tensor:
    return torch.full((1,), eps, dtype=torch.float32, device=like.device)


def _along(x: torch.Tensor, axis: int, rank: int) -> torch.Tensor:
    """A vector as a tensor that is broadcast along all dimensions but ``axis``."""
    return x.reshape([-1 if d == axis % rank else 1 for d in range(rank)])


def _as_float(x: Number) -> Number:
    """A tensor of one element as a 0-d float32; a number as it is."""
    return x.float().reshape(()) if isinstance(x, torch.Tensor) else x


def _clamped(x: torch.Tensor, low: Number, high: Number) -> torch.Tensor:
    if isinstance(low, torch.Tensor) and isinstance(high, torch.Tensor):
        return torch.clamp(x, low, high)
    assert not isinstance(low, torch.Tensor)
    assert not isinstance(high, torch.Tensor)
    return torch.clamp(x, low, high)
