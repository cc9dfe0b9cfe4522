"""Products with what stands behind them: a bias and GELU, a bias and a residual."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from torch_max_backend.ops.activations import check_form, gelu_slope
from torch_max_backend.ops.arguments import Sizes
from torch_max_backend.ops.declaration import BenchmarkCase, Maker, Tolerance
from torch_max_backend.ops.define import gradient_of, public_op
from torch_max_backend.ops.precision import MaybeTensor, as_wide, rows_of, sum_of_rows

_TOLERANCE = Tolerance(
    64, 4, 4, 64, "a product's sums are the library's, in float32; 16-bit results are rounded behind it and once more"
)


def _flops(sizes: Sizes) -> Any:
    return 2 * rows_of(sizes) * sizes["n"] * sizes["k"]


def through_linear(
    slope: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: MaybeTensor
) -> tuple[torch.Tensor, torch.Tensor, MaybeTensor]:
    """The gradients of ``F.linear(x, weight, bias)``, whose own gradient is ``slope``."""
    rows, inputs = slope.reshape(-1, slope.shape[-1]), x.reshape(-1, x.shape[-1])
    for_bias = None if bias is None else sum_of_rows(as_wide(slope)).to(bias.dtype)
    return slope @ weight, rows.t() @ inputs, for_bias


def _square(new: Maker) -> tuple[torch.Tensor, ...]:
    """Rows, a square weight and a bias, for a benchmark."""
    columns = new.columns // 4
    return new(new.rows // 4, columns), new(columns, columns), new(columns)


@public_op(
    'fused_linear_gelu(Tensor x, Tensor weight, Tensor? bias=None, str approximate="none") -> Tensor',
    shapes={"x": "... k", "weight": "n k", "bias": "n"},
    results=["... n"],
    requires=lambda sizes, x, weight, bias, approximate: check_form("fused_linear_gelu", approximate),
    differentiable=("x", "weight", "bias"),
    autocast="lower",
    tolerance=_TOLERANCE,
    flops=_flops,
    cases=(
        BenchmarkCase(
            "square",
            _square,
            lambda x, w, b: F.gelu(F.linear(x, w, b)),
        ),
    ),
)
def fused_linear_gelu(
    x: torch.Tensor, weight: torch.Tensor, bias: MaybeTensor = None, approximate: str = "none"
) -> torch.Tensor:
    """GELU of ``x @ weight.T + bias``. The backward computes the product again, so nothing but arguments is kept.

    Args:
        x: [..., k].
        weight: [n, k].
        bias: [n]; 0 if it is missing.
        approximate: "none" or "tanh".
    """
    return F.gelu(as_wide(F.linear(x, weight, bias)), approximate=approximate).to(x.dtype)


@gradient_of("fused_linear_gelu", flops=lambda sizes: 3 * _flops(sizes))
def _fused_linear_gelu_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: MaybeTensor, approximate: str
) -> tuple[torch.Tensor, torch.Tensor, MaybeTensor]:
    before = as_wide(F.linear(x, weight, bias))
    return through_linear(gelu_slope(as_wide(grad), before, approximate).to(x.dtype), x, weight, bias)


@public_op(
    "fused_linear_bias_residual(Tensor x, Tensor weight, Tensor? bias, Tensor residual) -> Tensor",
    shapes={"x": "... k", "weight": "n k", "bias": "n", "residual": "... n"},
    results=["... n"],
    differentiable=("x", "weight", "bias", "residual"),
    same_gradient={"residual": "grad"},
    autocast="lower",
    tolerance=_TOLERANCE,
    flops=_flops,
    cases=(
        BenchmarkCase(
            "square",
            lambda new: (*_square(new), new(new.rows // 4, new.columns // 4)),
            lambda x, w, b, y: F.linear(x, w, b) + y,
        ),
    ),
)
def fused_linear_bias_residual(
    x: torch.Tensor, weight: torch.Tensor, bias: MaybeTensor, residual: torch.Tensor
) -> torch.Tensor:
    """``x @ weight.T + bias + residual``.

    Args:
        x: [..., k].
        weight: [n, k].
        bias: [n], or ``None``.
        residual: [..., n].
    """
    return (as_wide(F.linear(x, weight, bias)) + as_wide(residual)).to(x.dtype)


@gradient_of("fused_linear_bias_residual")
def _fused_linear_bias_residual_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: MaybeTensor
) -> tuple[torch.Tensor, torch.Tensor, MaybeTensor]:
    return through_linear(grad, x, weight, bias)
