"""Rows in memory of the threads: which tensors have them, without gaps, and right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.codegen.test_written_source import program
from tests.support.loop_programs import LoopProgram, check_generated, check_passes
from torch_max_backend.loops.expr import cast, op
from torch_max_backend.loops.rules import reduce
from torch_max_backend.loops.tensor import Tensor, define
from torch_max_backend.schedule import own_rows
from torch_max_backend.schedule.nest import Nest, OwnRow
from torch_max_backend.schedule.plan import schedule

DTYPES = [torch.float32, torch.bfloat16]


def softmax(*shape: int, dtype: torch.dtype, dim: int = -1) -> LoopProgram:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    return program(lambda x: (reduce.softmax(x, dim, False),), x, smooth=True)


def softmax_of_a_sum(heads: int, rows: int, columns: int, dtype: torch.dtype) -> LoopProgram:
    """Of what all heads share, and is dear, and what each has: a kernel over the rows, the heads inside."""
    generator = torch.Generator().manual_seed(0)
    x, mask = torch.randn(heads, rows, columns, generator=generator), torch.randn(rows, columns, generator=generator)

    def function(x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        wide = define(mask.shape, torch.float32, lambda i: op("lgamma", cast(mask.at(i), torch.float32)))
        total = define(x.shape, x.dtype, lambda i: cast(cast(x.at(i), torch.float32) + wide.at(i[1:]), x.dtype))
        return (reduce.softmax(total, -1, False),)

    return program(function, x.to(dtype), mask.to(dtype), smooth=True)


def rows_of(made: LoopProgram) -> list[OwnRow]:
    return [row for step in schedule(made.program).steps if isinstance(step, Nest) for row in step.own]


@pytest.mark.parametrize("dtype", DTYPES)
def test_exponentials_of_a_row_are_the_threads(dtype: torch.dtype) -> None:
    made = softmax(64, 200, dtype=dtype)
    assert [(row.size, row.dtype) for row in rows_of(made)] == [(200, torch.float32)]
    written = made.written()
    assert "own_memory[f32, 200]()" in written.source and "block_of" not in written.spec.source


def test_a_row_has_no_gaps_where_outer_loops_are_between_its_own() -> None:
    sizes = {row.size for row in rows_of(softmax_of_a_sum(3, 32, 40, torch.float32))}
    assert max(sizes) == 3 * 40


@pytest.mark.parametrize("limit", ["NEAR", "ROOM"])
def test_long_rows_stay_in_memory(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_rows, limit, 4 * 200 - 1)
    assert not rows_of(softmax(64, 200, dtype=torch.float32))


def test_what_leaves_or_another_kernel_reads_stays_in_memory() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = reduce.softmax(x, -1, False)
        return y, reduce.softmax(define(x.shape, x.dtype, lambda i: y.at((i[1], i[0]))), -1, False)

    made = program(function, torch.randn(300, 300), smooth=True)
    outputs = {name for name, _ in made.program.outputs}
    assert not {row.name for row in rows_of(made)} & outputs


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_with_rows_are_right(dtype: torch.dtype, tmp_path: Path) -> None:
    programs = [
        softmax(5, 33, dtype=dtype), softmax(3, 7, 5, dtype=dtype, dim=1), softmax(6, 40, 16, dtype=dtype, dim=1),
        softmax(4, 5, 6, dtype=dtype, dim=0), softmax_of_a_sum(3, 32, 40, dtype), softmax_of_a_sum(5, 64, 17, dtype),
    ]  # fmt: skip
    check_generated(programs, [check_passes(p) for p in programs], tmp_path)
