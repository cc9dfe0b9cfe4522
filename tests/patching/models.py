"""Small models, written here, whose classes a library's name stands on: no library is needed to select them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from torch_max_backend.patching import Rule

TRANSFORMERS = "transformers.models.own.modeling_own"
X = torch.linspace(-2, 2, 48, dtype=torch.float64).view(2, 3, 8).sin() * 3


class OwnRMSNorm(nn.Module):
    """An RMS norm as most of transformers' models have it, with the computation in the dtype of the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))
        self.variance_epsilon = 1e-6

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        mean = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(mean + self.variance_epsilon))


class OwnOffsetRMSNorm(OwnRMSNorm):
    """The same with one plus the weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon) * (1.0 + self.weight)


class OwnMLP(nn.Module):
    """A gated MLP with the names that Llama's has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, 2 * width, bias=False)
        self.up_proj = nn.Linear(width, 2 * width, bias=False)
        self.down_proj = nn.Linear(2 * width, width)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class WrittenGELU(nn.Module):
    """GELU by way of tanh, written out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


for named in (OwnRMSNorm, OwnOffsetRMSNorm, OwnMLP):
    named.__module__ = TRANSFORMERS


class Block(nn.Module):
    """A layer of a transformer without its attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = OwnRMSNorm(width)
        self.mlp = OwnMLP(width)
        self.act = WrittenGELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.act(self.mlp(self.norm(x)))


class Model(nn.Module):
    """Two layers and a norm; ``[..., 8]`` to ``[..., 8]``."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(8) for _ in range(2))
        self.norm = OwnRMSNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def results(model: nn.Module, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The output, and the gradients of the parameters for a loss that weighs all of it."""
    out = model(*inputs)
    loss = F.mse_loss(out, torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape))
    return [out.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def assert_near(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    """In float64, up to the rounding of some hundred operations in another order."""
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g, w, rtol=0, atol=1e-13 * max(1.0, float(w.abs().max())))


def patched_paths(model: nn.Module) -> list[str]:
    """Paths of the modules whose class is a patched one."""
    return [path for path, module in model.named_modules() if "_patch" in vars(type(module))]


def negated(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A replacement with another meaning, so that one sees where it runs."""
    return -x


NEGATED = Rule("negated", negated, "-x", names="*norm")


def state(model: nn.Module) -> dict[str, object]:
    """All that one can see of a model, by identity."""
    seen: dict[str, object] = {}
    for path, module in model.named_modules():
        seen[path] = (id(module), type(module), module.training, [(k, id(v)) for k, v in vars(module).items()])
        seen[f"{path}.forward"] = (type(module).forward, module.forward.__func__)
        for name, value in vars(module).items():
            if isinstance(value, dict):
                seen[f"{path}.{name}"] = [(k, id(v)) for k, v in value.items()]
    seen["state"] = [(k, id(v)) for k, v in model.state_dict(keep_vars=True).items()]
    return seen
