"""Cross-entropy of logits, and of a product whose logits are never in memory whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from torch_max_backend.ops.arguments import ArgumentError, Sizes
from torch_max_backend.ops.declaration import INTEGERS, ROWS, BenchmarkCase, Tolerance
from torch_max_backend.ops.define import gradient_of, public_op
from torch_max_backend.ops.precision import as_wide, rows_of

LOGITS_AT_ONCE = 1 << 22
"""Elements of the logits of a product that are in memory at the same time."""

_TOLERANCE = Tolerance(32, 2, 2, 32, "a sum of exponentials in float32, over a row")


def _check_smoothing(sizes: Sizes, logits: torch.Tensor, target: torch.Tensor, ignored: int, smoothing: float) -> None:
    if not 0 <= smoothing <= 1:
        raise ArgumentError(f"cross_entropy: label_smoothing must be from 0 to 1, got {smoothing}")


def _log_sum(wide: torch.Tensor) -> torch.Tensor:
    largest = wide.amax(-1)
    return largest + torch.exp(wide - largest.unsqueeze(-1)).sum(-1).log()


@public_op(
    "cross_entropy(Tensor logits, Tensor target, int ignore_index=-100, float label_smoothing=0.0) -> Tensor",
    shapes={"logits": "... v", "target": "..."},
    results=["..."],
    dtypes={"target": INTEGERS},
    result_dtypes=(torch.float32,),
    requires=_check_smoothing,
    differentiable=("logits",),
    autocast="float32",
    tolerance=_TOLERANCE,
    flops=lambda sizes: 5 * rows_of(sizes) * sizes["v"],
    cases=(
        BenchmarkCase(
            "classes",
            lambda new: (new(*ROWS), new.integers(4096, 1024)),
            lambda x, t: F.cross_entropy(x, t, reduction="none"),
        ),
    ),
)
def cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int = -100, label_smoothing: float = 0.0
) -> torch.Tensor:
    """The cross-entropy of each row, in float32 (float64 for float64). It is not averaged.

    Args:
        logits: [..., v].
        target: [...], int32 or int64: a class from 0 to v - 1, or ``ignore_index``, whose rows have a loss of 0.
        ignore_index: What marks rows that do not count.
        label_smoothing: From 0 to 1: what share of a target is spread over all classes evenly.
    """
    wide, kept = as_wide(logits), target != ignore_index
    place = torch.where(kept, target, 0).long()
    loss = _log_sum(wide)
    found = wide.gather(-1, place.unsqueeze(-1)).squeeze(-1)
    if label_smoothing:
        found = found * (1 - label_smoothing) + wide.mean(-1) * label_smoothing
    return torch.where(kept, loss - found, 0.0)


@gradient_of("cross_entropy")
def _cross_entropy_backward(
    grad: torch.Tensor, logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float
) -> tuple[torch.Tensor]:
    wide = as_wide(logits)
    slope = torch.where(target != ignore_index, grad.to(wide.dtype), 0.0).unsqueeze(-1)
    classes = torch.arange(wide.shape[-1], device=wide.device)
    is_target = (classes == target.unsqueeze(-1)).to(wide.dtype)
    if label_smoothing:
        spread = label_smoothing / torch.full((), wide.shape[-1], dtype=wide.dtype, device=wide.device)
        is_target = is_target * (1 - label_smoothing) + spread
    found = slope * (torch.exp(wide - _log_sum(wide).unsqueeze(-1)) - is_target)
    return (found.to(logits.dtype),)


# -- of a product --------------------------------------------------------------------------------------------------
def _parts(x: torch.Tensor, target: torch.Tensor, classes: int) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """Rows in parts: where they are, and their inputs and targets."""
    rows, targets = x.reshape(-1, x.shape[-1]), target.reshape(-1)
    step = max(1, LOGITS_AT_ONCE // classes)
    for first in range(0, rows.shape[0], step):
        where = slice(first, first + step)
        yield where, rows[where], targets[where]


def _by_parts(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
    loss = x.new_empty(target.numel(), dtype=as_wide(x[..., :0]).dtype)
    for where, rows, targets in _parts(x, target, weight.shape[0]):
        loss[where] = cross_entropy(F.linear(rows, weight), targets, ignore_index)
    return loss.view(target.shape)


def _gradient_by_parts(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    ignore_index: int,
    wanted: Sequence[bool],
) -> list[torch.Tensor]:
    backward, slopes = torch.ops.torch_max_backend.cross_entropy_backward.default, grad.reshape(-1)
    for_x = x.new_empty(slopes.numel(), x.shape[-1]) if wanted[0] else None
    for_weight = torch.zeros_like(weight, dtype=as_wide(weight[:0]).dtype) if wanted[1] else None
    for where, rows, targets in _parts(x, target, weight.shape[0]):
        (slope,) = backward(slopes[where], F.linear(rows, weight), targets, ignore_index, 0.0, [True])
        if for_x is not None:
            torch.mm(slope, weight, out=for_x[where])
        if for_weight is not None:
            for_weight += slope.t() @ rows
    found = [None if for_x is None else for_x.view(x.shape), None if for_weight is None else for_weight]
    return [f.to(like.dtype) for f, like in zip(found, (x, weight)) if f is not None]


def _flops(sizes: Sizes) -> Any:
    return 2 * rows_of(sizes) * sizes["v"] * sizes["k"]


@public_op(
    "linear_cross_entropy(Tensor x, Tensor weight, Tensor target, int ignore_index=-100) -> Tensor",
    shapes={"x": "... k", "weight": "v k", "target": "..."},
    results=["..."],
    dtypes={"target": INTEGERS},
    result_dtypes=(torch.float32,),
    differentiable=("x", "weight"),
    autocast="lower",
    tolerance=Tolerance(64, 2, 2, 64, "logits are rounded to the arguments' dtype, as a product's are", True),
    flops=_flops,
    kernel=_by_parts,
    cases=(
        BenchmarkCase(
            "classes",
            lambda new: (new(512, 512), new(8192, 512), new.integers(8192, 512)),
            lambda x, w, t: F.cross_entropy(F.linear(x, w), t, reduction="none"),
        ),
    ),
)
def linear_cross_entropy(
    x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, ignore_index: int = -100
) -> torch.Tensor:
    """:func:`cross_entropy` of ``x @ weight.T``, some rows at a time, forward and backward.

    Args:
        x: [..., k].
        weight: [v, k].
        target: [...], int32 or int64: a class from 0 to v - 1, or ``ignore_index``, whose rows have a loss of 0.
        ignore_index: What marks rows that do not count.
    """
    wide, kept = as_wide(F.linear(x, weight)), target != ignore_index
    found = wide.gather(-1, torch.where(kept, target, 0).long().unsqueeze(-1)).squeeze(-1)
    return torch.where(kept, _log_sum(wide) - found, 0.0)


@gradient_of("linear_cross_entropy", flops=lambda sizes: 3 * _flops(sizes), kernel=_gradient_by_parts)
def _linear_cross_entropy_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = F.linear(x, weight)
    (slope,) = _cross_entropy_backward(grad, logits, target, ignore_index, 0.0)
    rows, inputs = slope.reshape(-1, slope.shape[-1]), x.reshape(-1, x.shape[-1])
    return slope @ weight, rows.t() @ inputs
