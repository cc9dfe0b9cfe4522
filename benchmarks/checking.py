"""Whether a contender's answer is right, measured against exact values and by what eager's own rounding costs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from benchmarks.work import Piece


class Difference:
    """Collects the difference to exact values, piece by piece. NaN and infinities count as infinitely far away."""

    def __init__(self) -> None:
        self.largest = self.total = self.squares = self.exact_squares = self.exact_largest = 0.0
        self.count = 0

    def add(self, given: torch.Tensor, exact: torch.Tensor) -> None:
        """A part of the answer and its exact values, of one shape."""
        if given.shape != exact.shape:
            raise ValueError(f"the answer's shape is {tuple(given.shape)}, expected {tuple(exact.shape)}")
        if not given.numel():
            return
        distance = (given.to(exact.dtype) - exact).abs().nan_to_num_(nan=math.inf)
        self.largest = max(self.largest, float(distance.max()))
        self.total += float(distance.sum(dtype=torch.float64))
        self.squares += float(distance.square_().sum(dtype=torch.float64))
        self.exact_largest = max(self.exact_largest, float(exact.abs().max()))
        self.exact_squares += float(exact.square().sum(dtype=torch.float64))
        self.count += given.numel()

    @property
    def relative(self) -> float:
        """Norm of the difference over the norm of the exact values."""
        return math.sqrt(self.squares / self.exact_squares) if self.exact_squares else math.sqrt(self.squares)

    def as_json(self) -> dict[str, float]:
        """Largest and mean difference, its relative norm, and the largest exact value."""
        mean = self.total / self.count if self.count else 0.0
        return {"max": self.largest, "mean": mean, "relative": self.relative, "largest_value": self.exact_largest}


def differences(answers: dict[str, list[torch.Tensor]], exact: Iterable[Piece]) -> dict[str, Difference]:
    """The difference of every contender's answers to the exact values, which are made once."""
    found = {name: Difference() for name in answers}
    for number, part, values in exact:
        for name, tensors in answers.items():
            found[name].add(tensors[number][part], values)
    return found


def what_is_wrong(found: dict[str, float], eager: dict[str, float], dtype: torch.dtype) -> str:
    """Why an answer does not pass; empty if it does.

    A contender may round where eager does not, and the other way round, so it may be twice as far from the exact
    values as eager in norm, and four times in one element; or, where eager is closer than that, as far as the last
    digit of a 16-bit float, or the last four of a longer one, which is what sums taken in another order differ in.
    Where eager is exact there is nothing to round, and nothing may differ.
    """
    epsilon = torch.finfo(dtype).eps * (1 if dtype.itemsize == 2 else 4)
    if eager["max"] == 0.0:
        return "" if found["max"] == 0.0 else f"differs by {found['max']:.2g} where eager is exact"
    norm = max(2 * eager["relative"], epsilon)
    if not found["relative"] <= norm:
        return f"relative difference {found['relative']:.2g}, allowed {norm:.2g} (eager {eager['relative']:.2g})"
    largest = max(4 * eager["max"], epsilon * found["largest_value"])
    if not found["max"] <= largest:
        return f"largest difference {found['max']:.2g}, allowed {largest:.2g} (eager {eager['max']:.2g})"
    return ""


def shape_problem(given: list[torch.Tensor], eager: list[torch.Tensor]) -> str:
    """Where an answer differs from eager's in number, shape or dtype; empty if nowhere."""

    def described(tensors: list[torch.Tensor]) -> list[Any]:
        return [(tuple(t.shape), str(t.dtype)) for t in tensors]

    mine, wanted = described(given), described(eager)
    return "" if mine == wanted else f"returned {mine}, expected {wanted}"
