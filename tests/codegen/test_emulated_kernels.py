"""The text of a GPU's kernels, run by an emulator: results, and that no element has two threads.

``python -m tests.codegen.test_emulated_kernels`` writes ``grid_softmax.txt`` anew.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.codegen.test_written_source import CASES, SMOOTH, program
from tests.support.grid_emulator import EmulatedLibrary, WrongKernelError
from tests.support.grid_programs import SMALL, SMALL_GPU, check_emulated, programs_for_gpu
from tests.support.loop_programs import LoopProgram
from torch_max_backend.loops.expr import loads, op
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.rules import reduce, scan, views
from torch_max_backend.loops.tensor import Tensor, define, pointwise
from torch_max_backend.loops.tensor import reduce as reduced
from torch_max_backend.runtime.grid_program import KernelLaunch
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.machine import GPU, Machine
from torch_max_backend.schedule.plan import schedule

pytestmark = [pytest.mark.any_runner("programs without a graph"), pytest.mark.sampled]

GOLDEN = Path(__file__).with_name("grid_softmax.txt")
CHUNK = 40
"""Programs of one test."""


def for_gpu(function: Callable[..., tuple[Tensor, ...]], *inputs: torch.Tensor, smooth: bool = False) -> LoopProgram:
    """The loop program of a function of tensors, for a GPU."""
    return dataclasses.replace(program(function, *inputs, smooth=smooth), machine=GPU)


def softmax_as_text() -> str:
    made = for_gpu(lambda x: (reduce.softmax(x, -1, False),), torch.zeros(4096, 1024), smooth=True)
    written = made.written()
    parts = [schedule(made.program, GPU), written.source, written.spec.source]
    return "\n\n".join(str(part).strip() for part in parts) + "\n"


def test_softmax_is_written_like_this() -> None:
    assert softmax_as_text() == GOLDEN.read_text()


# -- emulated --------------------------------------------------------------------------------------------------------
@pytest.fixture
def as_if_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, values in SMALL.items():
        for name, value in values.items():
            monkeypatch.setattr(f"torch_max_backend.schedule.{module}.{name}", value)


def test_rows_that_are_written_across_memory(as_if_large: None) -> None:
    def turned(x: Tensor) -> tuple[Tensor, ...]:
        return views.t(reduce.softmax(x, 1, False)), reduce.over("sum", x, [1])

    made = for_gpu(turned, torch.randn(70, 48), smooth=True)
    check_emulated(dataclasses.replace(made, machine=dataclasses.replace(GPU, turned=1)))


@pytest.mark.parametrize("width", [24, 20, 21])
def test_joined_parts(as_if_large: None, width: int) -> None:
    """In vectors of 8, of 4, and element by element."""

    def joined(x: Tensor) -> tuple[Tensor, ...]:
        parts = [pointwise(lambda e, k=k: e * (k + 1.0), views.slice_(x, 1, 0, width)) for k in range(6)]
        return (views.cat(parts, 1),)

    check_emulated(for_gpu(joined, torch.randn(70, 32).bfloat16()))


def check_random(first: int, symbolic: bool, machine: Machine = GPU) -> None:
    for made in programs_for_gpu(range(first, first + CHUNK), symbolic, machine):
        check_emulated(made)


@pytest.mark.parametrize("behind", [7, 15, -2])
@pytest.mark.parametrize("before", [0, 3, -5])
def test_a_condition_is_asked_once_for_a_vector(as_if_large: None, before: int, behind: int) -> None:
    """Of a vector at the edge lane by lane; what is compared are numbers of 32 bits."""
    x = torch.randn(9, 41 - before - behind + 7, generator=torch.Generator().manual_seed(0)).half()
    made = for_gpu(lambda x: (views.constant_pad_nd(x, [before, behind], 1.5),), x)
    source = made.written().source
    edges = (before > 0) + (behind > 0)
    assert "i64" not in source and source.count("if condition(bit_and(") == edges
    check_emulated(made)


@pytest.mark.parametrize(("first", "symbolic"), [(0, False), (200_000, True)])
def test_random_programs(first: int, symbolic: bool) -> None:
    check_random(first, symbolic)


@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize(("first", "symbolic"), [(100_000, False), (300_000, True)])
def test_random_programs_as_if_large(first: int, symbolic: bool) -> None:
    check_random(first, symbolic, SMALL_GPU)


@pytest.mark.full
@pytest.mark.parametrize("first", [*range(CHUNK, 1000, CHUNK), *range(200_000 + CHUNK, 200_500, CHUNK)])
def test_more_random_programs(first: int) -> None:
    check_random(first, first >= 200_000)


@pytest.mark.full
@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize("first", [*range(100_000 + CHUNK, 101_000, CHUNK), *range(300_000 + CHUNK, 300_500, CHUNK)])
def test_more_random_programs_as_if_large(first: int) -> None:
    check_random(first, first >= 300_000, SMALL_GPU)


@pytest.mark.parametrize("name", CASES)
def test_programs_that_were_wrong_on_a_cpu(name: str) -> None:
    function, x = CASES[name]
    check_emulated(for_gpu(function, x, smooth=name in SMOOTH))


def test_a_part_is_shorter_than_what_is_reduced() -> None:
    """Otherwise the second reduction, over the only part, is none."""
    rows = (torch.arange(128 * 64) % 7 - 3).float().reshape(128, 64)
    check_emulated(for_gpu(lambda x: (reduce.over("sum", x, [1]), reduce.amax(x, [1])), rows))


@pytest.mark.usefixtures("as_if_large")
def test_lanes_one_after_the_other_read_registers_of_vectors() -> None:
    (made,) = programs_for_gpu([102_624], machine=SMALL_GPU)
    check_emulated(made)


@pytest.mark.parametrize("nowhere", [False, True], ids=["numbers", "NaN"])
@pytest.mark.parametrize("dim", [1, 0])
def test_places_of_extremes_in_parts(nowhere: bool, dim: int) -> None:
    """Equal ones and NaN stand in several parts, also in what the last part, which begins earlier, has of another."""
    x = (torch.arange(3 * 700) * 7 % 31).float().reshape(3, 700)
    if nowhere:
        x[:2, [130, 640, 699]] = float("nan")
    x = x if dim else x.t().contiguous()
    made = for_gpu(lambda x: (reduce.argmax(x, dim), reduce.argmin(x, dim)), x)
    made = dataclasses.replace(made, machine=SMALL_GPU)
    assert str(schedule(made.program, SMALL_GPU)).count("_best = arg") == 2
    check_emulated(made)


@pytest.mark.parametrize("shape", [(2, 4096, 8), (3, 20_000)], ids=str)
def test_squares_of_distances_are_added_up_beside_their_sum(shape: tuple[int, ...]) -> None:
    """One kernel has the parts of both sums, which agree although the mean is far from zero."""
    x = torch.randn(shape) + 100
    made = for_gpu(lambda x: (reduce.var(x, [1]),), x, smooth=True)
    made = dataclasses.replace(made, machine=SMALL_GPU)
    parts = [n for n in schedule(made.program, SMALL_GPU).steps if "_parts = sum" in str(n)]
    assert len(parts) == 1 and str(parts[0]).count("_parts = sum") == 2
    check_emulated(made)


@pytest.mark.parametrize("shape", [(9, 5, 128), (9, 100, 33), (5, 900, 4), (60, 3, 64), (600, 7, 2)], ids=str)
def test_rows_across_memory_stay_in_registers(shape: tuple[int, ...]) -> None:
    """Whether a thread has a row, or a block's threads share it; vectors run along what is not normalised."""
    made = for_gpu(lambda x: (reduce.softmax(x, 1, False),), torch.randn(shape), smooth=True)
    (nest,) = schedule(made.program, GPU).steps
    assert isinstance(nest, GridNest) and nest.held
    check_emulated(made)


