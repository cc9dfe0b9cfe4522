"""The text of expressions: how long it would be with what is shared written out each time, and that nobody waits for
that."""

from __future__ import annotations

import pytest
import torch

from torch_max_backend.loops.expr import LONG, FromIndex, Guarded, Load, Scalar, as_index, op, text_size
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.program import Definition

X = Load("x", (Index.of(0),), torch.float32)


def doubled(times: int) -> Scalar:
    x: Scalar = X
    for _ in range(times):
        x = op("add", x, x)
    return x


def searched(times: int) -> Scalar:
    """Each place is read from what stands at the one before, plus one or not: shared by way of indices."""
    place: Scalar = FromIndex(Index.of(Var("i", 10)))
    for _ in range(times):
        there = Load("x", (as_index(place),), torch.int64)
        place = Guarded(op("lt", there, place), there, op("add", there, place), torch.int64)
        hash(place)
    return place


def test_a_text_has_so_many_expressions() -> None:
    for times in range(6):
        x = doubled(times)
        assert text_size(x) == str(x).count("x[") + str(x).count("add(")
    assert text_size(doubled(40)) == 2**41 - 1


def test_a_long_text_names_what_occurs_several_times() -> None:
    assert text_size(doubled(5)) <= LONG < text_size(doubled(6))
    assert "where" not in str(doubled(5))
    names = ["#0 = add(x[0], x[0])", *(f"#{k} = add(#{k - 1}, #{k - 1})" for k in range(1, 5))]
    assert str(doubled(6)) == repr(doubled(6)) == f"add(#4, #4) where {', '.join(names)}"


def test_a_deep_text_has_names_too() -> None:
    x: Scalar = X
    for _ in range(5000):
        x = op("sin", x)
        hash(x)  # as passes do from the operands on
    assert str(x).count("sin(") == 5000


@pytest.mark.parametrize("x", [doubled(60), searched(60)], ids=["operands", "indices"])
def test_shared_expressions_are_written_once(x: Scalar) -> None:
    """Written out, each would have more than 2^60 expressions."""
    assert text_size(x) > 2**60
    assert len(repr(Definition("t0", x.dtype, (), x))) < 20_000
