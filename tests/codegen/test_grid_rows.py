"""Rows and columns on a GPU: how many threads share one, what each holds, and that results are right."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from tests.codegen.test_emulated_kernels import as_if_large, for_gpu  # noqa: F401
from tests.support.emulated_gpu import emulate_gpu
from tests.support.grid_programs import SMALL_GPU, check_emulated
from tests.support.loop_programs import LoopProgram
from torch_max_backend.compile.cuda_build import build_cubin, build_ptx
from torch_max_backend.loops.expr import cast, op
from torch_max_backend.loops.rules import reduce, views
from torch_max_backend.loops.tensor import Tensor, pointwise
from torch_max_backend.schedule import grid_limits
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.machine import gpu_of
from torch_max_backend.schedule.plan import schedule

pytestmark = [pytest.mark.any_runner("programs without a graph"), pytest.mark.sampled]


def nests(made: LoopProgram) -> list[GridNest]:
    return [n for n in schedule(made.program, made.machine).steps if isinstance(n, GridNest)]


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers, of which sums are exact."""
    return (torch.arange(math.prod(shape)) * 7 % 31 - 15).reshape(shape).to(dtype)


def normalized(x: Tensor, *weight: Tensor) -> tuple[Tensor, ...]:
    """Rows of mean 0, scaled by their squares and a weight."""
    wide = pointwise(lambda a: cast(a, torch.float32), x)
    count = float(x.shape[-1].typical)
    off = pointwise(lambda a, s: a - s / count, wide, reduce.over("sum", wide, [-1], True))
    squares = reduce.over("sum", pointwise(lambda a: a * a, off), [-1], True)
    done = pointwise(lambda a, s: a * op("rsqrt", s / count + 1e-5), off, squares)
    for w in weight:
        done = pointwise(lambda a, b: a * cast(b, torch.float32), done, w)
    return (pointwise(lambda a: cast(a, x.dtype), done),)


# -- rows of a warp ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rows", "columns", "threads", "held"),
    [(1024, 512, 32, 2), (9, 464, 32, 2), (9, 512, 32, 2), (2048, 1000, 32, 4), (70, 1000, 128, 1)],
)
def test_a_row_of_few_vectors_is_a_warp_s(rows: int, columns: int, threads: int, held: int) -> None:
    """Without a barrier of the block; with more vectors where other rows keep the multiprocessor busy."""
    made = for_gpu(normalized, numbers(rows, columns, dtype=torch.float16), smooth=True)
    (nest,) = nests(made)
    assert (nest.threads, nest.held, nest.lanes) == (threads, held, 8)
    assert ("block_" in made.written().source.replace("block_index", "")) == (threads > 32)
    if rows < 64:
        check_emulated(made)


def test_what_later_stages_read_is_read_first() -> None:
    made = for_gpu(normalized, numbers(9, 512, dtype=torch.float16), numbers(1, 512, dtype=torch.float16), smooth=True)
    before, after = made.written().source.split("warp_add", 1)
    assert before.count("load_aligned") == 4 and "load_aligned" not in after
    check_emulated(made)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "columns"), [(9, 512), (70, 1000), (9, 4096), (33, 130)])
