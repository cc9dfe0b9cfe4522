"""Norms over the last dimension, alone and of a sum that is returned beside them."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from torch_max_backend.ops.declaration import FLOATS, BenchmarkCase, Tolerance
from torch_max_backend.ops.define import gradient_of, public_op
from torch_max_backend.ops.precision import MaybeTensor, as_wide, rows_of, sum_of_rows

_TOLERANCE = Tolerance(
    32, 2, 2, 32, "sums over a row are kept in float32, whose error grows with the row's length; rounded once"
)


def _root(x: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.rsqrt(x.square().mean(-1) + eps).unsqueeze(-1)


def _scaled(x: torch.Tensor, weight: MaybeTensor) -> torch.Tensor:
    return x if weight is None else x * weight.to(x.dtype)


def _for_weight(x: torch.Tensor, weight: MaybeTensor) -> MaybeTensor:
    return None if weight is None else sum_of_rows(x).to(weight.dtype)


@public_op(
    "rms_norm(Tensor x, Tensor? weight=None, float eps=1e-06) -> Tensor",
    shapes={"x": "... n", "weight": "n"},
    results=["... n"],
    dtypes={"weight": FLOATS},
    differentiable=("x", "weight"),
    tolerance=_TOLERANCE,
    flops=lambda sizes: 5 * rows_of(sizes) * sizes["n"],
    cases=(
        BenchmarkCase(
            "rows",
            lambda new: (new(new.rows, new.columns), new(new.columns)),
            lambda x, w: F.rms_norm(x, w.shape, w, 1e-6),
        ),
    ),
)
def rms_norm(x: torch.Tensor, weight: MaybeTensor = None, eps: float = 1e-6) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, in the dtype of ``x``.

    Args:
        x: [..., n].
        weight: [n], of any floating-point dtype; 1 if it is missing.
        eps: Is added to the mean of squares.
    """
    wide = as_wide(x)
    return _scaled(wide * _root(wide, eps), weight).to(x.dtype)


@gradient_of("rms_norm")
def _rms_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: MaybeTensor, eps: float
) -> tuple[torch.Tensor, MaybeTensor]:
    wide, slope = as_wide(x), as_wide(grad)
    root = _root(wide, eps)
    y = wide * root
    scaled = _scaled(slope, weight)
    for_x = root * (scaled - y * (scaled * y).mean(-1).unsqueeze(-1))
    return for_x.to(x.dtype), _for_weight(slope * y, weight)


@public_op(
    "add_rms_norm(Tensor x, Tensor residual, Tensor? weight=None, float eps=1e-06) -> (Tensor normed, Tensor sum)",
    shapes={"x": "... n", "residual": "... n", "weight": "n"},
    results=["... n", "... n"],
    dtypes={"weight": FLOATS},
    differentiable=("x", "residual", "weight"),
    same_gradient={"residual": "x"},
    tolerance=_TOLERANCE,
    flops=lambda sizes: 6 * rows_of(sizes) * sizes["n"],
    cases=(
        BenchmarkCase(
            "rows",
            lambda new: (new(new.rows, new.columns), new(new.rows, new.columns), new(new.columns)),
            lambda x, y, w: (F.rms_norm(x + y, w.shape, w, 1e-6), x + y),
        ),
    ),
)
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: MaybeTensor = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`rms_norm` of ``x + residual``, and the sum. The norm is that of the sum as it is returned.

    Args:
        x: [..., n].
        residual: [..., n].
        weight: [n], of any floating-point dtype; 1 if it is missing.
        eps: Is added to the mean of squares.
    """
    total = (as_wide(x) + as_wide(residual)).to(x.dtype)
    wide = as_wide(total)
    return _scaled(wide * _root(wide, eps), weight).to(x.dtype), total


@gradient_of("add_rms_norm")
def _add_rms_norm_backward(
    grad_normed: torch.Tensor, grad_sum: torch.Tensor, sum: torch.Tensor, weight: MaybeTensor, eps: float
) -> tuple[torch.Tensor, MaybeTensor]:
    wide, slope = as_wide(sum), as_wide(grad_normed)
    root = _root(wide, eps)
    y = wide * root
    scaled = _scaled(slope, weight)
    for_x = root * (scaled - y * (scaled * y).mean(-1).unsqueeze(-1)) + as_wide(grad_sum)
    return for_x.to(sum.dtype), _for_weight(slope * y, weight)


def _standardized(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` with mean 0 and variance 1, and the factor of that."""
    centered = x - x.mean(-1).unsqueeze(-1)
    root = _root(centered, eps)
    return centered * root, root


