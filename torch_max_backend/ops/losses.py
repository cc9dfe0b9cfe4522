"""Cross-entropy of logits."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from torch_max_backend.ops.arguments import ArgumentError, Sizes
from torch_max_backend.ops.declaration import INTEGERS, BenchmarkCase, Tolerance
from torch_max_backend.ops.define import gradient_of, public_op
from torch_max_backend.ops.precision import as_wide, rows_of

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
            lambda new: (new(new.rows, new.columns), new.integers(new.columns, new.rows)),
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
