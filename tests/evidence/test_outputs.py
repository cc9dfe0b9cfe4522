"""Verdicts on results."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from torch_max_backend.base.errors import EvidenceError
from torch_max_backend.evidence.outputs import TOLERANCES, Difference, compared, with_overrides

pytestmark = pytest.mark.any_runner("tensors that are given")
X = torch.tensor([1.0, -4.0, 2.0])


def test_equal_results() -> None:
    given = {"a": [X, None, 3], "b": torch.tensor([1, 2])}
    assert compared(given, given, TOLERANCES) == Difference(0.0, 0.0, 0.0)


def test_largest_and_mean_difference() -> None:
    found = compared((X + torch.tensor([0.0, 0.5, 0.25]), torch.zeros(1)), (X, torch.zeros(1)), TOLERANCES)
    assert (found.largest, found.mean) == (0.5, 0.75 / 4)
    assert found.problem and found.share > 1


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_the_limit_is_relative_to_the_largest_value(dtype: torch.dtype) -> None:
    wanted = torch.tensor([0.0, 100.0], dtype=dtype)
    allowed = TOLERANCES[dtype] * 100
    for factor, is_right in ((0.9, True), (1.2, False)):
        given = torch.tensor([allowed * factor, 100.0], dtype=dtype)
        assert (not compared(given, wanted, TOLERANCES).problem) is is_right


@pytest.mark.parametrize(
    ("given", "wanted", "is_right"),
    [
        (torch.tensor([math.nan, math.inf]), torch.tensor([math.nan, math.inf]), True),
        (torch.tensor([0.0, math.inf]), torch.tensor([math.nan, math.inf]), False),
        (torch.tensor([math.nan]), torch.tensor([0.0]), False),
        (torch.tensor([-math.inf]), torch.tensor([math.inf]), False),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
        (torch.tensor([True]), torch.tensor([False]), False),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 2j]), True),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 3j]), False),
        (torch.empty(0, 3), torch.empty(0, 3), True),
        (torch.ones(2), torch.ones(2, 1), False),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), False),
        ([X], [X, X], False),
        ([X, 1], [X, 2], False),
    ],
    ids=str,
)
def test_verdicts(given: Any, wanted: Any, is_right: bool) -> None:
    assert (not compared(given, wanted, TOLERANCES).problem) is is_right


class Cache:
    """An object that a model gives, as transformers' caches are."""

    def __init__(self, keys: torch.Tensor) -> None:
        self.layers, self.me = [{"keys": keys}], self


def test_tensors_in_objects_are_results() -> None:
    assert not compared([Cache(X), X], [Cache(X.clone()), X], TOLERANCES).problem
    assert compared([Cache(X + 1), X], [Cache(X), X], TOLERANCES).problem
    found = compared([X, X], [Cache(X), X], TOLERANCES)
    assert found.problem == "gives 2 result(s), expected 4"
    assert compared([Cache, 1], [Cache, 2], TOLERANCES).problem == "result 1 is 1, expected 2"


def test_numbers_that_are_read_from_tensors() -> None:
    assert not compared(1.0 + 1e-6, 1.0, TOLERANCES).problem
    assert compared(1.001, 1.0, TOLERANCES).problem
    assert compared(torch.ones(2), torch.ones(3), TOLERANCES).problem == (
        "result 0 is torch.float32 (2,), expected torch.float32 (3,)"
    )


def test_a_dtype_without_a_tolerance() -> None:
    x = torch.ones(3).to(torch.float8_e4m3fn)
    with pytest.raises(EvidenceError, match=r"known for float64, .*, and a result is float8_e4m3fn: give float8"):
        compared(x, x, TOLERANCES)
    assert not compared(x, x, with_overrides({"float8_e4m3fn": 0.25})).problem
    assert compared(X + 1e-5, X, with_overrides({"float32": 1e-7})).problem
