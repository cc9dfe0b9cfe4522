"""Elementary functions of float32 on a GPU, element by element: MAX's own have 11 to 22 correct bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.gpu.checks import Call, check_calls

UNIT = 2.0**-23
SMALLEST = 2.0**-126
"""Results below it are flushed to zero."""


def _between(low: float, high: float) -> torch.Tensor:
    return torch.linspace(low, high, 100_003, dtype=torch.float64).float()


def _powers(low: float, high: float) -> torch.Tensor:
    return torch.logspace(low, high, 100_003, dtype=torch.float64).float()


FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor, float]] = {
    # name: function, arguments, largest error in units of the result's last place
    "exp": (torch.exp, _between(-85, 88), 4),
    "expm1": (torch.expm1, _between(-20, 88), 8),
    "tanh": (torch.tanh, _between(-10, 10), 6),
    "tanh, small": (torch.tanh, _powers(-30, 0), 6),
    "sigmoid": (torch.sigmoid, _between(-15, 15), 12),
    "log": (torch.log, _powers(-30, 30), 8),
    "log, near one": (torch.log, _between(0.3, 2.5), 8),
    "log2": (torch.log2, _powers(-30, 30), 8),
    "log10": (torch.log10, _powers(-30, 30), 8),
    "log1p": (torch.log1p, _powers(-20, 20), 8),
    "sqrt": (torch.sqrt, _powers(-30, 30), 4),
    "rsqrt": (torch.rsqrt, _powers(-30, 30), 4),
}


def _allowed(units: float) -> Callable[[list[Any], torch.Tensor], torch.Tensor]:
    return lambda inputs, exact: units * UNIT * exact.abs() + SMALLEST


def test_relative_errors() -> None:
    calls = [Call(name, f, (x,), allowed=_allowed(units)) for name, (f, x, units) in FUNCTIONS.items()]
    check_calls(calls)


def test_circular_functions_of_large_arguments() -> None:
    """As in rotary embeddings and in positions: an absolute error of 4 units at one, wherever the argument is."""
    arguments = {"small": _between(-10, 10), "positions": torch.arange(131_072).float(), "large": _powers(4, 9)}
    calls = [
        Call(f"{f.__name__} {name}", f, (x,), allowed=lambda inputs, exact: 4 * UNIT * torch.ones_like(exact))
        for name, x in arguments.items()
        for f in (torch.sin, torch.cos)
    ]
    check_calls(calls)


def test_gelu() -> None:
    """Torch adds one to a negative number near it, so a small result has no more correct digits than that sum."""

    def gelu(approximate: str) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: torch.nn.functional.gelu(x, approximate=approximate)

    def allowed(inputs: list[Any], exact: torch.Tensor) -> torch.Tensor:
        return 8 * UNIT * inputs[0].abs()

    check_calls([Call(kind, gelu(kind), (_between(-8, 8),), allowed=allowed) for kind in ("none", "tanh")])


def test_activations_of_16_bits() -> None:
    """They are computed with fewer digits than float32 has, and rounded once: infinities and NaN stand as in torch."""
    special = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 88.0, -88.0, 3e38, -3e38])
    x = torch.cat([_between(-12, 12), special]).bfloat16()
    functions = {
        "sigmoid": torch.sigmoid,
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "gelu by tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "softplus": torch.nn.functional.softplus,
        "logsigmoid": torch.nn.functional.logsigmoid,
        "log": torch.log,
        "log1p": torch.log1p,
    }
    check_calls([Call(name, f, (x,), allowed=_within_torchs_digits) for name, f in functions.items()])


def _within_torchs_digits(inputs: list[Any], exact: torch.Tensor) -> torch.Tensor:
    """One rounding to bfloat16, and what cancels in float32."""
    return exact.abs() * 2.0**-8 * 1.01 + 4 * UNIT * inputs[0].abs().clamp_max(20) + SMALLEST


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_gelu_of_16_bits(dtype: torch.dtype) -> None:
    """One rounding, and 16 bits of a sigmoid, times up to eleven, that are subtracted from each other."""

    def gradient(approximate: str) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: torch.ops.aten.gelu_backward(torch.ones_like(x), x, approximate=approximate)

    def allowed(inputs: list[Any], exact: torch.Tensor) -> torch.Tensor:
        return exact.abs() * torch.finfo(dtype).eps / 2 * 1.01 + 11 * 2.0**-16

    x = torch.cat([_between(-12, 12), torch.tensor([0.0, -0.0, 88.0, -88.0])]).to(dtype)
    check_calls([Call(kind, gradient(kind), (x,), allowed=allowed) for kind in ("none", "tanh")])
