"""Loops over two, four or eight neighbours in memory as vectors whose lanes are written in turns: where, and right."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.codegen.test_written_source import program
from tests.support.loop_programs import LoopProgram, check_generated, check_passes
from torch_max_backend.loops.rules import views
from torch_max_backend.loops.rules.registry import rules
from torch_max_backend.loops.tensor import Tensor, pointwise

Function = Callable[[Tensor], tuple[Tensor, ...]]


def twice_the_size(x: Tensor) -> tuple[Tensor, ...]:
    return (rules()[torch.ops.aten.upsample_nearest2d.default](x, [2 * s.constant for s in x.shape[2:]]),)


def shuffled(r: int) -> Function:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        n, c, h, w = (s.constant for s in x.shape)
        parts = views.permute(views.view(x, [n, c // r**2, r, r, h, w]), [0, 1, 4, 2, 5, 3])
        y = views.reshaped(parts, [n, c // r**2, h * r, w * r])
        return (y, pointwise(lambda a: operator.xor(a, a) if a.dtype is torch.bool else a + a, y))

    return function


def pairs(x: Tensor) -> tuple[Tensor, ...]:
    """Sums and differences side by side, as of two coordinates that are turned."""
    y = views.slice_(x, 3, 1, x.shape[3])
    x = views.slice_(x, 3, 0, y.shape[3])
    low = pointwise(lambda a, b: a & b if a.dtype is torch.bool else a + b, x, y)
    high = pointwise(lambda a, b: a ^ b if a.dtype is torch.bool else a - b, x, y)
    joined = views.cat([views.unsqueeze(low, 4), views.unsqueeze(high, 4)], 4)
    return (views.reshaped(joined, [*joined.shape[:3], joined.shape[3] * 2]),)


def last(x: Tensor) -> tuple[Tensor, ...]:
    """Eight channels behind the places of an image."""
    n, c, h, w = (s.constant for s in x.shape)
    return (views.reshaped(views.permute(views.view(x, [n * c // 8, 8, h * w]), [0, 2, 1]), [n * c // 8, h * w * 8]),)


FUNCTIONS: dict[str, Function] = {
    "twice": twice_the_size, "shuffled 2": shuffled(2), "shuffled 4": shuffled(4), "pairs": pairs, "last": last
}  # fmt: skip
NEIGHBOURS = {"shuffled 4": 4, "last": 8}


def numbers(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    found = torch.randint(0, 2 if dtype is torch.bool else 50, shape, generator=torch.Generator().manual_seed(0))
    return found.to(dtype)


def stores(made: LoopProgram) -> str:
    return made.written().source


@pytest.mark.parametrize("name", FUNCTIONS)
def test_lanes_are_written_in_turns(name: str) -> None:
    text = stores(program(FUNCTIONS[name], numbers(2, 16, 10, 20, dtype=torch.float32)))
    assert f"store_{NEIGHBOURS.get(name, 2)}_in_turns(" in text
    assert "_in_turns_masked(" in text, "what is left of vectors of 16"
    assert "store(" not in text and "store_strided" not in text


def test_short_rows_and_three_neighbours_are_not() -> None:
    assert "in_turns" not in stores(program(twice_the_size, numbers(2, 16, 10, 7, dtype=torch.float32)))
    assert "in_turns" not in stores(program(shuffled(3), numbers(2, 18, 10, 20, dtype=torch.float32)))


def channels_first(x: Tensor) -> tuple[Tensor, ...]:
    """What lies in rows of channels, as rows of places; rows of an image are not behind each other."""
    return (
        pointwise(lambda a: operator.xor(a, a) if a.dtype is torch.bool else a + a, views.permute(x, [0, 3, 1, 2])),
    )


@pytest.mark.parametrize("width", [5, 8])
def test_what_is_read_along_memory_is_turned_in_halves_of_blocks(width: int) -> None:
    text = stores(program(channels_first, numbers(3, 8, 11, 21, dtype=torch.float32)[:, :, :width]))
    assert ("turn_half_a_block(" if width == 8 else "turn_block(") in text
    assert "strided" not in text and "in_turns" not in text


@pytest.mark.parametrize("width", [2, 8])
def test_short_rows_of_a_table_are_read_as_they_are(width: int) -> None:
    table, places = numbers(50, width, dtype=torch.float32), torch.randint(0, 50, (4000,))
    text = stores(program(lambda x, i: (rules()[torch.ops.aten.embedding.default](x, i),), table, places))
    assert f"load[{width}](" in text and "load_at" not in text and "in_turns" not in text


def padded(x: Tensor) -> tuple[Tensor, ...]:
    """The neighbours of a channels-last image's edges are its last elements; the result has channels last, too."""
    y = rules()[torch.ops.aten.replication_pad2d.default](x, [2, 2, 2, 2])
    return (pointwise(lambda a: a, views.permute(y, [0, 2, 3, 1])),)


def channels_last(channels: int, dtype: torch.dtype) -> torch.Tensor:
    return numbers(3, channels, 9, 12, dtype=dtype).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(("channels", "is_in_turns"), [(2, True), (4, False), (8, False)])
def test_channels_beyond_an_edge_are_read_as_they_lie(channels: int, is_in_turns: bool) -> None:
    text = stores(program(padded, channels_last(channels, torch.float32)))
    assert ("in_turns" in text) is is_in_turns and (f"load[{channels}](" in text) is not is_in_turns


def test_one_long_row_is_shared_among_threads() -> None:
    made = program(pairs, numbers(1, 1, 1, 20_001, dtype=torch.float32))
    assert "var total: Int = 5" in stores(made) and "_in_turns(" in stores(made)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool], ids=str)
def test_they_are_right(dtype: torch.dtype, tmp_path: Path) -> None:
    sizes = [(2, 16, 10, 20), (1, 16, 3, 8), (1, 16, 2, 48), (1, 16, 1, 33)]
    programs = [program(f, numbers(*size, dtype=dtype)) for f in FUNCTIONS.values() for size in sizes]
    wide = numbers(3, 4, 11, 21, dtype=dtype)
    programs += [program(channels_first, wide[:, :, :width]) for width in (3, 5, 7, 8)]
    programs += [program(padded, channels_last(channels, dtype)) for channels in (2, 4, 8)] * dtype.is_floating_point
    check_generated(programs, [check_passes(p) for p in programs], tmp_path)
