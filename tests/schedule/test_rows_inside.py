"""Short rows that are computed element by element, inside of the loop around them: where, and right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.codegen.test_written_source import program
from tests.support.loop_programs import LoopProgram, check_generated, check_passes
from torch_max_backend.loops.rules import views
from torch_max_backend.loops.rules.registry import rules
from torch_max_backend.loops.tensor import Tensor
from torch_max_backend.schedule.nest import Nest
from torch_max_backend.schedule.plan import schedule
from torch_max_backend.schedule.rows_inside import PARTS, SHORT

Function = Callable[[Tensor], tuple[Tensor, ...]]


def reflected(x: Tensor) -> tuple[Tensor, ...]:
    return (rules()[torch.ops.aten.reflection_pad2d.default](x, [1, 2, 2, 0]),)


def bordered(x: Tensor) -> tuple[Tensor, ...]:
    return (rules()[torch.ops.aten.constant_pad_nd.default](x, [1, 2, 2, 0], 7),)


def cut_out(x: Tensor) -> tuple[Tensor, ...]:
    inner = views.slice_(views.slice_(x, 2, 1, 6), 3, 2, 7)
    return (rules()[torch.ops.aten.neg.default](inner),)


FUNCTIONS: dict[str, Function] = {"reflected": reflected, "bordered": bordered, "cut out": cut_out}


def images(n: int, c: int, h: int, w: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randint(-9, 10, (n, c, h, w), generator=torch.Generator().manual_seed(0)).to(dtype)


def nest_of(made: LoopProgram) -> Nest:
    (found,) = schedule(made.program).steps
    assert isinstance(found, Nest)
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_run_inside_of_channels(name: str) -> None:
    found = nest_of(program(FUNCTIONS[name], images(64, 20, 9, 8)))
    assert [v.size for v in found.outer] == [64 * 20]
    assert all(len(s.free) == 2 and s.vector in (None, s.free[-1]) for s in found.stages)


@pytest.mark.parametrize(("channels", "width", "loops"), [(PARTS, SHORT + 20, 2), (PARTS - 1, 8, 2), (PARTS, 8, 1)])
def test_long_rows_do_not_and_threads_have_enough(channels: int, width: int, loops: int) -> None:
    assert len(nest_of(program(bordered, images(1, channels, 9, width))).outer) == loops


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float64], ids=str)
def test_they_are_right(dtype: torch.dtype, tmp_path: Path) -> None:
    made = [images(*size, dtype=dtype) for size in [(64, 20, 9, 8), (33, 3, 9, 8), (40, 17, 7, 7)]]
    given = [x.to(memory_format=f) for f in (torch.channels_last, torch.contiguous_format) for x in made]
    programs = [program(f, x) for f in FUNCTIONS.values() for x in given]
    check_generated(programs, [check_passes(p) for p in programs], tmp_path)
