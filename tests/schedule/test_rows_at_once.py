"""Reductions of several outer iterations at once: where, how they are written, and right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.codegen.test_written_source import program
from tests.support.loop_programs import LoopProgram, check_generated, check_passes
from torch_max_backend.loops.expr import cast, op
from torch_max_backend.loops.tensor import Tensor, define, reduce
from torch_max_backend.schedule.nest import Nest
from torch_max_backend.schedule.plan import schedule
from torch_max_backend.schedule.rows_at_once import ROWS, VECTORS


def product_and_more(w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """A matrix of integers times a row, and to what that is added."""
    sums = reduce(
        "sum",
        (w.shape[0],),
        (w.shape[1],),
        lambda i, over: cast(cast(w.at((i[0], over[0])), x.dtype), torch.float32) * cast(x.at(over), torch.float32),
    )
    return (define(sums.shape, torch.float32, lambda i: sums.at(i) + y.at(i)),)


def product(features: int, columns: int, dtype: torch.dtype = torch.float32) -> LoopProgram:
    generator = torch.Generator().manual_seed(0)
    w, x, y = (torch.randint(-3, 4, s, generator=generator) for s in ((features, columns), (columns,), (features,)))
    return program(product_and_more, w.to(torch.int8), x.to(dtype), y.float())


def nest_of(made: LoopProgram) -> Nest:
    (step,) = schedule(made.program).steps
    assert isinstance(step, Nest)
    return step


def test_what_rows_share_is_read_once_for_all() -> None:
    text = product(64, 256, torch.bfloat16).written().source
    loop = text[text.index("while i1") : text.index("else:")]
    loop = loop[: loop.index("+= 16")]
    assert loop.count("load[16](p0") == 1, "the row"
    assert loop.count("load[16](p1") == loop.count("fma(") == ROWS
    assert loop.count("cast[f32]") == 1 + ROWS
    assert "cast[bf16]" not in text, "bfloat16 holds integers of 8 bits as they are"


@pytest.mark.parametrize(("features", "columns"), [(15, 256), (256, 47)], ids=["few iterations", "a short reduction"])
def test_small_products_go_row_by_row(features: int, columns: int) -> None:
    assert nest_of(product(features, columns)).rows == 1


def test_sums_that_share_nothing_go_row_by_row() -> None:
    made = program(
        lambda x: (reduce("sum", (x.shape[0],), (x.shape[1],), lambda i, over: x.at((i[0], over[0]))),),
        torch.zeros(256, 256),
    )
    assert nest_of(made).rows == 1


@pytest.mark.parametrize(("features", "columns"), [(64, 128), (67, 200), (65, 1025)])
def test_right_whatever_is_left_of_fours(features: int, columns: int, tmp_path: Path) -> None:
    made = product(features, columns)
    assert nest_of(made).rows == ROWS
    check_generated([made], [check_passes(made)], tmp_path)


def test_elements_are_written_where_they_are_computed() -> None:
    """Inside of the loop over which sums run: a layer norm's gradient keeps elements for that of its weight."""
    sizes = ((256, 256), (256,), (256,), (256, 256))
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(s, generator=generator).requires_grad_() for s in sizes]

    def loss(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        return (F.layer_norm(x, (256,), w, b) @ matrix).sin().sum()

    compiled = torch.compile(loss, backend="max_backend", options={"fallback": "error", "executor": "auto"})
    wide = [x.detach().double().requires_grad_() for x in given]
    exact, eager = torch.autograd.grad(loss(*wide), wide), torch.autograd.grad(loss(*given), given)
    for found, plain, right in zip(torch.autograd.grad(compiled(*given), given), eager, exact, strict=True):
        assert (found - right).norm() <= 2 * (plain - right).norm()


def matrix_product(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (
        reduce(
            "sum",
            (x.shape[0], y.shape[1]),
            (y.shape[0],),
            lambda i, over: cast(x.at((i[0], *over)), torch.float32) * cast(y.at((*over, i[1])), torch.float32),
        ),
    )


def test_vectors_are_read_once_for_several_rows() -> None:
    """Each vector of the second matrix is read and cast once for four numbers of the first."""
    made = program(matrix_product, torch.zeros(16, 32, dtype=torch.bfloat16), torch.zeros(32, 48, dtype=torch.bfloat16))
    nest = nest_of(made)
    assert (nest.rows, nest.outer[-1].size) == (ROWS, 16)
    text = made.written().source
    loop = text[text.index("stop") :]
    loop = loop[: loop.index("+= 1\n")]
    assert (loop.count("load[16]("), loop.count("load[1](")) == (1, ROWS)
    assert loop.count("fma(") == ROWS


@pytest.mark.parametrize("sizes", [(16, 32, 48), (7, 9, 33), (5, 40, 12)], ids=str)
def test_vectors_for_several_rows_are_right(sizes: tuple[int, int, int], tmp_path: Path) -> None:
    m, k, n = sizes
    x, y = (torch.randint(-3, 4, s).to(torch.bfloat16) for s in ((m, k), (k, n)))
    made = program(matrix_product, x, y)
    assert nest_of(made).rows == ROWS
    check_generated([made], [check_passes(made)], tmp_path)


@pytest.mark.parametrize("sizes", [(3, 32, 48), (16, 7, 48)], ids=["few rows", "a short reduction"])
def test_vectors_for_one_row(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    assert nest_of(program(matrix_product, torch.zeros(m, k), torch.zeros(k, n))).rows == 1


def of_columns(x: Tensor) -> tuple[Tensor, ...]:
    """What a softmax down the columns does, and the columns' sums."""
    largest = reduce("maximum", x.shape[1:], x.shape[:1], lambda i, over: x.at((*over, *i)))
    scaled = define(x.shape, x.dtype, lambda i: op("sub", x.at(i), largest.at(i[1:])))
    sums = reduce("sum", x.shape[1:], x.shape[:1], lambda i, over: scaled.at((*over, *i)))
    return define(x.shape, x.dtype, lambda i: op("add", scaled.at(i), sums.at(i[1:]))), sums


def whole_numbers(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize(("shape", "rows"), [
    ((64, 128), VECTORS), ((64, 300), VECTORS), ((64, 100), 1), ((7, 128), 1), ((64, 20, 64), VECTORS),
])  # fmt: skip
def test_columns_far_apart_are_taken_side_by_side(shape: tuple[int, ...], rows: int) -> None:
    nests = [n for n in schedule(program(of_columns, torch.zeros(shape)).program).steps if isinstance(n, Nest)]
    assert {n.rows for n in nests} == {rows}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32], ids=str)
def test_columns_side_by_side_are_right(dtype: torch.dtype, tmp_path: Path) -> None:
    """Whatever is left of four vectors; where there are so many rows that they are reduced in parts, too."""
    shapes = [(64, 128), (64, 300), (40, 20, 70), (5000, 130)]
    smooth = dtype is torch.bfloat16  # which holds no larger whole numbers
    programs = [program(of_columns, whole_numbers(*shape, dtype=dtype), smooth=smooth) for shape in shapes]
    assert any("_parts" in str(schedule(p.program)) for p in programs)
    check_generated(programs, [check_passes(p) for p in programs], tmp_path)
