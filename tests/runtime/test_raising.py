"""Inputs that torch refuses when it sees their values: compiled code raises the same kind of error, and goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.support.cases import Case
from tests.support.chunks import prepared
from tests.support.harness import check, compiled

pytestmark = pytest.mark.sampled

X = torch.arange(12.0).reshape(3, 4)
GOOD = torch.tensor([[0, 2, 1, 1]])


@dataclass(frozen=True)
class Refusal:
    """A function of a tensor and an index (or divisor), an argument that torch takes and one that it refuses."""

    function: Callable[..., Any]
    bad: torch.Tensor
    good: torch.Tensor = GOOD
    x: torch.Tensor = X


def _index_put(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return torch.index_put(x, (i,), torch.ones(4))


def _written_slice(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    """An input that is written where it is."""
    x.index_copy_(1, i[0], torch.ones(3, 4))
    return x + 1


REFUSALS = {
    "index": Refusal(lambda x, i: x[i], torch.tensor([[0, 3, 1, 1]])),
    "index_negative": Refusal(lambda x, i: x[i], torch.tensor([[0, -4, 1, 1]])),
    "index_two": Refusal(lambda x, i: x[i, i], torch.tensor([[0, 3, 1, 1]])),
    "index_copy_in_place": Refusal(_written_slice, torch.tensor([[0, 4, 1, 1]])),
    "index_copy_in_place_negative": Refusal(_written_slice, torch.tensor([[0, -1, 1, 1]])),
    "index_put": Refusal(_index_put, torch.tensor([[0, 3, 1, 1]])),
    "index_select": Refusal(lambda x, i: x.index_select(0, i[0]), torch.tensor([[0, 3, 1, 1]])),
    "embedding": Refusal(lambda x, i: F.embedding(i, x), torch.tensor([[0, 3, 1, 1]])),
    "embedding_negative": Refusal(lambda x, i: F.embedding(i, x), torch.tensor([[0, -1, 1, 1]])),
    "gather": Refusal(lambda x, i: x.gather(0, i), torch.tensor([[0, 3, 1, 1]])),
    "scatter": Refusal(lambda x, i: x.scatter(0, i, 1.0), torch.tensor([[0, 3, 1, 1]])),
    "scatter_far": Refusal(lambda x, i: x.scatter_add(0, i, x), torch.tensor([[0, 10**9, 1, 1]])),
    "index_add": Refusal(lambda x, i: x.index_add(0, i[0, :3], x), torch.tensor([[0, 3, 1, 1]])),
    "take": Refusal(lambda x, i: x.take(i), torch.tensor([[0, 12, 1, 1]])),
    "one_hot": Refusal(lambda x, i: F.one_hot(i, 3) + x.sum().long(), torch.tensor([[0, 3, 1, 1]])),
    "nll_loss": Refusal(lambda x, i: F.nll_loss(x, i[0, :3]), torch.tensor([[0, 4, 1, 1]])),
    "floor_divide": Refusal(lambda x, i: x.long() // i, torch.tensor([[1, 0, 2, 2]]), good=GOOD + 1),
    "remainder": Refusal(lambda x, i: x.long() % i, torch.tensor([[1, 0, 2, 2]]), good=GOOD + 1),
}
CASES = [Case(name, r.function, (r.x, r.good)) for name, r in REFUSALS.items()]
CORE = ("index", "index_copy_in_place_negative", "embedding", "scatter_far", "remainder")
"""The ordinary run has these: one of each way to refuse."""


def _parameters() -> list:  # type: ignore[type-arg]
    core = [case for case in CASES if case.name in CORE]
    rest = [case for case in CASES if case.name not in CORE]
    return [pytest.param("raising", core, case, id=case.name) for case in core] + [
        pytest.param("refusing", rest, case, id=case.name, marks=pytest.mark.full) for case in rest
    ]


@pytest.mark.xdist_group("raising")
@pytest.mark.parametrize(("chunk", "cases", "case"), _parameters())
def test_raises_as_eager(chunk: str, cases: list[Case], case: Case) -> None:
    failed = prepared(chunk, cases)
    assert id(case) not in failed, failed[id(case)]
    check(case)
    refusal = REFUSALS[case.name]
    with pytest.raises(Exception) as eager:  # noqa: PT011 - whatever torch raises is the specification
        refusal.function(refusal.x, refusal.bad)
    run = compiled(case)
    run(refusal.x, refusal.good)
    with pytest.raises(eager.type):
        run(refusal.x, refusal.bad)
    torch.testing.assert_close(run(refusal.x, refusal.good), refusal.function(refusal.x, refusal.good))
