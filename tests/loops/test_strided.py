"""What ``as_strided`` and ``as_strided_scatter`` refuse, and why. What they compute is in ``test_op_rules.py``."""

from __future__ import annotations

import pytest
import torch

from torch_max_backend.base.errors import Unsupported
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.strided import STRIDED
from torch_max_backend.loops.tensor import Shape, Tensor, building, named

pytestmark = pytest.mark.any_runner("rules, of which nothing is compiled")
aten = torch.ops.aten


def lengths(sizes: object) -> Shape:
    return tuple(map(Index.of, sizes))  # type: ignore[call-overload]


def refusal(op: object, like: torch.Tensor, size: list[int], stride: list[int], *src: int) -> str:
    with building():
        x = named("x", lengths(like.shape), like.dtype)
        given: list[Tensor] = [named("y", lengths(src), like.dtype)] if src else []
        with pytest.raises(Unsupported) as error:
            STRIDED[op](like, lengths, x, *given, size, stride)
    return str(error.value)


def test_gaps_and_offsets_are_named() -> None:
    assert refusal(aten.as_strided.default, torch.zeros(4, 6)[:, ::2], [2], [1]) == (
        "as_strided of a dense tensor, not of size [4, 3], stride [6, 2]"
    )
    assert refusal(aten.as_strided_scatter.default, torch.zeros(9)[2:], [2], [1], 2) == (
        "as_strided_scatter of a tensor that begins with its memory, not at element 2"
    )


@pytest.mark.parametrize(("size", "stride"), [([2, 2], [1, 1]), ([3, 4], [3, 1]), ([2, 3], [0, 1])])
def test_places_that_may_be_equal_are_named(size: list[int], stride: list[int]) -> None:
    """What eager leaves there is not defined, or an error."""
    found = refusal(aten.as_strided_scatter.default, torch.zeros(4, 6), size, stride, *size)
    assert found == f"as_strided_scatter to places that may be equal, of size {size}, stride {stride}"
