"""How tensors between kernels lie in memory: as their sources, or as what reads each element many times; and right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.codegen.test_written_source import program
from tests.support.loop_programs import LoopProgram, check_generated, check_passes
from torch_max_backend.loops.expr import cast, op
from torch_max_backend.loops.tensor import Tensor, define
from torch_max_backend.schedule.plan import schedule

ROWS, COLUMNS = 40, 24


def shared_by(batches: int, dtype: torch.dtype, *, transposed: bool = True) -> LoopProgram:
    """Functions of a matrix, transposed in memory, which every matrix of a batch is multiplied by."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batches, ROWS, COLUMNS, generator=generator).to(dtype)
    y = torch.randn(COLUMNS, ROWS, generator=generator).to(dtype).t()

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        t = define(y.shape, torch.float32, lambda i: op("lgamma", cast(y.at(i), torch.float32)))
        return (define(x.shape, x.dtype, lambda i: cast(cast(x.at(i), torch.float32) * t.at(i[1:]), x.dtype)),)

    return program(function, x, y if transposed else y.contiguous(), smooth=True)


def steps_of_table(made: LoopProgram) -> list[int]:
    plan = schedule(made.program)
    table = next(d for d in plan.program.definitions() if len(d.variables) == 2)
    return [int(s) for s in plan.layouts[table.name].strides]


def test_what_is_read_many_times_lies_as_its_reader() -> None:
    assert steps_of_table(shared_by(8, torch.float32)) == [COLUMNS, 1]


def test_what_is_read_a_few_times_lies_as_its_source() -> None:
    assert steps_of_table(shared_by(3, torch.float32)) == [1, ROWS]
    assert steps_of_table(shared_by(3, torch.float32, transposed=False)) == [COLUMNS, 1]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_are_right(dtype: torch.dtype, tmp_path: Path) -> None:
    programs = [shared_by(batches, dtype, transposed=t) for batches in (3, 8) for t in (False, True)]
    check_generated(programs, [check_passes(p) for p in programs], tmp_path)
