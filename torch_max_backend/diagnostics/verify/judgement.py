"""Whether a result is wrong: by its distance from float64's, where torch's own result has one too.

For floating-point tensors, with ``exact`` from float64 and ``eager`` from torch at the tensor's own precision:

    |ours - exact| <= MULTIPLE * max |eager - exact| + UNITS units in the last place of exact

for every element; the maximum is over the tensor, because a sum that happens to be exact in one element says nothing of
how exact the next one must be. NaN equals NaN, and an infinity of eager's itself. Integers and booleans must be equal.

A decision (a comparison, a rounding to integers, the place of a maximum) may turn over on a difference of rounding, and
what follows is then far from both. So elements beyond the tolerance are looked at again: the graph is run several times
in torch with every op's rounding changed by some units (``references.spreads``), and an element may be as far away as
twice the distance that it moved; an integer that moved may have any value. Only a wrong element costs these runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from torch_max_backend.diagnostics.verify.references import MULTIPLE, UNITS, unit

MOVED = 2
"""How many times as far from float64 as an element moved it may be, where rounding was changed."""

Spread = Callable[[], torch.Tensor]
"""Gives how far the elements of a result move with its rounding, when it is needed."""


@dataclass(frozen=True)
class Difference:
    """A result that is wrong, and its worst element. Errors are distances from float64's value, for integers torch's.

    ``eager_error`` is eager's largest, ``allowed`` what the worst element may have.
    """

    wrong: int
    elements: int
    index: tuple[int, ...]
    ours: float
    eager: float
    exact: float
    error: float
    eager_error: float
    allowed: float

    def __str__(self) -> str:
        return (
            f"{self.wrong} of {self.elements} elements are wrong; the worst, at {list(self.index)}, is {self.ours!r}, "
            f"where torch has {self.eager!r} and float64 {self.exact!r}: an error of {self.error:.3g}, where "
            f"{self.allowed:.3g} is allowed and torch's largest is {self.eager_error:.3g}"
        )


def judge(ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, spread: Spread) -> Difference | None:
    """What is wrong with ``ours``, if anything is.

    Args:
        ours: A result of this backend, of the shape and dtype that torch's has.
        eager: The same result of torch.
        exact: The same in float64; not looked at for integers.
        spread: See the module.
    """
    floating = eager.is_floating_point()
    a, b, t = (x.double() for x in (ours, eager, exact if floating else eager))
    same = (a == b) | (a.isnan() & b.isnan()) if floating else ours == eager
    if bool(same.all()):
        return None
    error = (a - t).abs().nan_to_num(nan=torch.inf)
    eager_error = (b - t).abs()
    largest = torch.where(eager_error.isfinite(), eager_error, torch.zeros_like(eager_error)).max()
    allowed = torch.zeros_like(error)
    if floating:
        allowed = MULTIPLE * largest + UNITS * unit(t, eager.dtype)
    wrong = ~same & ~(error <= allowed) if floating else ~same
    if not bool(wrong.any()):
        return None
    moved = spread()
    allowed = allowed + MOVED * moved if floating else torch.where(moved > 0, torch.inf, allowed)
    wrong &= ~(error <= allowed) if floating else moved == 0
    count = int(wrong.sum())
    if not count:
        return None
    excess = torch.where(wrong, error - allowed, torch.full_like(error, -1.0)).nan_to_num(nan=-1.0)
    at = int(excess.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), ours.shape))
    one = [x.flatten()[at].item() for x in (a, b, t, error, allowed.expand_as(error))]
    return Difference(count, ours.numel(), index, one[0], one[1], one[2], one[3], float(largest), one[4])
