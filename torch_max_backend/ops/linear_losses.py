"""Cross-entropy of a product whose logits are never in memory whole.

The logits are computed for some classes and all rows at a time, in the forward for the logarithm of the sum of their
exponentials, and in the backward once more, for the gradient's own two products. So the gradient of the weight is
computed class by class, each in one product, and needs no sums in a wider dtype beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from torch_max_backend.ops.arguments import Sizes
from torch_max_backend.ops.declaration import INTEGERS, BenchmarkCase, Tolerance
from torch_max_backend.ops.define import gradient_of, public_op
from torch_max_backend.ops.precision import as_wide, rows_of

LOGITS_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Elements of the logits that are in memory at the same time; a GPU needs larger products to be busy."""
ROWS_AT_ONCE = 1 << 14
"""Rows of a part, so that there are some thousand classes beside them: each part reads all of its rows."""
ALIGNED = 64
"""What the number of classes in a part is a multiple of, so that rows of logits begin at aligned addresses."""

_OF_SUMS = Tolerance(32, 2, 2, 32, "sums over a row in float32")
_WIDE = (torch.float32, torch.float64)


# -- of one part ---------------------------------------------------------------------------------------------------
@public_op(
    "log_sum_exp(Tensor logits) -> Tensor",
    shapes={"logits": "... v"},
    results=["..."],
    result_dtypes=(torch.float32,),
    tolerance=_OF_SUMS,
    flops=lambda sizes: 3 * rows_of(sizes) * sizes["v"],
)
def log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """The logarithm of the sum of exponentials of each row, in float32 (float64 for float64)."""
    wide = as_wide(logits)
    largest = wide.amax(-1)
    shift = torch.where(largest.isinf(), 0.0, largest)
    return shift + torch.exp(wide - shift.unsqueeze(-1)).sum(-1).log()


