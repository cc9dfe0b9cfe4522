"""Kernels whose results lie across what they read, and vectors around short loops: where, and right."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.codegen.test_written_source import program
from tests.support.loop_programs import check_generated, check_passes
from torch_max_backend import reports
from torch_max_backend.loops.expr import cast, op
from torch_max_backend.loops.rules import indexing, reduce, scan, views
from torch_max_backend.loops.rules.registry import rules
from torch_max_backend.loops.tensor import Tensor, define, pointwise
from torch_max_backend.schedule.plan import schedule

pytestmark = pytest.mark.any_runner("programs without a graph")

aten = torch.ops.aten
Function = Callable[..., tuple[Tensor, ...]]


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def kernels(function: Function, *inputs: torch.Tensor) -> list[str]:
    """The text of each kernel."""
    return str(schedule(program(function, *inputs).program)).split("kernel over")[1:]


# -- results across what is read --------------------------------------------------------------------------------------
def softmax_of_columns(x: Tensor) -> tuple[Tensor, ...]:
    """Contiguous, of a matrix whose columns are contiguous."""
    return (reduce.softmax(views.t(x), 1, False),)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_written_across_memory_is_turned(dtype: torch.dtype, tmp_path: Path) -> None:
    x = randn(200, 150, dtype=dtype)
    *_, last = kernels(softmax_of_columns, x)
    assert "sum of" not in last and "div" in last
    made = program(softmax_of_columns, x, smooth=True)
    assert "turn_block(" in made.written().source
    check_generated([made], [check_passes(made)], tmp_path)


def test_a_small_matrix_is_one_kernel() -> None:
    assert len(kernels(softmax_of_columns, randn(64, 64))) == 1


def test_rows_stay_together() -> None:
    assert len(kernels(lambda x: (reduce.softmax(x, 1, False),), randn(200, 150))) == 1


@pytest.mark.parametrize(
    ("dtype", "shape", "block"),
    [
        (torch.bfloat16, (4096, 32), 16),  # rows that are written 8 KiB apart have one place in the first cache
        (torch.bfloat16, (64, 8192), 32),  # there is room for 32, of which whole lines are read
        (torch.float32, (64, 8192), 16),
        (torch.int8, (64, 16384), 64),
        (torch.float32, (100, 90), None),
    ],
)
def test_a_transpose_writes_as_many_rows_side_by_side_as_a_cache_has_places(
    dtype: torch.dtype, shape: tuple[int, int], block: int | None, tmp_path: Path
) -> None:
    def turned(x: Tensor) -> tuple[Tensor, ...]:
        return (views.t(x),)

    x = torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    (text,) = kernels(turned, x)
    assert (block is None and "p:" not in text) or f"q:{block}:" in text
    made = program(turned, x)
    check_generated([made], [check_passes(made)], tmp_path)


def gathered(x: Tensor, places: Tensor) -> tuple[Tensor, ...]:
    """Rows of a matrix whose columns are contiguous."""
    return (indexing.index_select(views.t(x), 0, places),)


def test_places_in_columns_are_looked_up_for_few_columns_at_a_time(tmp_path: Path) -> None:
    made = []
    for columns, rows, outside in [(40, 1500, True), (16, 1500, False), (40, 900, False)]:
        places = torch.randint(0, rows, (70,), generator=torch.Generator().manual_seed(0))
        (text,) = kernels(gathered, randn(columns, rows), places)
        assert bool(re.match(r" i\d+p:3, i\d+:70:\n  for i\d+q:.* in vectors", text)) == outside
        made.append(program(gathered, randn(columns, rows), places))
    check_generated(made, list(map(check_passes, made)), tmp_path)


def rows_written_across(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Of rows that are read several times, and written as columns."""
    products = reduce.sum_dims(pointwise(lambda a, b: op("mul", a, b), x, y), [1], True)
    return (views.t(pointwise(lambda a, b, c: op("mul", op("sub", a, b), c), x, y, products)),)


def test_what_is_written_across_memory_is_turned_however_much_it_reads(tmp_path: Path) -> None:
    inputs = randn(512, 64), randn(512, 64) * 0.5
    *_, last = kernels(rows_written_across, *inputs)
    assert "sum of" not in last and "sub" in last
    made = program(rows_written_across, *inputs, smooth=True)
    assert made.written().source.count("turn_block(") == 2
    check_generated([made], [check_passes(made)], tmp_path)