def _affine(y: torch.Tensor, weight: MaybeTensor, bias: MaybeTensor) -> torch.Tensor:
    scaled = _scaled(y, weight)
    return scaled if bias is None else scaled + bias.to(y.dtype)


def _through_layer_norm(slope: torch.Tensor, y: torch.Tensor, root: torch.Tensor, weight: MaybeTensor) -> torch.Tensor:
    scaled = _scaled(slope, weight)
    return root * (scaled - scaled.mean(-1).unsqueeze(-1) - y * (scaled * y).mean(-1).unsqueeze(-1))


@public_op(
    "layer_norm(Tensor x, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> Tensor",
    shapes={"x": "... n", "weight": "n", "bias": "n"},
    results=["... n"],
    dtypes={"weight": FLOATS, "bias": FLOATS},
    differentiable=("x", "weight", "bias"),
    tolerance=_TOLERANCE,
    flops=lambda sizes: 8 * rows_of(sizes) * sizes["n"],
    cases=(
        BenchmarkCase(
            "rows",
            lambda new: (new(new.rows, new.columns), new(new.columns), new(new.columns)),
            lambda x, w, b: F.layer_norm(x, w.shape, w, b),
        ),
    ),
)
def layer_norm(
    x: torch.Tensor, weight: MaybeTensor = None, bias: MaybeTensor = None, eps: float = 1e-5
) -> torch.Tensor:
    """``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`` over the last dimension, in the dtype of ``x``.

    Args:
        x: [..., n].
        weight: [n], of any floating-point dtype; 1 if it is missing.
        bias: [n], of any floating-point dtype; 0 if it is missing.
        eps: Is added to the variance, which divides by n.
    """
    return _affine(_standardized(as_wide(x), eps)[0], weight, bias).to(x.dtype)


@gradient_of("layer_norm")
def _layer_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: MaybeTensor, bias: MaybeTensor, eps: float
) -> tuple[torch.Tensor, MaybeTensor, MaybeTensor]:
    slope = as_wide(grad)
    y, root = _standardized(as_wide(x), eps)
    for_x = _through_layer_norm(slope, y, root, weight)
    return for_x.to(x.dtype), _for_weight(slope * y, weight), _for_weight(slope, bias)


@public_op(
    "add_layer_norm(Tensor x, Tensor residual, Tensor? weight=None, Tensor? bias=None, float eps=1e-05)"
    " -> (Tensor normed, Tensor sum)",
    shapes={"x": "... n", "residual": "... n", "weight": "n", "bias": "n"},
    results=["... n", "... n"],
    dtypes={"weight": FLOATS, "bias": FLOATS},
    differentiable=("x", "residual", "weight", "bias"),
    same_gradient={"residual": "x"},
    tolerance=_TOLERANCE,
    flops=lambda sizes: 9 * rows_of(sizes) * sizes["n"],
    cases=(
        BenchmarkCase(
            "rows",
            lambda new: (new(new.rows, new.columns), new(new.rows, new.columns), new(new.columns), new(new.columns)),
            lambda x, y, w, b: (F.layer_norm(x + y, w.shape, w, b), x + y),
        ),
    ),
)
def add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: MaybeTensor = None, bias: MaybeTensor = None, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`layer_norm` of ``x + residual``, and the sum. The norm is that of the sum as it is returned.

    Args:
        x: [..., n].
        residual: [..., n].
        weight: [n], of any floating-point dtype; 1 if it is missing.
        bias: [n], of any floating-point dtype; 0 if it is missing.
        eps: Is added to the variance, which divides by n.
    """
    total = (as_wide(x) + as_wide(residual)).to(x.dtype)
    return _affine(_standardized(as_wide(total), eps)[0], weight, bias).to(x.dtype), total


@gradient_of("add_layer_norm")
def _add_layer_norm_backward(
    grad_normed: torch.Tensor,
    grad_sum: torch.Tensor,
    sum: torch.Tensor,
    weight: MaybeTensor,
    bias: MaybeTensor,
    eps: float,
) -> tuple[torch.Tensor, MaybeTensor, MaybeTensor]:
    slope = as_wide(grad_normed)
    y, root = _standardized(as_wide(sum), eps)
    for_x = _through_layer_norm(slope, y, root, weight) + as_wide(grad_sum)
    return for_x.to(sum.dtype), _for_weight(slope * y, weight), _for_weight(slope, bias)
