"""Sums at few places on a GPU are scattered into copies of these: where, right, and more exact than one by one."""

from __future__ import annotations

import pytest
import torch

from tests.codegen.test_emulated_kernels import for_gpu
from tests.support.grid_emulator import emulated
from tests.support.grid_programs import check_emulated
from tests.support.loop_programs import LoopProgram
from torch_max_backend.compile.cuda_build import build_cubin
from torch_max_backend.loops.program import Scatter
from torch_max_backend.loops.rules.registry import rules
from torch_max_backend.loops.tensor import Tensor
from torch_max_backend.schedule.plan import passes

pytestmark = pytest.mark.any_runner("programs without a graph")

aten = torch.ops.aten


def added(x: Tensor, at: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (rules()[aten.index_add.default](x, 0, at, y),)


def of_pairs(x: Tensor, at: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """At places that two dimensions of indices give."""
    return (rules()[aten.index_put.default](x, [at], y, True),)


def made(places: int, width: int, updates: int, dtype: torch.dtype = torch.float32) -> LoopProgram:
    generator = torch.Generator().manual_seed(0)
    shape = (width,) if width else ()
    x, y = (torch.randint(-3, 4, (n, *shape), generator=generator).to(dtype) for n in (places, updates))
    return for_gpu(added, x, torch.randint(0, places, (updates,), generator=generator), y)


def copies(program: LoopProgram) -> list[int]:
    """The first dimension of what is scattered into, where it is one of copies."""
    *_, (_, last) = passes(program.program, program.machine)
    scattered = [d for d in last.definitions() if isinstance(d.how, Scatter)]
    return [int(d.sizes[0].constant) for d in scattered if "_copies" in d.name]


@pytest.mark.parametrize(
    ("places", "width", "updates", "count"),
    [(33, 0, 262144, [256]), (33, 128, 9000, [16]), (1, 0, 10**6, [512]), (1000, 8, 40_000, []), (40, 8, 2560, [4])],
)
def test_how_many_copies_there_are(places: int, width: int, updates: int, count: list[int]) -> None:
    """About 16 elements are added into one, one after the other; none where few are added up at a place anyway."""
    assert copies(made(places, width, updates)) == count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("width", [0, 3, 8])
def test_sums(width: int, dtype: torch.dtype) -> None:
    """Small numbers, of which sums are exact."""
    check_emulated(made(4, width, 700, dtype))


def test_fewer_roundings() -> None:
    """A sum of 65,536 numbers is right to a unit in the last place; one that adds them one by one, as ATen's on a CPU,
    is not."""
    y, at = torch.rand(1 << 16, generator=torch.Generator().manual_seed(0)), torch.zeros(1 << 16, dtype=torch.int64)
    (found,) = emulated(for_gpu(added, torch.zeros(1), at, y).written())(torch.zeros(1), at, y)
    exact = y.double().sum()
    unit = torch.finfo(torch.float32).eps * exact
    assert (found - exact).abs() <= unit < (torch.zeros(1).index_add(0, at, y) - exact).abs()


def test_kernels_compile() -> None:
    written = made(33, 8, 9000, torch.bfloat16).written()
    assert len(build_cubin(written.source, threads=written.threads, clusters=written.clusters)) > 1000


def test_indices_of_two_dimensions() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(-3, 4, shape, generator=generator).float() for shape in ((5, 4), (30, 23, 4)))
    program = for_gpu(of_pairs, x, torch.randint(0, 5, (30, 23), generator=generator), y)
    assert copies(program) == [8]
    check_emulated(program)


@pytest.mark.parametrize("how", ["amax", "prod"])
def test_other_combiners_have_none(how: str) -> None:
    def combined(x: Tensor, at: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (rules()[aten.scatter_reduce.two](x, 0, at, y, how, include_self=True),)

    x, at, y = torch.ones(4), torch.zeros(700, dtype=torch.int64), torch.ones(700)
    assert copies(for_gpu(combined, x, at, y)) == []