def masked_softmax_of_columns(x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Of a matrix whose columns are contiguous, with a mask whose rows are."""
    hidden = rules()[aten.masked_fill.Scalar](views.t(x), mask, -1e4)
    return (reduce.softmax(hidden, 1, False),)


def test_what_lies_otherwise_than_the_rest_is_turned_once(tmp_path: Path) -> None:
    inputs = randn(200, 150), randn(150, 200) > 0
    first, last = kernels(masked_softmax_of_columns, *inputs)
    assert re.match(r" i\d+:150 in vectors", first) and first.count("x1[") == 1 and "x1[" not in last
    made = program(masked_softmax_of_columns, *inputs, smooth=True)
    assert made.written().source.count("turn_block(") >= 2
    check_generated([made], [check_passes(made)], tmp_path)


def gradient_of_norm(x: Tensor, mean: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """Of rows and of columns: ``x`` has contiguous columns, all else contiguous rows."""
    near = pointwise(lambda a, b: op("exp", op("sub", a, b)), x, mean)
    shares = pointwise(lambda a, b: op("mul", a, b), dy, near)
    sums = reduce.sum_dims(shares, [1], True)
    dx = pointwise(lambda a, b, c: op("sub", a, op("mul", b, c)), dy, near, sums)
    return dx, reduce.sum_dims(shares, [0])


def of_gradient(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return randn(64, 512, dtype=dtype).t() * 0.1, randn(512, 1, dtype=dtype), randn(512, 64, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_lies_otherwise_than_all_that_is_read_with_it_is_written_as_that_lies(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    turned, *others = kernels(gradient_of_norm, *of_gradient(dtype))
    assert "exp" in turned and "sum of" not in turned
    assert not any("exp" in k or "x0[" in k for k in others)
    made = program(gradient_of_norm, *of_gradient(dtype), smooth=True)
    source = made.written().source
    assert source.count("turn_block(") == 1 and "strided" not in source
    check_generated([made], [check_passes(made)], tmp_path)


def softmax_of_planes(x: Tensor) -> tuple[Tensor, ...]:
    """Contiguous, along the first dimension of planes whose columns are contiguous."""
    return (reduce.softmax(views.transpose(x, 1, 2), 0, False),)


def test_rows_around_which_memory_runs_two_ways_are_turned(tmp_path: Path) -> None:
    x = randn(20, 70, 50)
    first, last = kernels(softmax_of_planes, x)
    assert "sum of" in first and "sum of" not in last
    made = program(softmax_of_planes, x, smooth=True)
    check_generated([made], [check_passes(made)], tmp_path)


def test_elements_that_are_written_two_ways_are_turned(tmp_path: Path) -> None:
    """What has more readers is computed as it is read, and a result that lies otherwise is made of that."""

    def both(x: Tensor) -> tuple[Tensor, ...]:
        y = pointwise(lambda a: op("tanh", op("exp", a)), x)
        y = define(y.shape, y.dtype, y.at)
        return pointwise(lambda a: a + 1, y), pointwise(lambda a: a * 2, views.t(y))

    x = randn(150, 200)
    made = program(both, x, smooth=True)
    assert "turn_block(" in made.written().source and "store_strided" not in made.written().source
    check_generated([made], [check_passes(made)], tmp_path)


def test_what_is_one_number_along_a_row_is_not_across(tmp_path: Path) -> None:
    """A normalised tensor is computed where it is read, though its means lie along another loop than its elements."""

    def sums(x: Tensor, mean: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        centred = pointwise(lambda a, b: a - b, x, views.unsqueeze(mean, 2))
        squares, products = (pointwise(lambda a, b: a * b, centred, other) for other in (centred, y))
        return reduce.sum_dims(squares, [2]), reduce.sum_dims(products, [0])

    inputs = randn(16, 8, 256), randn(16, 8), randn(16, 8, 256)
    assert all("sum of" in text for text in kernels(sums, *inputs))
    made = program(sums, *inputs, smooth=True)
    check_generated([made], [check_passes(made)], tmp_path)


def test_what_is_computed_along_rows_counts_as_what_lies_there() -> None:
    """A bias is made of a mask once a row, and lies as that; scores lie the other way round."""

    def softmax(scores: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        bias = rules()[aten.masked_fill.Scalar](pointwise(lambda a: cast(a, torch.bfloat16) * 0, mask), mask, -1e4)
        shape = [8, 256, 256]
        every = views.expand(views.unsqueeze(bias, 0), shape)
        found = rules()[aten.add.Tensor](views.permute(scores, (0, 2, 1)), every)
        return (reduce.softmax(found, 2, False),)

    inputs = randn(8, 256, 256, dtype=torch.bfloat16), randn(256, 256) > 0
    first, last = kernels(softmax, *inputs)
    assert re.match(r" i\d+:256 in vectors", first) and first.count("x0[") == 1 and "x0[" not in last


# -- what leaves and is read again -------------------------------------------------------------------------------------
def test_a_sum_that_leaves_is_computed_once() -> None:
    """A residual sum and its norm are one kernel, which reads each of the two once."""

    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = x + y
        return torch.nn.functional.rms_norm(z, (200,)), z

    inputs = randn(300, 200), randn(300, 200)
    compiled = torch.compile(both, backend="max_backend", options={"fallback": "error", "executor": "auto"})
    torch.testing.assert_close(compiled(*inputs), both(*inputs))
    (done,) = reports()[-1].programs
    assert (done.kernels, done.bytes_moved) == (1, 4 * inputs[0].nbytes)


# -- short loops -------------------------------------------------------------------------------------------------------
def across_channels(x: Tensor) -> tuple[Tensor, ...]:
    """Each channel by its neighbours, as a local response norm has it; channels are the last dimension."""
    wide = views.constant_pad_nd(pointwise(lambda a: a * a, x), [1, 1])
    n = x.shape[-1]
    left, right = views.slice_(wide, -1, 0, n), views.slice_(wide, -1, 2, n + 2)
    power = rules()[aten.pow.Tensor_Scalar](pointwise(lambda a, b, c: a * a + b + c + 1.0, x, left, right), 0.75)
    return (pointwise(lambda a, b: a / b, x, power),)


@pytest.mark.parametrize(("channels", "inside"), [(3, True), (4, True), (7, True), (64, False)])
def test_vectors_are_around_a_short_window(channels: int, inside: bool, tmp_path: Path) -> None:
    x = randn(500, channels)
    (text,) = kernels(across_channels, x)
    assert bool(re.match(r" i\d+:500 in vectors:", text)) == inside
    made = program(across_channels, x, smooth=True)
    check_generated([made], [check_passes(made)], tmp_path)


def test_cheap_short_loops_stay() -> None:
    """As a shift by one, whose time is that of reading."""

    def shifted(x: Tensor) -> tuple[Tensor, ...]:
        return (views.constant_pad_nd(x, [1, -1]),)

    (text,) = kernels(shifted, randn(5000, 4))
    assert "5000 in vectors" not in text


# -- places that are read ----------------------------------------------------------------------------------------------
def test_a_place_is_read_and_checked_once_a_row(tmp_path: Path) -> None:
    table, places = randn(30, 128), torch.randint(0, 30, (50,), generator=torch.Generator().manual_seed(0))
    made = program(lambda x, i: (indexing.embedding(x, i),), table, places)
    lines = made.written().source.splitlines()
    (checked,) = (k for k, line in enumerate(lines) if "checked_index(" in line)
    (stored,) = (k for k, line in enumerate(lines) if "store(" in line)
    loops = [k for k, line in enumerate(lines) if line.strip().startswith("while")]
    assert any(checked < k < stored for k in loops)
    check_generated([made], [check_passes(made)], tmp_path)


@pytest.mark.parametrize(("rows", "at_once"), [(2, False), (40, True)])
def test_two_long_scans_are_two_threads(rows: int, at_once: bool) -> None:
    """More are computed side by side in vectors: each step of such a scan waits for a logarithm."""
    found = kernels(lambda x: (scan.logcumsumexp(x, 1),), randn(rows, 2048))
    (text,) = (x for x in found if "log_sum_exp of" in x)
    assert (f":{rows} in vectors" in text) is at_once


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("row", [3, 4, 8, 13, 16])
def test_short_rows_are_turned_before_they_are_summed(row: int, dtype: torch.dtype, tmp_path: Path) -> None:
    def softmax(x: Tensor) -> tuple[Tensor, ...]:
        return (views.transpose(reduce.softmax(x, 2, False), 1, 2),)

    x = randn(60, 37, row, dtype=dtype)
    made = program(softmax, x, smooth=True)
    text = made.written().source
    assert ("load_strided" not in text) == (row >= 4)
    check_generated([made], [check_passes(made)], tmp_path)


@pytest.mark.parametrize(("row", "at_once"), [(2, True), (5, True), (14, True), (64, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_short_rows_are_searched_many_at_a_time(row: int, at_once: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    """Where the extreme of a vector is takes longer than a short row."""
    x = randn(500, row, dtype=dtype)
    x[::3, 0], x[1::3, -1] = float("nan"), x[1::3].amax(1)
    made = program(lambda x: (reduce.argmax(x, 1), reduce.argmin(x, 1)), x)
    (text,) = str(schedule(made.program)).split("kernel over")[1:]
    assert bool(re.match(r" i\d+:500 in vectors:", text)) == at_once
    check_generated([made], [check_passes(made)], tmp_path)


@pytest.mark.parametrize("length", [1040, 1072, 1088, 2000, 4096, 5008])
def test_long_sums_with_vectors_left_over(length: int, tmp_path: Path) -> None:
    """Sums are added to totals now and then, and what is left of a loop over four vectors at a time comes last."""
    x = (torch.arange(30 * length) % 13 - 6).float().reshape(30, length)  # of which every sum is exact
    made = program(lambda x: (reduce.over("sum", x, [1]), reduce.amax(x, [1])), x)
    check_generated([made], [check_passes(made)], tmp_path)