SHAPES = [(1, 1), (1, 4000), (4000, 1), (3, 5), (70, 33), (33, 70), (40, 260), (5, 2003), (700, 48)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_every_element_has_one_thread(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Whatever shares a nest has: the emulator finds an element that is written twice, or by none."""
    x = (torch.arange(math.prod(shape)) % 7 - 3).to(dtype).reshape(shape)

    def all_kinds(x: Tensor) -> tuple[Tensor, ...]:
        wide = pointwise(lambda e: e + 1, x)
        sums = [reduce.over("sum", x, dims) for dims in ([0], [1], [0, 1])]
        best = reduce.argmax(x, 1), reduce.argmin(x, 0)
        turned = define(x.shape[::-1], x.dtype, lambda i: x.at((i[1], i[0])))
        top = reduce.amax(x, [1], True)
        return wide, *sums, *best, turned, pointwise(lambda a, b: a - b, x, top), views.roll(x, [3], [])

    check_emulated(for_gpu(all_kinds, x))


# -- the emulator itself -----------------------------------------------------------------------------------------------
def emulate(body: str, *, threads: int = 64, blocks: int = 1) -> torch.Tensor:
    """What a kernel writes to 64 numbers, which are 0, 1, 2, ... before."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    library = EmulatedLibrary(f'@export\ndef kernel0(p0: Ptr[i64]) abi("C"):\n{lines}\n')
    x = library.own(torch.arange(64))
    words = (ctypes.c_int64 * 1)(x.data_ptr())
    library.launches([KernelLaunch("kernel0", blocks, threads, (0,))])(ctypes.addressof(words), 0)
    return x


THREAD = "var i: Int = block_index() * 64 + thread_in_block()\n"
WRONG = {
    "an element that two threads write": "store(p0, 5, const[i64, 1](0))",
    "outside of p0": "store(p0, thread_in_block() + 1, const[i64, 1](0))",
    "an address that is not aligned": f"{THREAD}if i < 9:\n    store_aligned(p0, i * 2 + 1, const[i64, 2](0))",
    "a race": f"{THREAD}var x = load[1](p0, 63 - i)\nstore(p0, i, x)",
    "not all threads are at a barrier of the block": f"{THREAD}if i < 40:\n    block_barrier()",
    "not all threads are at a shuffle": f"{THREAD}if i < 40:\n    var x = shuffle_xor(load[1](p0, i), 1)",
    "a result of a thread without an element": (
        f"{THREAD}var row: Int = i\nvar part: Int = imin(row, 40)\nvar x = warp_add[4](load[1](p0, part))\n"
        "if row < 41:\n    store(p0, row, x)"
    ),
    "no numbers of 32 bits": f"{THREAD}var k: Int = div32(i - 1, 3)",
    "a division of a negative number": f"{THREAD}var k: Int = (i - 1) // 3",
}


@pytest.mark.parametrize("what", WRONG)
def test_the_emulator_finds(what: str) -> None:
    with pytest.raises(WrongKernelError, match=what):
        emulate(WRONG[what])


def test_the_emulator_runs_threads_in_step() -> None:
    turned = "var x = load[1](p0, 63 - i)\nblock_barrier()\nstore(p0, i, x)"
    assert emulate(THREAD + turned).tolist() == [*range(63, -1, -1)]
    sums = "var x = warp_add[4](load[1](p0, i))\nwarp_barrier()\nif rem32(i, 4) == 0:\n    store(p0, i, x)\n"
    assert emulate(THREAD + sums)[:8].tolist() == [6, 1, 2, 3, 22, 5, 6, 7]
    steps = "var k: Int = 0\nwhile k < i:\n    k += 2\nstore(p0, i, from_int[i64, 1](k))"
    assert emulate(THREAD + steps).tolist() == [i + i % 2 for i in range(64)]
    shared = "var s = shared[i64, 64]()\nshared_store(s, i, load[1](p0, i))\nblock_barrier()\n"
    shared += "store(p0, i, add(shared_load[1](s, 63 - i), block_max(load[1](p0, i))))"
    assert emulate(THREAD + shared).tolist() == [126 - i for i in range(64)]


@pytest.mark.parametrize(
    ("shape", "dim"), [((1024, 3), 0), ((10003,), 0), ((2, 8192), 1), ((1031, 4), 1), ((40, 331), 1)]
)
def test_prefixes_of_few_rows_are_computed_in_parts(shape: tuple[int, ...], dim: int) -> None:
    """With parts that divide a row and without, by warps and by threads, and rows that are left whole."""
    x = (torch.arange(math.prod(shape)) % 7 - 3).reshape(shape).double()

    def prefixes(x: Tensor) -> tuple[Tensor, ...]:
        return scan.cumsum(x, dim), scan.cumprod(x, dim), scan.cummax(x, dim)[0]

    made = for_gpu(prefixes, x)
    in_parts = [d.name for d in schedule(made.program, GPU).program.definitions() if d.name.endswith("_before")]
    assert len(in_parts) == (0 if shape[0] in (1031, 40) else 3)
    check_emulated(made)


@pytest.mark.parametrize(("columns", "parts", "are_equal"), [(9709, 19, True), (9720, 18, True), (9733, 19, False)])
def test_prefixes_of_parts_that_divide_a_row_are_the_row_s(columns: int, parts: int, are_equal: bool) -> None:
    """A few parts more or less than wanted, if these are equal: no other kernel puts their prefixes in place."""
    made = for_gpu(lambda x: (scan.cumsum(x, 1),), torch.zeros(54, columns))
    names = {d.name: d for d in schedule(made.program, GPU).program.definitions()}
    within = [d for name, d in names.items() if name.endswith("_within")]
    (before,) = (d for name, d in names.items() if name.endswith("_before"))
    assert before.variables[-1].size == parts and bool(within) is not are_equal


def test_vectors_begin_where_odd_rows_do_not(as_if_large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_max_backend.schedule.grid_limits.LONG", 32)
    shapes = [(37, 45), (45,), (37, 1)], [(5, 3, 67), (3, 1), (5, 1, 67)]
    for each in shapes:
        inputs = [(torch.arange(math.prod(s)) % 7 - 3).reshape(s).half() for s in each]

        def sums(x: Tensor, row: Tensor, column: Tensor) -> tuple[Tensor, ...]:
            total = pointwise(lambda a, b, c: a + b * c, x, row, column)
            return total, pointwise(lambda a, b: a * b, total, column)

        made = for_gpu(sums, *inputs)
        nests = schedule(made.program, GPU).steps
        assert any(isinstance(n, GridNest) and n.flat for n in nests)
        check_emulated(made)


@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize("shape", [(301, 18), (301, 32), (70, 3), (9, 8)], ids=str)
def test_short_rows_of_prefixes_share_a_warp(shape: tuple[int, int]) -> None:
    x = (torch.arange(math.prod(shape)) % 7 - 3).reshape(shape)
    made = for_gpu(lambda x: (scan.cumsum(x, 1), *scan.cummax(x, 1)), x)
    nests = [n for n in schedule(made.program, GPU).steps if isinstance(n, GridNest) and n.threads > 1]
    assert len(nests) >= 2 and all(shape[1] <= n.threads < 2 * shape[1] for n in nests)
    assert all((n.each > 1) == (shape[0] > 32) for n in nests)
    check_emulated(made)


@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize("shape", [(37, 45), (5, 7, 11)], ids=str)
def test_a_thread_with_little_to_write_has_several_elements(shape: tuple[int, ...]) -> None:
    x = (torch.arange(math.prod(shape)) % 7 - 3).reshape(shape).half()

    def far_apart(x: Tensor, k: int) -> Tensor:
        return Tensor(x.shape, x.dtype, lambda i: x.at((*i[:-1], i[-1] * k % shape[-1])))

    made = for_gpu(lambda x: (pointwise(lambda a, b: a + b, far_apart(x, 3), far_apart(x, 5)),), x)
    (nest,) = schedule(made.program, GPU).steps
    assert isinstance(nest, GridNest) and nest.each > 1
    check_emulated(made)


@pytest.mark.parametrize("shape", [(64, 40), (96, 700), (33, 129)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("reads_across", [True, False])
def test_rows_are_read_one_way_and_written_the_other(
    shape: tuple[int, int], dtype: torch.dtype, reads_across: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_max_backend.schedule.grid_limits.BUSY", 64)
    monkeypatch.setattr("torch_max_backend.schedule.grid_limits.PROCESSORS", 2)
    x = torch.randn(shape[::-1] if reads_across else shape).to(dtype)

    def turned(x: Tensor) -> tuple[Tensor, ...]:
        return (reduce.softmax(x, 1, False),) if reads_across else (views.t(reduce.softmax(x, 1, False)),)

    made = for_gpu(turned, x.t() if reads_across else x, smooth=True)
    (nest,) = schedule(made.program, GPU).steps
    assert isinstance(nest, GridNest) and nest.columns and 1 < nest.rows * nest.lanes <= 16 and nest.held
    check_emulated(made)


def test_a_short_row_that_is_written_across_is_one_thread_s() -> None:
    made = for_gpu(lambda x: (views.t(reduce.softmax(x, 1, False)),), torch.randn(300_000, 8), smooth=True)
    (nest,) = schedule(made.program, GPU).steps
    assert isinstance(nest, GridNest) and (nest.threads, nest.held) == (1, 8)
    made = for_gpu(lambda x: (views.t(reduce.softmax(x, 1, False)),), torch.randn(70, 8), smooth=True)
    check_emulated(made)


@pytest.mark.usefixtures("as_if_large")
def test_a_thread_has_a_window_of_its_own() -> None:
    """Neighbours' windows overlap."""
    x = (torch.arange(6 * 33 * 33) % 7 - 3).float().reshape(6, 33, 33)

    def windows(x: Tensor) -> tuple[Tensor, ...]:
        shape, taps = ([Index.of(n) for n in of] for of in ((6, 6, 6), (7, 7)))
        return (reduced("sum", shape, taps, lambda i, r: x.at((i[0], i[1] * 5 + r[0], i[2] * 5 + r[1]))),)

    made = for_gpu(windows, x)
    (nest,) = schedule(made.program, GPU).steps
    assert isinstance(nest, GridNest) and nest.threads == 1
    check_emulated(made)


def test_sums_of_parts_of_one_kernel_share_the_next_one() -> None:
    """As the two sums of a weighted mean, whose parts are of one length but for the last."""
    x, w = ((torch.arange(37_449) % n - 3).double() for n in (7, 5))

    def means(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        weighted = pointwise(lambda a, b: a * b, x, w)
        return tuple(reduce.over("sum", v, [0]) for v in (weighted, w, pointwise(lambda a: a + 1, w)))

    made = for_gpu(means, x, w)
    made = dataclasses.replace(made, machine=dataclasses.replace(GPU, block=256))
    assert len(schedule(made.program, made.machine).steps) == 2
    check_emulated(made)


def test_long_rows_are_cut_unless_many_blocks_have_them() -> None:
    """340 blocks of 98,304 elements would end late: the last 76 of them run alone."""
    made = for_gpu(lambda x: (reduce.over("sum", x, [1]),), torch.zeros(340, 98_304))
    assert len(schedule(made.program, GPU).steps) == 2
    made = for_gpu(lambda x: (reduce.over("sum", x, [1]),), torch.zeros(340, 4096))
    assert len(schedule(made.program, GPU).steps) == 1


def test_what_takes_less_than_a_launch_is_computed_again() -> None:
    def added(x: Tensor, row: Tensor) -> tuple[Tensor, ...]:
        dear = row
        for _ in range(6):
            dear = pointwise(lambda e: op("exp", e), dear)
        return (pointwise(lambda a, b: a + b, x, dear),)

    small = for_gpu(added, torch.zeros(28, 1024), torch.zeros(1, 1024))
    large = for_gpu(added, torch.zeros(2**14, 4096), torch.zeros(1, 4096))
    assert [len(schedule(made.program, GPU).steps) for made in (small, large)] == [1, 2]


def test_a_sum_of_everything_is_one_loop_and_adds_up_in_float64() -> None:
    """Parts of rows of an odd length would have no vectors."""
    x = torch.zeros(2048, 4095)
    made = for_gpu(lambda x: (reduce.over("sum", x, [0, 1]), reduce.over("sum", x, [1])), x)
    found = {d.name: d for d in schedule(made.program, GPU).program.definitions()}
    (parts,) = (d for d in found.values() if d.name.endswith("_parts"))
    assert len(parts.reduced) == 1 and parts.body.dtype is torch.float64
    (rows,) = (d for d in found.values() if d.reduced and len(d.variables) == 1 and d.variables[0].size == 2048)
    assert rows.body.dtype is torch.float32


def test_loops_become_one_where_their_parts_stay_in_line_with_memory() -> None:
    """Rows of a power of two, and a number of them that no part has: as one loop they have vectors all the same."""
    made = for_gpu(lambda x: (reduce.over("sum", x, [0, 1, 2]),), torch.zeros(3, 8739, 128).half())
    first, *_ = schedule(made.program, GPU).steps
    assert isinstance(first, GridNest) and first.lanes == 8
    (loop,) = first.stages[0].reduced
    (load,) = loads(*(s.body for s in first.stages[0].statements))
    assert load.index[0].stride(loop) == 1


def test_what_windows_are_made_into_lies_as_their_source() -> None:
    """A sum of neighbours of an image with channels last has channels last, too."""
    x = torch.zeros(4, 30, 30, 16).permute(0, 3, 1, 2)

    def neighbours(x: Tensor) -> tuple[Tensor, ...]:
        shape, taps = ([Index.of(n) for n in of] for of in ((4, 16, 10, 10), (3, 3)))
        return (reduced("sum", shape, taps, lambda i, r: x.at((*i[:2], i[2] * 3 + r[0], i[3] * 3 + r[1]))),)

    made = for_gpu(neighbours, x).program
    (output,) = (name for name, _ in made.outputs)
    done = schedule(made, GPU)
    (layout,) = (done.layouts[d.name] for d in done.program.definitions() if d.name != output)
    assert [int(s.constant) for s in layout.strides] == [1600, 1, 160, 16]


if __name__ == "__main__":
    GOLDEN.write_text(softmax_as_text())
