"""What is scattered into pieces of rows is copied by the threads that update it: where, and right."""

from __future__ import annotations

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

aten = torch.ops.aten


def added(x: Tensor, at: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (rules()[aten.index_add.default](x, 0, at, y),)


def put(x: Tensor, at: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (rules()[aten.index_put.default](x, [at], y, True),)


def greatest(x: Tensor, at: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    index = views.expand(views.unsqueeze(at, 1), list(y.shape))
    return (rules()[aten.scatter_reduce.two](x, 0, index, y, "amax", include_self=True),)


def scattering(
    function: object, width: int, dtype: torch.dtype = torch.float32, across: bool = False, rows: int = 40
) -> LoopProgram:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(-9, 10, (n, width), generator=generator).to(dtype) for n in (rows, 90))
    at = torch.randint(0, 40, (90,), generator=generator)
    return program(function, x.t().contiguous().t() if across else x, at, y)  # type: ignore[arg-type]


def nests(made: LoopProgram) -> list[Nest]:
    return [n for n in schedule(made.program).steps if isinstance(n, Nest)]


@pytest.mark.parametrize("function", [added, put])
@pytest.mark.parametrize(("width", "pieces"), [(128, 2), (300, 4), (64, 0)])
def test_pieces_of_rows_are_copied_by_their_threads(function: object, width: int, pieces: int) -> None:
    made = nests(scattering(function, width))
    if pieces:
        assert [v.size for v in made[0].outer] == [pieces] and len(made[0].stages) == 2
    else:  # one thread adds, and all of them copy
        assert [len(n.stages) for n in made[:2]] == [1, 1]


def test_a_tensor_of_which_little_is_updated_is_copied_line_by_line() -> None:
    assert len(nests(scattering(added, 128, rows=180))[0].stages) == 2
    assert [len(n.stages) for n in nests(scattering(added, 128, rows=181))[:2]] == [1, 1]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float64], ids=str)
def test_they_are_right(dtype: torch.dtype, tmp_path: Path) -> None:
    programs = [
        scattering(f, width, dtype, across)
        for f in (added, put, greatest)
        for width in (128, 300, 20)
        for across in (False, True)
    ]
    check_generated(programs, [check_passes(p) for p in programs], tmp_path)
