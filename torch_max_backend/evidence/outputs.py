"""Whether a contender computes what eager computes: the difference of their results, and how much is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_max_backend.base.errors import EvidenceError

LAST_DIGITS = {torch.float64: 1024, torch.float32: 1024, torch.bfloat16: 8, torch.float16: 8}
"""Tolerances in units of the last digit of a tensor's largest value.

In float32 and float64 sums of thousands of terms are taken in another order, layer after layer. 16-bit floats are
summed in float32 and rounded when they are stored, a few times a layer.
"""
TOLERANCES = {dtype: count * torch.finfo(dtype).eps for dtype, count in LAST_DIGITS.items()}


@dataclass(frozen=True)
class Difference:
    """How far results are from eager's; ``problem`` is empty, or why they do not pass.

    ``largest`` and ``mean`` are over all elements of all results, ``share`` is the largest part of what is allowed that
    a result needs: above 1 it is wrong.
    """

    largest: float
    mean: float
    share: float
    problem: str = ""


def with_overrides(given: Mapping[str, float]) -> dict[torch.dtype, float]:
    """The tolerances, with those of a user by a dtype's name in place of the package's.

    Raises:
        EvidenceError: There is no such dtype, or a tolerance is negative.
    """
    found = dict(TOLERANCES)
    for name, value in given.items():
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise EvidenceError(f"tolerance must be for a dtype of torch such as float32, got {name!r}")
        if not value >= 0:
            raise EvidenceError(f"tolerance of {name} must be 0 or more, got {value}")
        found[dtype] = value
    return found


def compared(given: Any, wanted: Any, tolerances: Mapping[torch.dtype, float]) -> Difference:
    """The difference of a contender's results to eager's.

    An element of a floating-point tensor may be ``tolerance * largest |wanted| + eps`` away, where the largest is of
    its tensor; NaN and infinities must be where eager has them, and integers and booleans be equal.

    Raises:
        EvidenceError: There is no tolerance for a result's dtype.
    """
    mine, theirs = (pytree.tree_leaves(x) for x in (given, wanted))
    forms = [[_form(x) for x in leaves] for leaves in (mine, theirs)]
    if forms[0] != forms[1]:
        return Difference(float("inf"), float("inf"), float("inf"), f"gives {forms[0]}, expected {forms[1]}")
    largest = total = share = 0.0
    count = 0
    for a, b in zip(mine, theirs, strict=True):
        if not isinstance(b, torch.Tensor) or not b.numel():
            continue
        distance, allowed = _distance(a, b), _allowed(b, tolerances)
        farthest = float(distance.max())
        largest, total, count = max(largest, farthest), total + float(distance.sum()), count + b.numel()
        share = max(share, 0.0 if farthest == 0 else farthest / allowed if allowed else float("inf"))
    problem = "" if share <= 1 else f"the largest difference {largest:.2g} is {share:.3g} times what is allowed"
    return Difference(largest, total / max(1, count), share, problem)


def _form(leaf: Any) -> Any:
    """What must be equal: shape and dtype of a tensor, else the value."""
    return (tuple(leaf.shape), str(leaf.dtype)) if isinstance(leaf, torch.Tensor) else leaf


def _distance(given: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Distances in float64, infinite where only one is NaN or infinite."""
    a, b = _wide(given), _wide(wanted)
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs().nan_to_num(nan=float("inf"), posinf=float("inf")))


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.detach().to(torch.complex128 if x.is_complex() else torch.float64)


def _allowed(wanted: torch.Tensor, tolerances: Mapping[torch.dtype, float]) -> float:
    dtype = wanted.dtype.to_real() if wanted.is_complex() else wanted.dtype
    if not dtype.is_floating_point:
        return 0.0
    if dtype not in tolerances:
        known = ", ".join(str(d).removeprefix("torch.") for d in tolerances)
        name = str(dtype).removeprefix("torch.")
        raise EvidenceError(f"tolerance is known for {known}, and a result is {name}: give {name}=NUMBER")
    finite = _wide(wanted).abs().nan_to_num(nan=0.0, posinf=0.0)
    return tolerances[dtype] * float(finite.max()) + torch.finfo(dtype).eps