@public_op(
    "class_logits(Tensor x, Tensor weight, Tensor target) -> Tensor",
    shapes={"x": "r k", "weight": "v k", "target": "r"},
    results=["r"],
    dtypes={"target": INTEGERS},
    result_dtypes=(torch.float32,),
    tolerance=_OF_SUMS,
    flops=lambda sizes: 2 * sizes["r"] * sizes["k"],
)
def class_logits(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The logit of each row's own class, in float32 (float64 for float64) and not rounded."""
    own = weight.gather(0, target.long().unsqueeze(-1).expand_as(x))  # whose error names the class
    return (as_wide(x) * as_wide(own)).sum(-1)


@public_op(
    "logits_gradient(Tensor logits, Tensor log_sum, Tensor target, Tensor grad) -> Tensor",
    shapes={"logits": "... v", "log_sum": "...", "target": "...", "grad": "..."},
    results=["... v"],
    dtypes={"target": INTEGERS, "log_sum": _WIDE, "grad": _WIDE},
    tolerance=_OF_SUMS,
    flops=lambda sizes: 4 * rows_of(sizes) * sizes["v"],
)
def logits_gradient(
    logits: torch.Tensor, log_sum: torch.Tensor, target: torch.Tensor, grad: torch.Tensor
) -> torch.Tensor:
    """The gradient of the loss with respect to some logits of each row.

    Args:
        logits: [..., v].
        log_sum: [...], over all logits of the row.
        target: [...]: the class, as its place among these; any other number if it is not among them.
        grad: [...].
    """
    return _slope(logits, log_sum, target, grad)


def _slope(logits: torch.Tensor, log_sum: torch.Tensor, target: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    wide = as_wide(logits)
    is_target = torch.arange(wide.shape[-1], device=wide.device) == target.unsqueeze(-1)
    share = torch.exp(wide - log_sum.unsqueeze(-1)) - is_target.to(wide.dtype)
    return (grad.unsqueeze(-1) * share).to(logits.dtype)


# -- of all --------------------------------------------------------------------------------------------------------
def _parts(count: int, step: int) -> Iterator[slice]:
    for first in range(0, count, step):
        yield slice(first, min(first + step, count))


def _parts_of_rows(rows: torch.Tensor) -> list[slice]:
    return list(_parts(rows.shape[0], ROWS_AT_ONCE))


def _parts_of_classes(rows: torch.Tensor, weight: torch.Tensor) -> Iterator[slice]:
    step = LOGITS_AT_ONCE[rows.device.type] // max(1, min(rows.shape[0], ROWS_AT_ONCE))
    yield from _parts(weight.shape[0], max(1, step // ALIGNED * ALIGNED or step))


def _flat(x: torch.Tensor, target: torch.Tensor, ignore_index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, their classes (0 where they are ignored), and which rows are not."""
    targets = target.reshape(-1)
    kept = targets != ignore_index
    return x.reshape(-1, x.shape[-1]), torch.where(kept, targets, 0), kept


def _by_parts(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
    rows, targets, kept = _flat(x, target, ignore_index)
    sums = rows.new_full((rows.shape[0],), -torch.inf, dtype=as_wide(rows[:0]).dtype)
    for classes in _parts_of_classes(rows, weight):
        for part in _parts_of_rows(rows):
            of_part = log_sum_exp(F.linear(rows[part], weight[classes]))
            torch.logaddexp(sums[part], of_part, out=sums[part])
    return torch.where(kept, sums - class_logits(rows, weight, targets), 0.0).view(target.shape)


def _gradient_by_parts(
    grad: torch.Tensor,
    result: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    ignore_index: int,
    wanted: Sequence[bool],
) -> list[torch.Tensor]:
    rows, targets, kept = _flat(x, target, ignore_index)
    log_sum = result.reshape(-1) + class_logits(rows, weight, targets)
    log_sum, slopes = torch.where(kept, log_sum, torch.inf), torch.where(kept, grad.reshape(-1), 0.0)
    for_x = torch.zeros_like(rows, dtype=log_sum.dtype) if wanted[0] else None
    for_weight = torch.empty_like(weight, memory_format=torch.contiguous_format) if wanted[1] else None
    parts = _parts_of_rows(rows)
    for classes in _parts_of_classes(rows, weight):
        own = weight[classes]
        sums = None if for_weight is None or len(parts) == 1 else torch.zeros_like(own, dtype=log_sum.dtype)
        for part in parts:
            logits = F.linear(rows[part], own)
            slope = logits_gradient(logits, log_sum[part], targets[part] - classes.start, slopes[part])
            if for_x is not None:
                _add_product(for_x[part], slope, own)
            if sums is not None:
                _add_product(sums, slope.t(), rows[part])
            elif for_weight is not None:
                torch.mm(slope.t(), rows[part], out=for_weight[classes])
        if sums is not None and for_weight is not None:
            for_weight[classes] = sums
    found = [for_x.to(x.dtype).view(x.shape)] if for_x is not None else []
    return [*found, for_weight] if for_weight is not None else found


def _add_product(sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Add a product to sums that may have a wider dtype; on a GPU it is not rounded before."""
    if sums.dtype == a.dtype:
        sums.addmm_(a, b)
    elif sums.is_cuda:
        sums += torch.mm(a, b, out_dtype=sums.dtype)
    else:
        sums += a @ b


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
    """``cross_entropy`` of ``x @ weight.T``, for some classes at a time, forward and backward.

    Args:
        x: [..., k].
        weight: [v, k].
        target: [...], int32 or int64: a class from 0 to v - 1, or ``ignore_index``, whose rows have a loss of 0.
        ignore_index: What marks rows that do not count.
    """
    wide, kept = as_wide(F.linear(x, weight)), target != ignore_index
    found = wide.gather(-1, torch.where(kept, target, 0).long().unsqueeze(-1)).squeeze(-1)
    return torch.where(kept, wide.logsumexp(-1) - found, 0.0)


@gradient_of("linear_cross_entropy", flops=lambda sizes: 3 * _flops(sizes), kernel=_gradient_by_parts)
def _linear_cross_entropy_backward(
    grad: torch.Tensor,
    result: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    ignore_index: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = F.linear(x, weight)
    grad = torch.where(target != ignore_index, grad, 0.0)
    slope = _slope(logits, as_wide(logits).logsumexp(-1), target, grad)
    rows, inputs = slope.reshape(-1, slope.shape[-1]), x.reshape(-1, x.shape[-1])
    return slope @ weight, rows.t() @ inputs
