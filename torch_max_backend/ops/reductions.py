"""Sums, means, extremes and products over any dimensions; softmax."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from torch_max_backend.ops.arguments import ArgumentError, Sizes
from torch_max_backend.ops.declaration import ROUNDED_ONCE, BenchmarkCase, Tolerance
from torch_max_backend.ops.define import gradient_of, public_op
from torch_max_backend.ops.precision import as_wide, rows_of

_HOW = ("sum", "mean", "amax", "amin", "prod")
Dims = Collection[int] | None


def _reduced(op: str, rank: int, dims: Dims) -> list[int]:
    """The dimensions that are reduced, in order.

    Raises:
        ArgumentError: One is out of range or named twice.
    """
    found = list(range(rank)) if dims is None else [d % rank if -rank <= d < rank else d for d in dims]
    for d in found:
        if not 0 <= d < rank:
            raise ArgumentError(f"{op}: dims must be from {-rank} to {rank - 1} for a tensor of rank {rank}, got {d}")
    if len(set(found)) < len(found):
        raise ArgumentError(f"{op}: dims must name each dimension once, got {list(dims or ())}")
    return sorted(found)


def _check_reduce(sizes: Sizes, x: torch.Tensor, how: str, dims: Dims, keepdim: bool) -> None:
    if how not in _HOW:
        raise ArgumentError(f"reduce: how must be one of {', '.join(_HOW)}, got {how!r}")
    empty = [d for d in _reduced("reduce", x.ndim, dims) if x.shape[d] == 0]
    if empty and how in ("amax", "amin"):
        raise ArgumentError(f"reduce: {how} needs at least one element along dims, got size 0 along {empty[0]}")


def _reduced_shape(sizes: Sizes, x: torch.Tensor, how: str, dims: Dims, keepdim: bool) -> list[tuple[Any, ...]]:
    gone = _reduced("reduce", x.ndim, dims)
    return [tuple(1 if d in gone else n for d, n in enumerate(x.shape) if keepdim or d not in gone)]


@public_op(
    'reduce(Tensor x, str how="sum", int[]? dims=None, bool keepdim=False) -> Tensor',
    shapes={"x": "..."},
    results=_reduced_shape,
    requires=_check_reduce,
    differentiable=("x",),
    merges_batch=False,
    tolerance=Tolerance(64, 2, 2, 64, "partial results are float32; the error of a sum grows with its length"),
    flops=lambda sizes: rows_of(sizes),
    cases=(
        BenchmarkCase(
            "sum of rows", lambda new: (new(new.rows, new.columns), "sum", [1]), lambda x, how, dims: x.sum(dims)
        ),
        BenchmarkCase(
            "sum of columns", lambda new: (new(new.rows, new.columns), "sum", [0]), lambda x, how, dims: x.sum(dims)
        ),
        BenchmarkCase(
            "largest of rows", lambda new: (new(new.rows, new.columns), "amax", [1]), lambda x, how, dims: x.amax(dims)
        ),
    ),
)
def reduce(x: torch.Tensor, how: str = "sum", dims: Dims = None, keepdim: bool = False) -> torch.Tensor:
    """The sum, mean, largest or smallest element, or product over some dimensions.

    Args:
        x: Any shape.
        how: "sum", "mean", "amax", "amin" or "prod".
        dims: The dimensions; all of them if it is missing.
        keepdim: Whether reduced dimensions stay, with size 1.
    """
    gone, wide = _reduced("reduce", x.ndim, dims), as_wide(x)
    if not gone:
        return x
    if how == "prod":
        for d in reversed(gone):
            wide = wide.prod(d, keepdim=keepdim)
        return wide.to(x.dtype)
    return getattr(torch, how)(wide, gone, keepdim=keepdim).to(x.dtype)


def _names_for_reduce(
    grad: torch.Tensor, x: torch.Tensor, result: torch.Tensor, how: str, dims: Dims, keepdim: bool, wanted: Any
) -> dict[str, list[str]]:
    gone = _reduced("reduce", x.ndim, dims)
    names = [f"d{d}" for d in range(x.ndim)]
    left = ["one" if d in gone else n for d, n in enumerate(names) if keepdim or d not in gone]
    return {"x": names, "grad": left, "result": left}


@gradient_of("reduce", dim_names=_names_for_reduce)
def _reduce_backward(
    grad: torch.Tensor, x: torch.Tensor, result: torch.Tensor, how: str, dims: Dims, keepdim: bool
) -> tuple[torch.Tensor]:
    gone, wide = _reduced("reduce", x.ndim, dims), as_wide(x)
    slope, best = as_wide(grad), as_wide(result)
    for d in [] if keepdim else gone:
        slope, best = slope.unsqueeze(d), best.unsqueeze(d)
    if how == "sum":
        found = slope.expand_as(wide)
    elif how == "mean":
        found = (slope / math.prod(x.shape[d] for d in gone)).expand_as(wide)
    elif how == "prod":
        found = slope * _products_of_others(wide, gone)
    else:
        is_best = (wide == best).to(wide.dtype)
        found = slope * is_best / (is_best.sum(gone, keepdim=True) if gone else is_best)
    return (found.to(x.dtype),)


def _products_of_others(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """For each element, the product of all others along ``dims``."""
    if not dims:
        return torch.ones_like(x)
    is_zero = x == 0
    zeros = is_zero.sum(list(dims), keepdim=True)
    others = torch.where(is_zero, 1, x)
    product = others
    for d in dims:
        product = product.prod(d, keepdim=True)
    return torch.where(zeros == 0, product / others, torch.where((zeros == 1) & is_zero, product, 0.0))


def _check_softmax(sizes: Sizes, x: torch.Tensor, dim: int) -> None:
    if not -x.ndim <= dim < x.ndim:
        raise ArgumentError(f"softmax_online: dim must be from {-x.ndim} to {x.ndim - 1}, got {dim}")
    if x.shape[dim] == 0:
        raise ArgumentError(f"softmax_online: x must have at least one element along dim {dim}, got {list(x.shape)}")


@public_op(
    "softmax_online(Tensor x, int dim=-1) -> Tensor",
    shapes={"x": "..."},
    results=["..."],
    requires=_check_softmax,
    differentiable=("x",),
    merges_batch=False,
    autocast="float32",
    tolerance=ROUNDED_ONCE,
    flops=lambda sizes: 5 * rows_of(sizes),
    cases=(BenchmarkCase("rows", lambda new: (new(new.rows, new.columns),), lambda x: F.softmax(x, -1)),),
)
def softmax_online(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Softmax along one dimension, in the dtype of ``x``; a 16-bit one is computed in float32.

    Args:
        x: Any shape with at least one dimension.
        dim: The dimension.
    """
    wide = as_wide(x)
    powers = torch.exp(wide - wide.amax(dim, keepdim=True))
    return (powers / powers.sum(dim, keepdim=True)).to(x.dtype)


@gradient_of("softmax_online")
def _softmax_backward(grad: torch.Tensor, result: torch.Tensor, dim: int) -> tuple[torch.Tensor]:
    slope, y = as_wide(grad), as_wide(result)
    return ((y * (slope - (slope * y).sum(dim, keepdim=True))).to(result.dtype),)
