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


def flattened(results: Any) -> list[Any]:
    """Results as a list: copies of tensors, plain values, and of any other object its class, then what it holds.

    So the keys and values in a model's cache are results as well. A Python float is a tensor: it was read from one.
    """
    found: list[Any] = []
    seen: set[int] = set()
    for leaf in pytree.tree_leaves(results):
        _flatten(leaf, found, seen)
    return found


def _flatten(leaf: Any, found: list[Any], seen: set[int]) -> None:
    if isinstance(leaf, torch.Tensor):
        found.append(leaf.detach().clone())  # a graph that is replayed overwrites it
    elif isinstance(leaf, float):
        found.append(torch.tensor(leaf, dtype=torch.float32))
    elif leaf is None or isinstance(leaf, bool | int | complex | str | bytes | torch.dtype | torch.device):
        found.append(leaf)
    else:
        found.append(f"{type(leaf).__module__}.{type(leaf).__qualname__}")
        if id(leaf) not in seen and not callable(leaf):
            seen.add(id(leaf))
            for inner in pytree.tree_leaves(list(getattr(leaf, "__dict__", {}).values())):
                _flatten(inner, found, seen)


def compared(given: Any, wanted: Any, tolerances: Mapping[torch.dtype, float]) -> Difference:
    """The difference of a contender's results to eager's, both of any structure.

    An element of a floating-point tensor may be ``tolerance * largest |wanted| + eps`` away, where the largest is of
    its tensor; NaN and infinities must be where eager has them, and integers and booleans be equal.

    Raises:
        EvidenceError: There is no tolerance for a result's dtype.
    """
    mine, theirs = flattened(given), flattened(wanted)
    if problem := _other_form(mine, theirs):
        return Difference(float("inf"), float("inf"), float("inf"), problem)
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


def _other_form(given: list[Any], wanted: list[Any]) -> str:
    """Where shapes, dtypes or plain values differ; empty if nowhere."""
    if len(given) != len(wanted):
        return f"gives {len(given)} result(s), expected {len(wanted)}"
    forms = [[_form(x) for x in leaves] for leaves in (given, wanted)]
    different = (i for i, (a, b) in enumerate(zip(*forms, strict=True)) if a != b)
    return next((f"result {i} is {forms[0][i]}, expected {forms[1][i]}" for i in different), "")


def _form(leaf: Any) -> str:
    return f"{leaf.dtype} {tuple(leaf.shape)}" if isinstance(leaf, torch.Tensor) else repr(leaf)


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
