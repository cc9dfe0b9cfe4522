"""Activations that are written out become one op each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from torch_max_backend.patching.rule import Rule


def gelu_tanh(module: Any, x: torch.Tensor) -> torch.Tensor:
    """GELU by way of tanh."""
    return F.gelu(x, approximate="tanh")


def gelu(module: Any, x: torch.Tensor) -> torch.Tensor:
    """GELU by the error function."""
    return F.gelu(x)


def quick_gelu(module: Any, x: torch.Tensor) -> torch.Tensor:
    """``x * sigmoid(1.702 x)``, which saves one tensor for the backward pass instead of two."""
    return F.silu(1.702 * x) / 1.702


def silu(module: Any, x: torch.Tensor) -> torch.Tensor:
    """``x * sigmoid(x)``."""
    return F.silu(x)


def mish(module: Any, x: torch.Tensor) -> torch.Tensor:
    """``x * tanh(softplus(x))``."""
    return F.mish(x)


def hardswish(module: Any, x: torch.Tensor) -> torch.Tensor:
    """``x * relu6(x + 3) / 6``."""
    return F.hardswish(x)


def _is_out_of_place(module: nn.Module) -> str | None:
    return "it writes into its input (inplace=True)" if getattr(module, "inplace", False) else None


def _values(module: nn.Module) -> tuple[torch.Tensor]:
    return (torch.linspace(-6.5, 6.5, 40).view(4, 10),)  # none of them where a hard function has its corners


def _activation(replacement: Callable[..., Any], after: str, *types: str) -> Rule:
    return Rule(replacement.__name__, replacement, after, types=types, fits=_is_out_of_place, sample=_values)


def _tanh_gelu_of(x: Any) -> Any:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def _erf_gelu_of(x: Any) -> Any:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def _fused_tanh_gelu(x: Any) -> Any:
    return F.gelu(x, approximate="tanh")


def _fused_erf_gelu(x: Any) -> Any:
    return F.gelu(x)


def _is_own_activation(module: nn.Module) -> bool:
    """Whether it may be an activation that somebody wrote: no children, no tensors, not PyTorch's."""
    return not (
        module._modules or module._parameters or module._buffers or type(module).__module__.startswith("torch.")
    )


def _written_out(name: str, pattern: Callable[..., Any], fused: Callable[..., Any], after: str) -> Rule:
    return Rule(name, fused, after, where=_is_own_activation, pattern=pattern, fits=_is_out_of_place, sample=_values)


_OF_TRANSFORMERS = "transformers.activations."
_OF_TIMM = "timm.layers.activations."

ACTIVATIONS = (
    _activation(
        gelu_tanh,
        'F.gelu(approximate="tanh")',
        _OF_TRANSFORMERS + "NewGELUActivation",
        _OF_TRANSFORMERS + "FastGELUActivation",
        _OF_TRANSFORMERS + "AccurateGELUActivation",
        _OF_TRANSFORMERS + "*GELUTanh",
    ),
    _activation(gelu, "F.gelu", _OF_TRANSFORMERS + "GELUActivation"),
    _activation(quick_gelu, "F.silu, scaled", _OF_TRANSFORMERS + "QuickGELUActivation", _OF_TIMM + "QuickGELU"),
    _activation(silu, "F.silu", _OF_TRANSFORMERS + "SiLUActivation", _OF_TIMM + "Swish"),
    _activation(mish, "F.mish", _OF_TRANSFORMERS + "MishActivation", _OF_TIMM + "Mish"),
    _activation(hardswish, "F.hardswish", _OF_TIMM + "HardSwish"),
    _written_out("written_out_gelu_tanh", _tanh_gelu_of, _fused_tanh_gelu, 'F.gelu(approximate="tanh")'),
    _written_out("written_out_gelu", _erf_gelu_of, _fused_erf_gelu, "F.gelu"),
)
