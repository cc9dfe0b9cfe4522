"""Sums of integers of few bits are added up in int32 where that holds them, and are what they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.codegen.test_emulated_kernels import for_gpu
from tests.codegen.test_written_source import program
from tests.support.grid_programs import check_emulated
from tests.support.loop_programs import check_generated, check_passes
from torch_max_backend.loops.rules import reduce
from torch_max_backend.loops.tensor import Tensor
from torch_max_backend.schedule.machine import CPU, GPU, Machine
from torch_max_backend.schedule.narrow_sums import narrow_sums
from torch_max_backend.schedule.plan import passes

NARROW = [torch.bool, torch.uint8, torch.int8, torch.int16]


def sums(x: Tensor) -> tuple[Tensor, ...]:
    return reduce.sum_dims(x, [0]), reduce.sum_dims(x, [1]), reduce.sum_dims(x, [0, 1])


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.7
    info = torch.iinfo(dtype)
    x = torch.randint(info.min, info.max + 1, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[1], x[:, 1] = info.max, info.min  # the greatest sums that there are
    return x


@pytest.mark.parametrize(
    ("dtype", "rows", "is_narrow"),
    [
        (torch.bool, 100000, True),
        (torch.uint8, 1000, True),
        (torch.int8, 300000, True),
        (torch.int16, 2000, True),
        (torch.int16, 3000, False),
        (torch.int32, 3000, False),
    ],
)
def test_what_is_added_up_in_int32(dtype: torch.dtype, rows: int, is_narrow: bool) -> None:
    x = torch.ones(1, dtype=dtype).expand(rows, 30)
    text = str(narrow_sums(program(lambda x: (reduce.sum_dims(x, [0, 1]),), x).program))
    assert ("of cast<i32>(" in text) is is_narrow


@pytest.mark.parametrize("machine", [CPU, GPU], ids=["cpu", "gpu"])
def test_parts_of_sums_are(machine: Machine) -> None:
    made = program(lambda x: (reduce.sum_dims(x, [0, 1]),), torch.ones(3000, 1000, dtype=torch.int16))
    assert "of cast<i32>(" in str(dict(passes(made.program, machine))["narrow_sums"])


@pytest.mark.sampled
def test_right(tmp_path: Path) -> None:
    made = [program(sums, numbers(dtype, 70, 45)) for dtype in NARROW]
    check_generated(made, list(map(check_passes, made)), tmp_path)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", NARROW)
def test_right_on_a_grid(dtype: torch.dtype) -> None:
    check_emulated(for_gpu(sums, numbers(dtype, 70, 45)))