def test_what_is_written_is_not_read_again(
    rows: int, columns: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum that is a result, and the norm of it: the norm's stages have the sum in registers."""
    written = emulate_gpu(monkeypatch)

    def sum_and_norm(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + y
        return total, torch.nn.functional.layer_norm(total, (columns,))

    inputs = torch.randn(rows, columns, dtype=dtype), torch.randn(rows, columns, dtype=dtype)
    options = {"executor": "auto", "fallback": "error"}
    found = torch.compile(sum_and_norm, backend="max_backend", options=options)(*inputs)
    torch.testing.assert_close(found, sum_and_norm(*inputs))
    (source,) = (w.source for w in written)
    stored = re.findall(r"store(?:_aligned)?\((p\d+),", source)
    assert len(set(stored)) == 2 and source.count("def ") == 1
    assert not re.search(rf"load\w*\[\d+\]\(({'|'.join(stored)}),", source)


@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize(("channels", "lanes"), [(22, {"2"}), (20, {"4"}), (24, {"8"}), (21, set())])
def test_windows_are_read_in_vectors_of_neighbours(
    channels: int, lanes: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However narrow they are, if there are such: the widest ones are put together of as many elements."""
    written = emulate_gpu(monkeypatch)
    images = torch.randn(2, channels, 9, 9).bfloat16().to(memory_format=torch.channels_last)
    options = {"executor": "auto", "fallback": "error"}
    pool = torch.compile(lambda x: F.max_pool2d(x, 3, 2, 1), backend="max_backend", options=options)
    assert torch.equal(pool(images), F.max_pool2d(images, 3, 2, 1))
    (found,) = written
    assert set(re.findall(r" load_aligned\[(\d)\]", found.source)) == lanes


def test_a_row_of_an_odd_length_has_few_threads() -> None:
    """Each reads several elements at once, without a loop."""
    made = for_gpu(lambda x: (reduce.over("sum", x, [1]),), torch.zeros(1_000_000, 33))
    (nest,) = nests(made)
    assert (nest.threads, nest.held, nest.rows) == (8, 5, 32)
    text = made.written().source
    assert text.count("= load[1]") == 5 and "while" not in text


@pytest.mark.parametrize(
    ("columns", "dtype", "threads", "held"),
    [(256, torch.float16, 8, 4), (512, torch.bfloat16, 16, 4), (64, torch.bfloat16, 8, 1), (128, torch.float32, 8, 4)],
)
def test_a_warp_has_several_of_many_short_rows(
    columns: int, dtype: torch.dtype, threads: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which are only read: a thread has a few vectors of one."""
    x = torch.zeros(1 << 20, columns, dtype=dtype)
    (nest,) = nests(for_gpu(lambda x: (reduce.over("sum", x, [1]),), x))
    assert (nest.threads, nest.held, nest.rows) == (threads, held, 256 // threads)
    (few,) = nests(for_gpu(lambda x: (reduce.over("sum", x, [1]),), x[:1000]))
    assert few.threads == columns * dtype.itemsize // 16
    monkeypatch.setattr(grid_limits, "BUSY", 16)
    made = for_gpu(lambda x: (reduce.over("sum", x, [1]),), numbers(37, columns, dtype=dtype))
    (nest,) = nests(made)
    assert nest.threads == threads
    check_emulated(made)


@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize("columns", [9, 33, 131])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_sums_of_odd_rows(columns: int, dtype: torch.dtype) -> None:
    check_emulated(
        for_gpu(lambda x: (reduce.over("sum", x, [1]), reduce.amax(x, [1])), numbers(70, columns, dtype=dtype))
    )


# -- rows of a cluster -------------------------------------------------------------------------------------------------
def added(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return normalized(pointwise(lambda a, b: cast(cast(a, torch.float32) + cast(b, torch.float32), x.dtype), x, y))


@pytest.mark.parametrize(
    ("columns", "dtype", "blocks", "threads", "held"),
    [
        (65536, torch.bfloat16, 1, 1024, 8), (131072, torch.bfloat16, 2, 2048, 8), (40000, torch.float16, 1, 1024, 5),
        (262144, torch.float32, 8, 8192, 8), (151936, torch.bfloat16, 4, 4096, 5), (65536, torch.float32, 2, 2048, 8),
    ],
)  # fmt: skip
def test_a_long_row_is_in_the_registers_of_many_threads(
    columns: int, dtype: torch.dtype, blocks: int, threads: int, held: int
) -> None:
    """Of a block, or of a cluster of blocks, of which a launch has so many for each row."""
    made = for_gpu(normalized, torch.zeros(3000, columns, dtype=dtype), smooth=True)
    (nest,) = nests(made)
    assert (nest.blocks, nest.threads, nest.held, nest.block) == (blocks, threads, held, threads // blocks)
    assert nest.anew == (dtype.itemsize == 2)
    written = made.written()
    assert list(written.clusters.values()) == [blocks] * (blocks > 1)
    (launch,) = (x for segment in written.spec.segments for x in segment.launches)
    assert launch.blocks == 3000 * blocks
    assert written.source.count("load_aligned") == held
    assert written.source.count(" = anew(") == 2 * held * nest.anew


@pytest.mark.parametrize(
    ("columns", "weight", "held"), [(65536, torch.float16, 8), (65536, torch.float32, 0), (65540, torch.float16, 0)]
)
def test_long_rows_of_16_bits_are_held_in_whole_vectors(columns: int, weight: torch.dtype, held: int) -> None:
    """Too little would be under way with others, as beside wider weights."""
    made = for_gpu(normalized, torch.zeros(3000, columns).half(), torch.zeros(1, columns, dtype=weight), smooth=True)
    (nest,) = nests(made)
    written = made.written()
    assert nest.held == held and nest.anew is bool(held) is (" = anew(" in written.source)
    assert len(build_cubin(written.source, threads=written.threads, clusters=written.clusters)) > 1000


@pytest.mark.parametrize("columns", [40000, 65536])
def test_a_softmax_of_16_bits_computes_no_exponential_three_times(columns: int) -> None:
    """Threads that compute it anew take longer than the row takes to be read again."""
    made = for_gpu(lambda x: (reduce.softmax(x, 1, False),), torch.zeros(3000, columns).half(), smooth=True)
    (nest,) = nests(made)
    assert (nest.held, nest.anew) == (0, False)


@pytest.mark.parametrize(
    ("columns", "threads", "blocks", "held"),
    [(32768, 1024, 1, 4), (30000, 1024, 1, 4), (131072, 512, 4, 8), (151936, 512, 8, 5)],
)
def test_shared_memory_keeps_long_rows_of_a_softmax(columns: int, threads: int, blocks: int, held: int) -> None:
    """Threads have few registers then, and two blocks of them run at the same time."""
    made = for_gpu(lambda x: (reduce.softmax(x, 1, False),), torch.zeros(3000, columns).half(), smooth=True)
    (nest,) = nests(made)
    assert nest.in_shared
    assert (nest.block, nest.blocks, nest.held, nest.resident) == (threads, blocks, held, 2)
    written = made.written()
    assert written.source.count("shared_store_aligned") == held
    counts = {"threads": written.threads, "clusters": written.clusters, "resident": written.resident}
    assert ".minnctapersm 2" in build_ptx(written.source, **counts)


@pytest.mark.parametrize(("columns", "blocks"), [(2048, 1), (2000, 1), (8192, 4), (8000, 4)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_softmax_in_shared_memory_is_right(
    columns: int, blocks: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"MOST": 64, "REGISTERS": 32, "NEAR": 4096}.items():
        monkeypatch.setattr(grid_limits, name, value)
    made = for_gpu(lambda x: (reduce.softmax(x, 1, False),), numbers(3, columns, dtype=dtype), smooth=True)
    (nest,) = nests(made)
    assert nest.in_shared and (nest.blocks, nest.held) == (blocks, 4 if blocks == 1 else 8)
    check_emulated(made)


@pytest.mark.parametrize("columns", [8192, 8000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_residual_norms_in_shared_memory_are_right(
    columns: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the sum that leaves, of which later stages read nothing from memory."""
    monkeypatch.setattr(grid_limits, "MOST", 64)
    written = emulate_gpu(monkeypatch)

    def sum_and_norm(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + y
        return F.rms_norm(total, (columns,), w), total

    inputs = torch.randn(3, columns, dtype=dtype), torch.randn(3, columns, dtype=dtype), torch.randn(columns).to(dtype)
    options = {"executor": "auto", "fallback": "error"}
    found = torch.compile(sum_and_norm, backend="max_backend", options=options)(*inputs)
    torch.testing.assert_close(found, sum_and_norm(*inputs))
    (of_program,) = written
    assert list(of_program.clusters.values()) == [2 * dtype.itemsize]
    assert list(of_program.resident.values()) == [2]
    held = of_program.source.count("shared_store_aligned")
    assert held == 4 and of_program.source.count("shared_load_aligned") == held
    assert len(re.findall(r"load_aligned\[\d\]\(p", of_program.source)) == 3 * held


@pytest.mark.parametrize(
    ("columns", "is_from_its_end"), [(1024, True), (1536, True), (768, True), (2560, True), (1800, False)]
)
@pytest.mark.parametrize("function", [lambda x: (reduce.softmax(x, 1, False),), normalized], ids=["softmax", "norm"])
def test_a_row_that_is_read_again_is_read_from_its_end(
    columns: int,
    is_from_its_end: bool,
    function: Callable[..., tuple[Tensor, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where all threads have as many whole vectors: a cache has what was read last. With blocks of one warp."""
    for name, value in {"MOST": 32, "REGISTERS": 1, "NEAR": 512, "KEPT": 1}.items():
        monkeypatch.setattr(grid_limits, name, value)
    made = for_gpu(function, numbers(5, columns, dtype=torch.bfloat16), smooth=True)
    (nest,) = nests(made)
    assert not nest.held
    assert ("var ends" in made.written().source) == is_from_its_end
    check_emulated(made)


def test_a_block_has_fewer_threads_where_they_read_more() -> None:
    rows = torch.zeros(3000, 65536)
    for x, threads in ((rows.half(), 1024), (rows, 512)):
        (nest,) = nests(for_gpu(added, x, x, smooth=True))
        assert (nest.block, nest.blocks, nest.anew) == (threads, 2048 // threads, False)


@pytest.mark.parametrize(
    ("rows", "arch"), [(torch.zeros(3000, 65536), "sm_80"), (torch.zeros(3000, 50257).bfloat16(), "sm_90a")]
)
def test_rows_without_a_cluster(rows: torch.Tensor, arch: str) -> None:
    """Where a GPU has none, and where no wide vectors fit: the row is read again."""
    made = dataclasses.replace(for_gpu(normalized, rows, smooth=True), machine=gpu_of(arch))
    (nest,) = nests(made)
    assert (nest.blocks, nest.held) == (1, 0)
    assert not made.written().clusters and "cluster_" not in made.written().source


def between_extremes(x: Tensor) -> tuple[Tensor, ...]:
    """Rows from 0 to 1, and their sums."""
    low, high = reduce.amin(x, [1], True), reduce.amax(x, [1], True)
    done = pointwise(lambda a, b, c: cast(a - b, torch.float32) / cast(c - b, torch.float32), x, low, high)
    return pointwise(lambda a: cast(a, x.dtype), done), reduce.over("sum", x, [1])


@pytest.mark.parametrize("columns", [640, 968, 1024])
@pytest.mark.parametrize("function", [normalized, between_extremes])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rows_of_clusters(
    columns: int, function: Callable[..., tuple[Tensor, ...]], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With blocks of one warp, and rows that begin behind what all threads have."""
    for name, value in {"MOST": 32, "REGISTERS": 8, "HELD": 1, "NARROW": 1, "ALONE": 0}.items():
        monkeypatch.setattr(grid_limits, name, value)
    made = for_gpu(function, numbers(5, columns, dtype=dtype), smooth=True)
    assert {n.blocks for n in nests(made)} == {4 if dtype is torch.float32 else 2}
    check_emulated(made)


# -- rows of a thread --------------------------------------------------------------------------------------------------
def test_a_short_row_that_no_vectors_read_is_a_thread_s() -> None:
    """What it writes is a vector all the same."""
    made = for_gpu(lambda x: normalized(views.roll(x, [3], [1])), torch.zeros(300_000, 8).half(), smooth=True)
    (nest,) = nests(made)
    assert (nest.threads, nest.lanes, nest.held) == (1, 8, 1)
    text = made.written().source
    assert text.count("store_aligned") == 1 and "warp_" not in text


@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize("columns", [2, 7, 8, 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_short_rows_under_a_condition(columns: int, dtype: torch.dtype) -> None:
    made = for_gpu(lambda x: normalized(views.roll(x, [1], [1])), numbers(70, columns, dtype=dtype), smooth=True)
    check_emulated(made)


def turned_softmax(x: Tensor, *mask: Tensor) -> tuple[Tensor, ...]:
    """Over the middle dimension, written along it; rounded before with a mask that lies as the result."""
    wide = views.transpose(x, 1, 2)
    for m in mask:
        wide = pointwise(lambda a, b: cast(cast(a, torch.float32) + cast(b, torch.float32), x.dtype), wide, m)
    return (reduce.softmax(wide, -1, False),)


@pytest.mark.parametrize(("columns", "threads", "stores"), [(16, 1, 2), (12, 1, 3), (13, 2, 7)])
def test_a_short_row_that_is_written_along_is_a_thread_s(columns: int, threads: int, stores: int) -> None:
    """Neighbouring threads read neighbouring rows, and each writes vectors, if any fit."""
    x, mask = torch.zeros(10_000, columns, 16).half(), torch.zeros(16, columns, dtype=torch.bool)
    made = for_gpu(turned_softmax, x, mask, smooth=True)
    (nest,) = nests(made)
    assert (nest.threads, nest.columns, nest.outer[-1].size) == (threads, True, 16)
    text = made.written().source
    assert text.count(" store") == stores


@pytest.mark.parametrize("columns", [4, 12, 14, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_short_rows_that_are_written_along(columns: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_limits, "BUSY", 1)
    x, mask = torch.randn(9, columns, 16).to(dtype), torch.arange(16 * columns).reshape(16, columns) % 3 == 0
    made = for_gpu(turned_softmax, x, mask, smooth=True)
    assert nests(made)[0].threads == 1
    check_emulated(made)


# -- extremes and their places -----------------------------------------------------------------------------------------
def extremes(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    return reduce.amin(x, [dim]), reduce.argmin(x, dim), reduce.amax(x, [dim]), reduce.argmax(x, dim)


def test_a_place_is_found_with_the_extreme() -> None:
    made = for_gpu(lambda x: (reduce.amin(x, [1]), reduce.argmin(x, 1)), torch.zeros(3000, 174))
    (nest,) = nests(made)
    assert (nest.threads, nest.held) == (32, 3)
    text = made.written().source
    assert "block_barrier" not in text and "minimum(" not in text and text.count("shuffle_xor") == 2 * 5


def test_places_in_a_short_row_are_a_thread_s() -> None:
    x = torch.zeros(300_000, 16).bfloat16()
    (nest,) = nests(for_gpu(lambda x: (reduce.amax(x, [1]), reduce.argmax(x, 1)), x))
    assert (nest.threads, nest.lanes, nest.held) == (1, 8, 2)


@pytest.mark.parametrize("shape", [(70, 16), (9, 174), (5, 3), (3, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("dim", [1, 0])
@pytest.mark.parametrize("large", [False, True])
def test_places_of_equal_extremes_and_nan(
    shape: tuple[int, int], dtype: torch.dtype, dim: int, large: bool, request: pytest.FixtureRequest
) -> None:
    if large:
        request.getfixturevalue("as_if_large")
    x = numbers(*shape, dtype=dtype)
    if dtype.is_floating_point:
        x[1, -1], x[2, 0] = float("nan"), float("-inf")
        x[:, x.shape[1] // 2] = float("inf")
    x = x if dim else x.t().contiguous()
    check_emulated(for_gpu(lambda x: extremes(x, dim), x))


# -- columns -----------------------------------------------------------------------------------------------------------
def test_a_column_has_few_threads_with_several_elements() -> None:
    """They tell each other two numbers, with a barrier for each."""
    made = for_gpu(lambda x: (reduce.softmax(x, 1, False),), torch.zeros(62, 64, 131).half(), smooth=True)
    (nest,) = nests(made)
    assert nest.columns and (nest.threads, nest.held) == (8, 8)
    assert made.written().source.count("block_barrier()") == 2


def test_long_columns_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By few neighbours, so that a block's threads have registers for them."""
    monkeypatch.setattr(grid_limits, "PROCESSORS", 1)
    made = for_gpu(lambda x: (reduce.softmax(x, 0, False),), torch.randn(512, 132), smooth=True)
    (nest,) = nests(made)
    assert nest.columns and (nest.rows, nest.threads, nest.held, nest.lanes) == (8, 64, 8, 4)
    check_emulated(made)


def test_neighbours_of_short_pieces_share_a_block() -> None:
    """Where pieces of 16 bytes have gaps of 32 behind them."""
    sums = lambda x: (reduce.over("sum", views.slice_(x, 2, 0, 4), [0]),)  # noqa: E731
    (nest,) = nests(for_gpu(sums, numbers(128, 40000, 12)))
    assert nest.columns and (nest.rows, nest.lanes) == (32, 4)
    (nest,) = nests(for_gpu(sums, numbers(128, 4000, 120)))
    assert nest.rows < 32
    check_emulated(for_gpu(sums, numbers(128, 50, 12)))


@pytest.mark.parametrize("shape", [(1, 64, 9), (2, 100, 3)], ids=str)
def test_columns_tell_each_other_in_turns(shape: tuple[int, ...]) -> None:
    """Whoever writes what comes next does not wait until all have read what came before."""
    made = for_gpu(lambda x: (reduce.softmax(x, 1, False), reduce.var(x, [1])), torch.randn(shape), smooth=True)
    assert any("shared1 = " in made.written().source for n in nests(made) if n.columns)
    check_emulated(made)


def weighted(x: Tensor, row: Tensor) -> tuple[Tensor, ...]:
    """Sums over rows, each of which has a factor."""
    wide = pointwise(lambda a, b: cast(a, torch.float32) * cast(b, torch.float32), x, row)
    return (reduce.over("sum", wide, [0]),)


def test_sums_of_columns_with_a_number_for_each_row_fill_the_grid() -> None:
    """The numbers are neighbours in memory from row to row, but few beside the rows themselves."""
    made = for_gpu(weighted, torch.zeros(1 << 20, 32).half(), torch.zeros(1 << 20, 1).half())
    first, second = nests(made)
    assert first.lanes == 8 and int(first.parts.constant) // first.share >= 1056
    assert second.held and int(second.parts.constant) // second.share == 8


@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize("shape", [(150, 32), (101, 24), (150, 8), (113, 7)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_sums_of_columns(shape: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_max_backend.schedule.grid_limits.PROCESSORS", 1)
    made = for_gpu(weighted, numbers(*shape, dtype=dtype), numbers(shape[0], 1, dtype=dtype))
    check_emulated(dataclasses.replace(made, machine=SMALL_GPU))
    x = torch.randn(3, *shape).to(dtype)
    variances = for_gpu(lambda x: (reduce.var(x, [1]),), x, smooth=True)
    check_emulated(dataclasses.replace(variances, machine=SMALL_GPU))


def test_variances_of_channels_are_read_in_whole_vectors() -> None:
    made = for_gpu(lambda x: (reduce.var(x, [0]),), torch.zeros(1 << 20, 8).bfloat16())
    first, *_ = nests(made)
    assert first.held and first.lanes == 8


def test_parts_have_as_many_elements_for_each_thread() -> None:
    made = for_gpu(lambda x: (reduce.amax(x, [1]),), torch.zeros(32_767, 16).t())
    first, *_ = nests(made)
    (loop,) = first.stages[0].reduced
    assert "min(128, " in str(loop.size)
    assert "+ 65 <= small(imin32(128, " in made.written().source  # both of a thread are read before it waits


def test_a_sum_of_everything_runs_on_over_all_dimensions() -> None:
    """Also where a part is a multiple of one of them."""
    made: LoopProgram = for_gpu(lambda x: (reduce.over("sum", x, [0, 1, 2]),), torch.zeros(64, 578, 14).transpose(1, 2))
    first, last = nests(made)
    assert last.block == 32  # a warp adds up the parts
    (stage,) = (s for s in first.stages if s.inner)
    assert len(stage.inner) == 1 and stage.vector is not None and first.lanes == 4


@pytest.mark.parametrize("shape", [(700, 12, 9), (301, 5, 119)], ids=str)
def test_short_pieces_of_a_reduction_are_one_loop(shape: tuple[int, ...]) -> None:
    """No thread is idle beside a piece, and several reads are under way together."""
    x = torch.randint(-9, 9, shape).float()
    made = for_gpu(lambda x: (reduce.over("sum", x, [0, 2]), reduce.var(x, [0, 2])), x, smooth=True)
    found = nests(made)
    assert all(len(stage.reduced) <= 1 for n in found for stage in n.stages)
    assert re.search(rf"= load\[1\]\(p0, .*div32\(\w+, {shape[2]}\)", made.written().source)
    check_emulated(made)


@pytest.mark.parametrize(
    ("rows", "columns", "threads", "held"), [(4887, 6864, 256, 4), (9, 20000, 1024, 3), (9, 12008, 1024, 2)]
)
def test_a_sum_of_few_vectors_a_thread_reads_them_without_a_loop(
    rows: int, columns: int, threads: int, held: int
) -> None:
    """Those of the last round, which not all threads have, are under way with the others."""

    def squares(x: Tensor) -> tuple[Tensor, ...]:
        wide = pointwise(lambda a: cast(a, torch.float32), x)
        return (reduce.over("sum", pointwise(lambda a: a * a, wide), [-1]),)

    made = for_gpu(squares, numbers(rows, columns, dtype=torch.bfloat16))
    (nest,) = nests(made)
    assert (nest.threads, nest.held, nest.lanes) == (threads, held, 8)
    assert "while" not in made.written().source
    if rows < 64:
        check_emulated(made)


@pytest.mark.parametrize(("rows", "columns", "together"), [(12, 4096, 6), (21, 2048, 4), (40, 1024, 5)])
def test_vectors_of_several_pieces_are_read_together(rows: int, columns: int, together: int) -> None:
    """A piece of memory is one vector of each thread: it waits for those of several pieces at once."""

    def sums(x: Tensor) -> tuple[Tensor, ...]:
        wide = pointwise(lambda a: cast(a, torch.float32), views.slice_(x, 2, 0, columns))
        return (reduce.over("sum", wide, [1, 2]),)

    made = for_gpu(sums, numbers(3, rows, columns + 8, dtype=torch.float16))
    (nest,) = nests(made)
    text = made.written().source
    assert nest.lanes == 8
    assert re.search(r"(var k\d+ = [^\n]+\s+)*".join([r"var x\d+ = load_aligned\[8\][^\n]+\s+"] * together), text)
    check_emulated(made)
