"""Long searches for the place of an extreme go by the extremes of parts, and find the first of equals, or a NaN."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.codegen.test_written_source import program
from tests.support.loop_programs import LoopProgram, check_generated, check_passes
from torch_max_backend.loops.index import Index, Sym
from torch_max_backend.loops.program import Input
from torch_max_backend.loops.rules import reduce
from torch_max_backend.loops.tensor import Tensor, building, define, named
from torch_max_backend.schedule.plan import schedule
from torch_max_backend.schedule.rows_at_once import VECTORS

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
]
LONG = 4096


def values(dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    """Numbers of which many are equal."""
    x = torch.randint(0, 7, sizes, generator=torch.Generator().manual_seed(0))
    return x.to(torch.int64 if dtype is torch.bool else dtype) > 3 if dtype is torch.bool else x.to(dtype)


def columns(x: torch.Tensor) -> LoopProgram:
    """The least of each column with its place, and the place of the greatest."""
    return program(lambda t: (*reduce.min_dim(t, 0), reduce.argmax(t, 0)), x)


def of_all(x: torch.Tensor) -> LoopProgram:
    return program(lambda t: (reduce.argmax(t), reduce.argmin(t)), x)


def with_nan(dtype: torch.dtype, rows: int, width: int) -> torch.Tensor:
    """Columns with NaN in the first place, in the last one, in two parts, everywhere; and with infinities alone."""
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 0] = x[-1, 1] = x[rows // 2, 2] = x[rows // 2 + 1, 2] = x[-2, 2] = torch.nan
    x[:, 3], x[:, 4], x[:, 5], x[rows // 3, 5] = torch.nan, -torch.inf, torch.inf, torch.nan
    return x


def test_an_extreme_and_its_place_share_parts() -> None:
    first, second = map(str, schedule(program(lambda t: reduce.min_dim(t, 0), torch.zeros(37448, 14)).program).steps)
    assert first.count(" = minimum of ") == 1 and "argmin" not in first
    assert second.count(" = argmin of ") == 2 and "37448" not in second


def test_short_searches_are_whole() -> None:
    (only,) = schedule(program(lambda t: reduce.min_dim(t, 0), torch.zeros(37, 14)).program).steps
    assert str(only).count(" = argmin of ") == 1


def test_the_search_finds_the_extreme_too() -> None:
    text = program(lambda t: reduce.max_dim(t, 1), torch.zeros(64, 256)).written().source
    assert "maximum_so_far" not in text and "reduce_max" in text


def test_neighbouring_columns_are_searched_at_once() -> None:
    made = program(lambda t: (reduce.argmax(t, 0),), torch.zeros(512, 512))
    (step,) = schedule(made.program).steps
    assert step.rows == VECTORS  # type: ignore[union-attr]


def test_places_take_as_many_bits_as_values() -> None:
    def of(dtype: torch.dtype) -> str:
        return program(lambda t: (reduce.argmax(t, 1),), torch.zeros(64, 256, dtype=dtype)).written().source

    assert "const[i32, 16](0)" in of(torch.float32) and "const[i32, 16]" not in of(torch.float64)


@pytest.mark.sampled
def test_right_for_every_dtype(tmp_path: Path) -> None:
    made = [columns(values(dtype, LONG, 9)) for dtype in DTYPES]
    made += [of_all(values(dtype, 61, 1031)) for dtype in DTYPES]
    check_generated(made, [[m.expected()] for m in made], tmp_path)


@pytest.mark.sampled
def test_right_with_nan_and_infinities(tmp_path: Path) -> None:
    floats = [dtype for dtype in DTYPES if dtype.is_floating_point]
    made = [columns(with_nan(dtype, *sizes)) for dtype in floats for sizes in ((LONG, 14), (2047, 37), (300, 64))]
    made += [program(lambda t: (*reduce.max_dim(t, 1), reduce.argmin(t, 1)), x.T.contiguous())
             for dtype in floats for x in (with_nan(dtype, 7001, 6), with_nan(dtype, 50, 6))]  # fmt: skip
    made += [of_all(with_nan(torch.float32, 40000, 6)), of_all(torch.full((70000,), -torch.inf))]
    made += [of_all(torch.full((70000,), torch.nan)), of_all(torch.full((70000,), -(2**63)))]
    wanted = [check_passes(made[0]), *([m.expected()] for m in made[1:])]
    check_generated(made, wanted, tmp_path)


@pytest.mark.sampled
def test_right_however_dimensions_lie(tmp_path: Path) -> None:
    x = values(torch.float32, 64, 33, 40)
    made = [of_all(x.permute(order)) for order in ((0, 2, 1), (2, 1, 0), (1, 0, 2))]
    for d, y in ((1, values(torch.float32, 3, 5000, 5)), (0, values(torch.float32, 9000, 4).T.contiguous().T)):
        made.append(program(lambda t: (*reduce.max_dim(t, d), reduce.argmin(t, d)), y))  # noqa: B023
    check_generated(made, list(map(check_passes, made)), tmp_path)


def of_symbolic_sizes(along_memory: bool) -> LoopProgram:
    """The least along a dimension of any size, with its place."""
    n = Sym("n0", low=1, hint=LONG)
    rows, width = (Index.of(3), Index.of(n)) if along_memory else (Index.of(n), Index.of(14))

    def inputs(size: int) -> list[torch.Tensor]:
        x = values(torch.float32, size, 14)
        x[size // 2, 1] = torch.nan
        return [x.T[:3].contiguous() if along_memory else x]

    def made(size: int, others: list[LoopProgram]) -> LoopProgram:
        shapes = [(3,) if along_memory else (14,)] * 2
        return LoopProgram(0, b.program, inputs(size), False, shapes, {"n0": size}, others)

    with building() as b:
        b.program.symbols = {n: "n0"}
        b.program.inputs["x0"] = Input("x0", torch.float32, (rows, width), (width, Index.of(1)))
        x = named("x0", (rows, width), torch.float32)
        results: tuple[Tensor, ...] = reduce.min_dim(x, 1 if along_memory else 0)
        for y in results:
            define(y.shape, y.dtype, y.at)
            b.program.outputs.append((b.program.steps[-1].name, (0,)))  # type: ignore[union-attr]
            b.program.shapes[b.program.outputs[-1][0]] = y.shape
    return made(LONG * 4, [made(size, []) for size in (1, 2, 15, 16, 17, 63, 65, 1025, LONG)])


@pytest.mark.sampled
@pytest.mark.parametrize("along_memory", [False, True], ids=["across memory", "along memory"])
def test_right_for_symbolic_sizes(along_memory: bool, tmp_path: Path) -> None:
    made = of_symbolic_sizes(along_memory)
    check_generated([made], [check_passes(made)], tmp_path)
