"""Transposes on a GPU: which tiles they take, and what the emulator makes of their text."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import pytest
import torch

from tests.codegen.test_emulated_kernels import for_gpu
from tests.support.grid_programs import check_emulated
from torch_max_backend.loops.expr import cast
from torch_max_backend.loops.index import Var
from torch_max_backend.loops.rules import padding, reduce, views
from torch_max_backend.loops.tensor import Tensor, pointwise
from torch_max_backend.schedule import grid_limits
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.grid_tiles import Tile
from torch_max_backend.schedule.machine import GPU
from torch_max_backend.schedule.plan import schedule

pytestmark = [pytest.mark.any_runner("programs without a graph"), pytest.mark.sampled]

SIDES = [(3, 700), (700, 3), (16, 130), (46, 72), (64, 64), (100, 33), (9, 5), (130, 66)]
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.bool, torch.int8]


def turned(x: Tensor) -> Tensor:
    return views.transpose(x, 1, 2)


def joined(x: Tensor) -> tuple[Tensor, ...]:
    """Parts of which each is read if a condition holds."""
    return (pointwise(lambda a: a, views.cat([turned(x), turned(x), turned(views.slice_(x, 2, 0, 2))], 1)),)


def rolled(x: Tensor) -> tuple[Tensor, ...]:
    return (pointwise(lambda a: a, views.roll(turned(x), [1, -2], [1, 2])),)


def padded(x: Tensor) -> tuple[Tensor, ...]:
    return (pointwise(lambda a: a, views.constant_pad_nd(turned(x), [1, 2, 2, 1])),)


def reflected(x: Tensor) -> tuple[Tensor, ...]:
    """Across memory by the lesser of two indices, and along it."""
    return (pointwise(lambda a: a, padding.reflection_pad(turned(x), [1, 2])),)


def both_ways(x: Tensor) -> tuple[Tensor, ...]:
    """What is read in the order of stores too, and two stores."""
    y = views.reshaped(x, [x.shape[0], x.shape[2], x.shape[1]])
    return pointwise(lambda a, b: a & b if a.dtype is torch.bool else a + b, turned(x), y), turned(x)


def rolled_together(x: Tensor) -> tuple[Tensor, ...]:
    """What is read across and along memory under one condition."""
    y = views.reshaped(x, [x.shape[0], x.shape[2], x.shape[1]])
    both = pointwise(lambda a, b: a & b if a.dtype is torch.bool else a * 2 + b, turned(x), y)
    return (pointwise(lambda a: a, views.roll(both, [1], [2])),)


def of_two(x: Tensor) -> tuple[Tensor, ...]:
    """What is computed of two elements that are read across, and of one along."""
    first, second = turned(views.slice_(x, 2, 0, -1)), turned(views.slice_(x, 2, 1))
    both = pointwise(lambda a, b: a & b if a.dtype is torch.bool else a * 3 + b, first, second)
    y = views.reshaped(views.slice_(x, 2, 1), list(both.shape))
    return (pointwise(lambda a, b: a & b if a.dtype is torch.bool else a - b, both, y),)


FUNCTIONS: list[Callable[[Tensor], tuple[Tensor, ...]]] = [
    lambda x: (turned(x),),
    joined,
    rolled,
    padded,
    reflected,
    both_ways,
    rolled_together,
    of_two,
]


@pytest.fixture
def as_if_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_limits, "LARGE", 8)


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    found = torch.randint(0, 2 if dtype is torch.bool else 50, shape, generator=torch.Generator().manual_seed(0))
    return found.to(dtype)


@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize(
    "function",
    FUNCTIONS,
    ids=["plain", "joined", "rolled", "padded", "reflected", "both_ways", "rolled_together", "of_two"],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results(function: Callable[[Tensor], tuple[Tensor, ...]], dtype: torch.dtype) -> None:
    tiles = 0
    for a, b in SIDES:
        made = for_gpu(function, numbers(dtype, 2, a, b))
        found = schedule(made.program, GPU).steps
        tiles += sum(isinstance(n, GridNest) and n.tile is not None for n in found)
        check_emulated(made)
    assert tiles >= len(SIDES) // 2


@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(8, 4, 301), (6, 5, 130), (301, 4, 8), (3, 40, 6, 50)], ids=str)
def test_short_sides_go_on_in_the_loop_around_them(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """A tile writes and reads whole lines of memory, not 16 bytes of each, where loops in between are beside them."""

    longest = shape.index(max(shape))

    def reversed_(x: Tensor) -> tuple[Tensor, ...]:
        return (views.permute(views.slice_(x, longest, 1), list(range(len(shape)))[::-1]),)

    made = for_gpu(reversed_, numbers(dtype, *(size + (k == longest) for k, size in enumerate(shape))))
    (nest,) = (n for n in schedule(made.program, GPU).steps if isinstance(n, GridNest))
    assert nest.tile is not None and min(nest.tile.sides) >= 30
    check_emulated(made)


def softmax_of_turned(x: Tensor) -> tuple[Tensor, ...]:
    """Over the first dimension; the result lies along the second one, and ``x`` along the third."""
    return (reduce.softmax(turned(x), 0, False),)


@pytest.mark.parametrize("rows", [5, 16, 40])
def test_rows_that_neither_side_runs_along_leave_turning_to_tiles(rows: int) -> None:
    """However short: a thread that has a row is beside others in what it reads, and far from them in what it writes."""
    made = for_gpu(softmax_of_turned, torch.zeros(rows, 600, 700, dtype=torch.bfloat16), smooth=True)
    sums, result = (n for n in schedule(made.program, GPU).steps if isinstance(n, GridNest))
    assert isinstance(result.tile, Tile) and sums.tile is None
    assert sums.vector is not None and len(sums.outer) == 1, "in the order of what is read"


@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize("rows", [5, 16, 40])
def test_softmax_of_turned(rows: int) -> None:
    made = for_gpu(softmax_of_turned, torch.randn(rows, 36, 33, dtype=torch.bfloat16), smooth=True)
    made = dataclasses.replace(made, machine=dataclasses.replace(GPU, turned=1))
    assert len([n for n in schedule(made.program, made.machine).steps if isinstance(n, GridNest)]) == 2
    *_, tiles = made.written().source.split("@export")
    assert len({*re.findall(r"shared\d+", tiles)}) == 1, "the result passes through, and not what it is made of"
    check_emulated(made)


@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize("sides", [(128, 64), (100, 72)], ids=str)
def test_what_is_read_beside_a_tile_is_read_before_its_stores(sides: tuple[int, int]) -> None:
    """A norm's factors of rows and columns: a read behind a store would wait for it."""

    def scaled(x: Tensor, *factors: Tensor) -> tuple[Tensor, ...]:
        y = turned(x)
        for factor in factors:
            y = pointwise(lambda a, b: cast(cast(a, torch.float32) * cast(b, torch.float32), torch.bfloat16), y, factor)
        return (y,)

    a, b = sides
    given = [numbers(torch.bfloat16, 2, a, b), numbers(torch.float32, 2, b, 1), numbers(torch.bfloat16, a)]
    made = for_gpu(scaled, *given)
    text = made.written().source
    assert "block_barrier()" in text
    assert " load" not in text[text.index(" store") :]
    check_emulated(made)


