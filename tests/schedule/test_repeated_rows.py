"""Short rows that are combined with the same few elements: which are blocks, and right also at their ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.codegen.test_written_source import program
from tests.support.loop_programs import LoopProgram, check_generated, check_passes
from torch_max_backend.loops.expr import Scalar, cast, from_index, op
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.rules import views
from torch_max_backend.loops.tensor import Tensor, define
from torch_max_backend.schedule.plan import schedule

DTYPES = [torch.float32, torch.bfloat16]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def scaled(rows: int, channels: int, dtype: torch.dtype = torch.float32) -> LoopProgram:
    """Rows, each times the exponential of the same one, plus the number of the channel."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        def one(i: Sequence[Index]) -> Scalar:
            factor = op("exp", cast(w.at((i[1],)), torch.float32))
            value = cast(x.at(i), torch.float32) * factor + cast(from_index(i[1]), torch.float32)
            return cast(value, dtype)

        return (define(x.shape, dtype, one),)

    return program(function, random(rows, channels, dtype=dtype), random(channels, dtype=dtype), smooth=True)


def images(count: int, channels: int, size: int) -> LoopProgram:
    """Images with channels last, each with a factor for each of its channels."""
    x = random(count, size, size, channels).permute(0, 3, 1, 2)

    def function(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        return (define(x.shape, x.dtype, lambda i: x.at(i) * s.at((i[0], i[1]))),)

    made = program(function, x, random(count, channels))
    ((name, _),) = made.program.outputs
    made.program.outputs[:] = [(name, (0, 2, 3, 1))]
    return made


def blocks_of(made: LoopProgram) -> bool:
    """Whether the last kernel runs over whole blocks in vectors."""
    *_, last = str(schedule(made.program)).split("kernel over")
    return "_rows0[" in last and "in vectors" in last and "min(" in last and "%" not in last


@pytest.mark.parametrize("channels", [2, 3, 5, 12, 20])
def test_short_rows_are_computed_in_blocks(channels: int) -> None:
    assert blocks_of(scaled(30_011, channels))
    assert "exp" not in str(schedule(scaled(30_011, channels).program)).split("kernel over")[-1]


@pytest.mark.parametrize(("rows", "channels"), [(30_011, 16), (30_011, 15), (30_011, 64), (300, 3)])
def test_rows_that_fill_vectors_or_are_few_are_not(rows: int, channels: int) -> None:
    assert not blocks_of(scaled(rows, channels))


def test_each_image_has_its_own_rows() -> None:
    assert blocks_of(images(3, 6, 91))
    assert not blocks_of(images(3, 6, 20))


def test_what_differs_from_row_to_row_is_not_repeated() -> None:
    def by_row(x: Tensor, s: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return (define(x.shape, x.dtype, lambda i: x.at(i) * s.at((i[0],)) + w.at((i[1],))),)

    def turned(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return (define(x.shape, x.dtype, lambda i: x.at(i) + y.at((i[1], i[0])) * w.at((i[1],))),)

    x, w = random(30_000, 3), random(3)
    assert not blocks_of(program(by_row, x, random(30_000), w))
    assert not blocks_of(program(turned, x, random(3, 30_000), w))


def test_rows_of_nothing_and_conditions_along_rows_stay() -> None:
    assert not blocks_of(scaled(30_000, 0))

    def shifted(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return (define(x.shape, x.dtype, lambda i: views.constant_pad_nd(x, [1, -1]).at(i) * w.at((i[1],))),)

    assert not blocks_of(program(shifted, random(30_000, 3), random(3)))


def test_what_is_shared_is_looked_at_once() -> None:
    def doubled(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        def one(i: Sequence[Index]) -> Scalar:
            value = x.at(i) * w.at((i[1],))
            for _ in range(25):
                value = value + value
            return value

        return (define(x.shape, x.dtype, one),)

    assert blocks_of(program(doubled, random(30_000, 3), random(3)))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_are_right(dtype: torch.dtype, tmp_path: Path) -> None:
    programs = [scaled(6_001, c, dtype) for c in (2, 3, 7, 20)] + [images(2, 6, 50), images(3, 5, 45)]
    assert all(map(blocks_of, programs))
    check_generated(programs, [check_passes(p) for p in programs], tmp_path)
