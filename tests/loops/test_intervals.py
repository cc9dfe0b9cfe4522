"""Between which numbers expressions are said to lie."""

from __future__ import annotations

import math

import pytest
import torch

from torch_max_backend.loops.expr import Const, FromIndex, Guarded, Load, Scalar, cast, op
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.intervals import ANY, interval

I = Index.of(Var("i", 10))  # noqa: E741
WIDE = cast(FromIndex(I), torch.float32)


def number(x: float) -> Scalar:
    return Const(x, torch.float32)


@pytest.mark.parametrize(("x", "wanted"), [
    (FromIndex(I * 3 + 1), (1, 28)),
    (WIDE, (0, 9)),
    (op("sub", op("mul", op("add", WIDE, number(0.5)), number(-2.0)), number(1.0)), (-20, -2)),
    (op("div", WIDE, number(-3.0)), (-3, 0)),
    (op("div", number(1.0), WIDE), ANY),
    (op("maximum", op("neg", WIDE), number(-4.0)), (-4, 0)),
    (op("minimum", WIDE, number(4.0)), (0, 4)),
    (cast(op("mul", WIDE, number(0.3)), torch.int64), (0, 3)),
    (Guarded(Const(True, torch.bool), WIDE, number(-1.0), torch.float32), (-1, 9)),
    (op("mul", WIDE, number(math.inf)), ANY),
    (op("mul", Load("x0", (I,), torch.float32), number(0.0)), ANY),
    (op("sin", WIDE), ANY),
    (cast(WIDE, torch.uint8), ANY),
], ids=str)  # fmt: skip
def test_intervals(x: Scalar, wanted: tuple[float, float]) -> None:
    assert interval(x) == wanted


def test_what_is_shared_is_looked_at_once() -> None:
    """As text each has 2^60 operations."""
    added, chosen = WIDE, WIDE
    for k in range(60):
        added = op("add", added, added)
        chosen = Guarded(op("lt", chosen, number(k)), op("add", chosen, number(1.0)), chosen, torch.float32)
    assert interval(added) == (0, 9 * 2.0**60)
    assert interval(chosen) == (0, 69)
