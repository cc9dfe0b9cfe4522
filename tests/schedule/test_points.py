"""Coordinates of points, which lie in short steps: read along memory, each once, for all sums of them."""

from __future__ import annotations

import operator

import pytest
import torch

from tests.codegen.test_written_source import numbers, program
from tests.support.absent_gpu import trace
from tests.support.loop_programs import check_generated, check_passes, noted_programs
from torch_max_backend.loops.tensor import Tensor, pointwise
from torch_max_backend.schedule.machine import GPU
from torch_max_backend.schedule.plan import schedule

pytestmark = pytest.mark.any_runner("loop programs")


def covariance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    own, other = (x.double().unbind(-1) for x in (a, b))
    return torch.stack([(x * y).mean(-1) - x.mean(-1) * y.mean(-1) for x in own for y in other], -1)


def test_sums_of_points_share_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifteen sums on a GPU, whose threads are along the points, not the frames."""
    found = noted_programs(monkeypatch)
    make = [lambda: torch.empty(2501, 3891, 3, device="cuda")] * 2
    trace(covariance, *make)
    steps = list(map(str, schedule(found[-1], GPU).steps))
    (sums,) = [text for text in steps if "sum of" in text]
    assert sums.count("sum of") == 15 and ":3891 in vectors" in sums and "neighbours apart" not in sums


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int8], ids=str)
def test_elements_in_short_steps_are_picked(dtype: torch.dtype, tmp_path: object) -> None:
    """Of whole vectors, whatever is left of them; the last one ends with the last element."""
    made = []
    for step in (2, 3, 4):
        for count in (1, 7, 16, 37, 100):
            x = numbers(5, count * step, dtype=dtype)[:, step - 1 :: step]

            def doubled(x: Tensor) -> tuple[Tensor, ...]:
                return (pointwise(operator.add, x, x),)

            made.append(program(doubled, x))
            assert ("load_every" in made[-1].written().source) == (count >= 7), (step, count)
    check_generated(made, list(map(check_passes, made)), tmp_path)  # type: ignore[arg-type]