@pytest.mark.parametrize(("width", "lanes"), [(2, 1), (2, 2), (4, 1)])
@pytest.mark.parametrize("sides", [(64, 64), (32, 128), (32, 64), (46, 36), (16, 256), (8, 512), (100, 20)])
def test_neighbours_meet_few_banks(sides: tuple[int, int], width: int, lanes: int) -> None:
    """A warp stores and reads whole banks, each for two threads at most."""
    tile = Tile(Var("i", 4096), Var("j", 4096), sides, (lanes, lanes))
    row = sides[0] // lanes
    places = [(t % row * lanes * tile.pitch(width) + t // row) * width // 4 for t in range(32)]
    met = [len({p for p in places if p % 32 == bank}) for bank in range(32)]
    assert max(met) <= 2


def test_small_planes_take_no_tiles() -> None:
    """Blocks of few elements would leave most threads idle: a thread has the short side, or an element."""
    for sides, inner in [((113, 4), True), ((6, 44), False)]:
        made = for_gpu(lambda x: (turned(x),), numbers(torch.bfloat16, 900, *sides))
        (nest,) = (n for n in schedule(made.program, GPU).steps if isinstance(n, GridNest))
        assert nest.tile is None and bool(nest.stages[0].free) == inner


@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize("function", [FUNCTIONS[0], both_ways], ids=["plain", "both_ways"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "sides", [(48, 3), (3, 48), (40, 4), (4, 40), (64, 8), (8, 64), (30, 2), (16, 7), (5, 32)], ids=str
)
def test_short_sides_are_turned_in_registers(
    function: Callable[[Tensor], tuple[Tensor, ...]],
    dtype: torch.dtype,
    sides: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread has all of the short side, and stores and loads of several elements at once."""
    monkeypatch.setattr(grid_limits, "BUSY", 8)
    made = for_gpu(function, numbers(dtype, 3, *sides))
    nests = [n for n in schedule(made.program, GPU).steps if isinstance(n, GridNest)]
    pairs = [n.interleaved for n in nests if n.interleaved is not None]
    assert pairs and all(p.size == min(sides) for p in pairs)
    check_emulated(made)


def test_stores_of_short_sides_fill_lines() -> None:
    """A thread's store is one vector if it can be, and its neighbour's is the next one."""
    made = for_gpu(lambda x: (turned(x),), numbers(torch.bfloat16, 2000, 4, 128))
    (nest,) = (n for n in schedule(made.program, GPU).steps if isinstance(n, GridNest))
    assert nest.interleaved is not None and nest.interleaved.size * nest.interleaved.lanes * 2 == 16


def test_short_sides_that_run_backwards_are_left() -> None:
    made = for_gpu(lambda x: (turned(views.flip(x, [2])),), numbers(torch.float32, 3000, 60, 3))
    (nest,) = (n for n in schedule(made.program, GPU).steps if isinstance(n, GridNest))
    assert nest.interleaved is None


@pytest.mark.usefixtures("as_if_large")
def test_what_is_shared_is_taken_apart_once() -> None:
    """As text the sum under the condition has 2^30 parts. From 2^40 on it would be kept instead of read twice."""

    def doubled(x: Tensor) -> tuple[Tensor, ...]:
        y = views.reshaped(x, [x.shape[0], x.shape[2], x.shape[1]])
        both = pointwise(lambda a, b: a + b, turned(x), y)
        for _ in range(30):
            both = pointwise(lambda a: (a + a) * 0.5, both)
        return (pointwise(lambda a: a, views.roll(both, [1], [2])),)

    (nest,) = (
        n for n in schedule(for_gpu(doubled, torch.zeros(2, 64, 64)).program, GPU).steps if isinstance(n, GridNest)
    )
    assert nest.tile is not None
