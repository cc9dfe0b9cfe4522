"""Rows of what several stages of a kernel compute: which ones are kept, and right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.codegen.test_written_source import program
from tests.support.loop_programs import check_generated, check_passes
from torch_max_backend.loops.expr import op
from torch_max_backend.loops.rules import reduce
from torch_max_backend.loops.tensor import Tensor, pointwise
from torch_max_backend.schedule.plan import schedule

pytestmark = pytest.mark.any_runner("programs without a graph")

Function = Callable[..., tuple[Tensor, ...]]


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def variance_of(name: str, dim: list[int]) -> Function:
    return lambda x: (reduce.var(pointwise(lambda a: op(name, a), x), dim),)


def softmax_of_sigmoid(x: Tensor) -> tuple[Tensor, ...]:
    return (reduce.softmax(pointwise(lambda a: op("sigmoid", a), x), -1, False),)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (variance_of("sigmoid", [1]), (40, 70)),
        (variance_of("sigmoid", [0, 1]), (600, 1000)),
        (softmax_of_sigmoid, (40, 333)),
    ],
    ids=["rows", "all", "softmax"],
)
def test_what_stages_share_is_computed_once(
    function: Function, shape: tuple[int, ...], dtype: torch.dtype, tmp_path: Path
) -> None:
    made = program(function, randn(*shape, dtype=dtype), smooth=True)
    text = str(schedule(made.program))
    assert text.count("sigmoid") == 1 and (" in a thread" in text or dtype is torch.bfloat16)
    check_generated([made], [check_passes(made)], tmp_path)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (variance_of("neg", [1]), (40, 70)),  # cheap
        (variance_of("sigmoid", [0]), (70, 40)),  # columns, in vectors along an outer loop
        (variance_of("sigmoid", [1]), (3, 50_000)),  # rows that no cache near a thread holds
    ],
    ids=["cheap", "columns", "long"],
)
def test_others_are_computed_again(function: Function, shape: tuple[int, ...], tmp_path: Path) -> None:
    made = program(function, randn(*shape), smooth=True)
    assert " in a thread" not in str(schedule(made.program))
    check_generated([made], [check_passes(made)], tmp_path)
