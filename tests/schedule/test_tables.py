"""Tables of what depends on one loop alone: for what, and right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.codegen.test_written_source import program
from tests.support.loop_programs import LoopProgram, check_generated, check_passes
from torch_max_backend.loops.expr import cast, from_index, op
from torch_max_backend.loops.program import Definition
from torch_max_backend.loops.rules.registry import rules
from torch_max_backend.loops.tensor import Tensor, define
from torch_max_backend.schedule.plan import schedule

DTYPES = [torch.float32, torch.bfloat16]


def resized(images: int, size: int, outputs: int, name: str, dtype: torch.dtype, *options: bool) -> LoopProgram:
    x = torch.randn(images, 2, size, size, generator=torch.Generator().manual_seed(0)).to(dtype)
    rule = rules()[getattr(torch.ops.aten, name).default]
    return program(lambda x: (rule(x, [outputs, outputs], *options),), x, smooth=True)


def tables_of(made: LoopProgram) -> list[Definition]:
    found = [d for d in schedule(made.program).program.definitions() if d.how is None and len(d.variables) == 1]
    return [d for d in found if d.name.partition("_")[2]]


def nests(made: LoopProgram) -> str:
    return str(schedule(made.program))


@pytest.mark.parametrize("dtype", DTYPES)
def test_places_and_weights_of_an_interpolation_are_computed_once(dtype: torch.dtype) -> None:
    made = resized(16, 9, 20, "upsample_bilinear2d", dtype, True)
    assert {d.dtype for d in tables_of(made)} == {torch.int64, torch.float32}
    *_, last = nests(made).split("kernel over")
    assert "in vectors" in last or dtype is torch.bfloat16
    assert "floor" not in last


def test_few_rows_have_no_tables() -> None:
    assert not tables_of(resized(1, 9, 20, "upsample_bilinear2d", torch.float32, True))


def test_what_is_cheap_or_read_from_a_tensor_has_no_table() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        cheap = define(x.shape, x.dtype, lambda i: x.at(i) * (cast(from_index(i[1]), torch.float32) + 1))
        return cheap, define(x.shape, x.dtype, lambda i: x.at(i) + op("exp", op("exp", y.at((i[1],)))))

    assert not tables_of(program(function, torch.randn(300, 20), torch.randn(20)))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_with_tables_are_right(dtype: torch.dtype, tmp_path: Path) -> None:
    programs = [
        resized(40, 9, 20, "upsample_bilinear2d", dtype, True), resized(40, 9, 17, "upsample_bilinear2d", dtype, False),
        resized(40, 6, 17, "upsample_bicubic2d", dtype, False), resized(40, 9, 15, "upsample_nearest2d", dtype),
    ]  # fmt: skip
    check_generated(programs, [check_passes(p) for p in programs], tmp_path)
