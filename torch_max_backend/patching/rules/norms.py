"""Norms that are written out become ``F.rms_norm`` and ``F.layer_norm``, one op each."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from torch_max_backend.patching.rule import Rule


def rms_norm(module: Any, x: torch.Tensor) -> Any:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension; float64 stays float64."""
    weight = getattr(module, "weight", None)
    if weight is not None and weight.dtype != x.dtype:
        return NotImplemented  # which of both the result has differs by class
    return F.rms_norm(x, (x.shape[-1],), weight, _eps(module))


def rms_norm_offset(module: Any, x: torch.Tensor) -> torch.Tensor:
    """The same with ``1 + weight``, computed in float32 at least, as Gemma has it."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.rms_norm(x.to(wide), (x.shape[-1],), 1.0 + module.weight.to(wide), _eps(module)).type_as(x)


def rms_norm_2d(module: Any, x: torch.Tensor) -> Any:
    """RMS norm over the channels of ``[N, C, H, W]``."""
    normed = rms_norm(module, x.permute(0, 2, 3, 1))
    return normed if normed is NotImplemented else normed.permute(0, 3, 1, 2)


def layer_norm(module: Any, x: torch.Tensor) -> Any:
    """Layer norm over the last dimensions."""
    if getattr(module, "_fast_norm", False) and torch.is_autocast_enabled(x.device.type):
        return NotImplemented  # timm's fast norm keeps to the dtype of autocast, where PyTorch's takes float32
    shape, bias = getattr(module, "normalized_shape", module.weight.shape), getattr(module, "bias", None)
    if module.weight is not None and module.weight.dtype != x.dtype:
        return NotImplemented
    return F.layer_norm(x, tuple(shape), module.weight, bias, _eps(module))


def layer_norm_2d(module: Any, x: torch.Tensor) -> Any:
    """Layer norm over the channels of ``[N, C, H, W]``."""
    normed = layer_norm(module, x.permute(0, 2, 3, 1))
    return normed if normed is NotImplemented else normed.permute(0, 3, 1, 2)


def _eps(module: Any) -> float:
    eps = getattr(module, "eps", None)
    return module.variance_epsilon if eps is None else eps


def _rows(module: nn.Module) -> tuple[torch.Tensor]:
    weight = getattr(module, "weight", None)
    return (torch.randn(2, 3, 8 if weight is None else weight.shape[-1]),)


def _images(module: Any) -> tuple[torch.Tensor]:
    return (torch.randn(2, module.weight.shape[-1], 3, 2),)


def _is_built_in(module: nn.Module) -> str:
    return "it runs F.layer_norm or F.rms_norm already"


_RMS_NORMS = (
    "transformers.models.*RMSNorm",
    "transformers.models.*5LayerNorm",  # T5, MT5, LongT5
    "transformers.models.*Pix2StructLayerNorm",
    "transformers.models.*SwitchTransformersLayerNorm",
)

NORMS = (
    Rule("built_in_norm", layer_norm, "F.layer_norm", types=(nn.LayerNorm, nn.RMSNorm), fits=_is_built_in),
    Rule("rms_norm", rms_norm, "F.rms_norm", types=(*_RMS_NORMS, "timm.layers.norm.RmsNorm"), sample=_rows),
    Rule("rms_norm_offset", rms_norm_offset, "F.rms_norm of 1 + weight", types=_RMS_NORMS, sample=_rows),
    Rule("rms_norm_2d", rms_norm_2d, "F.rms_norm of channels", types=("timm.layers.norm.RmsNorm2d",), sample=_images),
    Rule(
        "layer_norm",
        layer_norm,
        "F.layer_norm",
        types=("timm.layers.norm.LayerNorm", "transformers.models.cohere*LayerNorm"),
        sample=_rows,
    ),
    Rule(
        "layer_norm_2d",
        layer_norm_2d,
        "F.layer_norm of channels",
        types=("timm.layers.norm.LayerNorm2d", "timm.layers.norm.LayerNormExp2d"),
        sample=_images,
    ),
)
