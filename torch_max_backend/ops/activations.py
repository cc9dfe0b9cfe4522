"""GELU, alone and of a sum with a bias; products of an activated gate."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from torch_max_backend.ops.arguments import ArgumentError, Sizes
from torch_max_backend.ops.declaration import ROUNDED_ONCE, BenchmarkCase
from torch_max_backend.ops.define import gradient_of, public_op
from torch_max_backend.ops.precision import as_wide, rows_of, sum_of_rows

_FORMS = ("none", "tanh")


def check_form(op: str, approximate: str) -> None:
    """Check the form of a GELU.

    Raises:
        ArgumentError: It is neither exact nor by tanh.
    """
    if approximate not in _FORMS:
        raise ArgumentError(f"{op}: approximate must be 'none' or 'tanh', got {approximate!r}")


def gelu_slope(grad: torch.Tensor, x: torch.Tensor, approximate: str) -> torch.Tensor:
    """The gradient of a GELU at ``x``."""
    return torch.ops.aten.gelu_backward(grad, x, approximate=approximate)


def _elements(sizes: Sizes) -> Any:
    return rows_of(sizes) * sizes.get("n", 1)


@public_op(
    'gelu(Tensor x, str approximate="none") -> Tensor',
    shapes={"x": "..."},
    results=["..."],
    requires=lambda sizes, x, approximate: check_form("gelu", approximate),
    differentiable=("x",),
    tolerance=ROUNDED_ONCE,
    flops=lambda sizes: 10 * _elements(sizes),
    cases=(
        BenchmarkCase("exact", lambda new: (new(new.rows, new.columns),), F.gelu),
        BenchmarkCase(
            "tanh", lambda new: (new(new.rows, new.columns), "tanh"), lambda x, form: F.gelu(x, approximate=form)
        ),
    ),
)
def gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """``x * Phi(x)``, where ``Phi`` is the normal distribution, or its approximation by tanh.

    Args:
        x: Any shape.
        approximate: "none" or "tanh", as for ``torch.nn.functional.gelu``.
    """
    return F.gelu(as_wide(x), approximate=approximate).to(x.dtype)


@gradient_of("gelu")
def _gelu_backward(grad: torch.Tensor, x: torch.Tensor, approximate: str) -> tuple[torch.Tensor]:
    return (gelu_slope(as_wide(grad), as_wide(x), approximate).to(x.dtype),)


@public_op(
    'bias_gelu(Tensor x, Tensor bias, str approximate="none") -> Tensor',
    shapes={"x": "... n", "bias": "n"},
    results=["... n"],
    requires=lambda sizes, x, bias, approximate: check_form("bias_gelu", approximate),
    differentiable=("x", "bias"),
    tolerance=ROUNDED_ONCE,
    flops=lambda sizes: 11 * _elements(sizes),
    cases=(
        BenchmarkCase("exact", lambda new: (new(new.rows, new.columns), new(new.columns)), lambda x, b: F.gelu(x + b)),
    ),
)
def bias_gelu(x: torch.Tensor, bias: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """:func:`gelu` of ``x + bias``.

    Args:
        x: [..., n].
        bias: [n].
        approximate: "none" or "tanh".
    """
    return F.gelu(as_wide(x) + as_wide(bias), approximate=approximate).to(x.dtype)


@gradient_of("bias_gelu")
def _bias_gelu_backward(
    grad: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, approximate: str
) -> tuple[torch.Tensor, torch.Tensor]:
    slope = gelu_slope(as_wide(grad), as_wide(x) + as_wide(bias), approximate)
    return slope.to(x.dtype), sum_of_rows(slope).to(bias.dtype)


@public_op(
    "swiglu(Tensor gate, Tensor up) -> Tensor",
    shapes={"gate": "...", "up": "..."},
    results=["..."],
    differentiable=("gate", "up"),
    tolerance=ROUNDED_ONCE,
    flops=lambda sizes: 5 * _elements(sizes),
    cases=(
        BenchmarkCase(
            "halves", lambda new: new(new.rows, 2 * new.columns).chunk(2, -1), lambda gate, up: F.silu(gate) * up
        ),
    ),
)
def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up``. Halves of one tensor are given as ``x.chunk(2, -1)``, and read where they lie.

    Args:
        gate: Any shape.
        up: The same shape.
    """
    return (F.silu(as_wide(gate)) * as_wide(up)).to(gate.dtype)


@gradient_of("swiglu")
def _swiglu_backward(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    slope, wide = as_wide(grad), as_wide(gate)
    share = torch.sigmoid(wide)
    for_gate = slope * as_wide(up) * share * (1 + wide * (1 - share))
    return for_gate.to(gate.dtype), (slope * wide * share).to(up.dtype)


@public_op(
    'geglu(Tensor gate, Tensor up, str approximate="none") -> Tensor',
    shapes={"gate": "...", "up": "..."},
    results=["..."],
    requires=lambda sizes, gate, up, approximate: check_form("geglu", approximate),
    differentiable=("gate", "up"),
    tolerance=ROUNDED_ONCE,
    flops=lambda sizes: 11 * _elements(sizes),
    cases=(
        BenchmarkCase(
            "halves", lambda new: new(new.rows, 2 * new.columns).chunk(2, -1), lambda gate, up: F.gelu(gate) * up
        ),
    ),
)
def geglu(gate: torch.Tensor, up: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """``gelu(gate) * up``.

    Args:
        gate: Any shape.
        up: The same shape.
        approximate: "none" or "tanh".
    """
    return (F.gelu(as_wide(gate), approximate=approximate) * as_wide(up)).to(gate.dtype)


@gradient_of("geglu")
def _geglu_backward(
    grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, approximate: str
) -> tuple[torch.Tensor, torch.Tensor]:
    slope, wide = as_wide(grad), as_wide(gate)
    for_gate = gelu_slope(slope * as_wide(up), wide, approximate)
    return for_gate.to(gate.dtype), (slope * F.gelu(wide, approximate=approximate)).to(up.dtype)
