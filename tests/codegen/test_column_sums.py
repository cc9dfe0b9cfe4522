"""One kernel for rows and for sums over them: gradients of norms and of what they are multiplied with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from tests.codegen.test_emulated_kernels import as_if_large, for_gpu  # noqa: F401
from tests.codegen.test_grid_rows import nests
from tests.support.grid_programs import check_emulated
from tests.support.loop_programs import LoopProgram
from torch_max_backend.loops.expr import cast
from torch_max_backend.loops.rules import reduce
from torch_max_backend.loops.tensor import Tensor, pointwise
from torch_max_backend.schedule import grid_limits
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.machine import GPU

pytestmark = [pytest.mark.any_runner("programs without a graph"), pytest.mark.sampled]

Function = Callable[..., tuple[Tensor, ...]]
SIZES = [(160, 16), (70, 48), (131, 24), (67, 33), (130, 129), (80, 1100), (75, 1500)]
"""Rows of less than a warp, of one and several vectors of it, of odd widths; and of several warps: rows are in parts
that are equal, and in others."""


@pytest.fixture
def as_if_many(as_if_large: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(grid_limits, "BUSY", 128)


def wide(x: Tensor) -> Tensor:
    return pointwise(lambda a: cast(a, torch.float32), x)


def norm_gradient(g: Tensor, x: Tensor, scale: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Of what is scaled by a number of its row, and then by a weight."""
    g, x, scale, w = wide(g), wide(x), wide(scale), wide(w)
    weighted = pointwise(lambda a, b: a * b, g, w)
    shared = reduce.over("sum", pointwise(lambda a, b: a * b, weighted, x), [-1], True)
    of_x = pointwise(lambda a, b, c, s: (a - b * c) * s, weighted, x, shared, scale)
    of_w = reduce.over("sum", pointwise(lambda a, b, s: a * b * s, g, x, scale), [0])
    return of_x, of_w


def softmax_gradient(g: Tensor, y: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Of the softmax of a product with a weight, whose gradient needs the row's sum."""
    g, y, x, w = wide(g), wide(y), wide(x), wide(w)
    shared = reduce.over("sum", pointwise(lambda a, b: a * b, g, y), [-1], True)
    of_product = pointwise(lambda a, b, s: a * b - b * s, g, y, shared)
    of_x = pointwise(lambda a, b: a * b, of_product, w)
    return of_x, reduce.over("sum", pointwise(lambda a, b: a * b, of_product, x), [0])


def made(function: Function, rows: int, width: int, dtype: torch.dtype) -> LoopProgram:
    """Of small integers, so that all sums are exact, in whatever order."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(rows, width), (rows, width), (rows, 1 if function is norm_gradient else width), (width,)]
    inputs = [torch.randint(-3, 4, size, generator=generator).to(dtype) for size in sizes]
    if function is norm_gradient:
        inputs[2] = inputs[2].float()
    machine = dataclasses.replace(GPU, parts=2, alone=64, results=(4, 1 << 14), part=rows * width // 4, block=256)
    return dataclasses.replace(for_gpu(function, *inputs), machine=machine)


def matrices(rows: int, width: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Three, and a row, without memory."""
    found = [torch.empty_strided((rows, width), (width, 1), dtype=dtype, device="meta") for _ in range(3)]
    return [*found, torch.empty_strided((width,), (1,), dtype=dtype, device="meta")]


def with_sums(program: LoopProgram) -> list[GridNest]:
    return [n for n in nests(program) if n.part]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_a_norm_s_gradient_and_that_of_its_weight(rows: int, width: int, dtype: torch.dtype, as_if_many: None) -> None:
    program = made(norm_gradient, rows, width, dtype)
    assert len(with_sums(program)) == 1
    check_emulated(program)


@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_sums_of_what_needs_a_result_of_the_row(rows: int, width: int, as_if_many: None) -> None:
    program = made(softmax_gradient, rows, width, torch.float32)
    assert len(with_sums(program)) == 1
    check_emulated(program)


@pytest.mark.parametrize(
    ("rows", "width", "dtype", "blocks", "threads", "at_once"),
    [
        (262144, 128, torch.float32, 528, 32, 16),
        (2097152, 16, torch.float32, 528, 4, 128),
        (65536, 512, torch.bfloat16, 264, 32, 8),
        (32768, 1000, torch.float16, 781, 64, 1),
        (1525201, 22, torch.bfloat16, 528, 4, 64),
        (8192, 4096, torch.float32, 256, 256, 1),
    ],
)
def test_parts_run_at_the_same_time(
    rows: int, width: int, dtype: torch.dtype, blocks: int, threads: int, at_once: int
) -> None:
    """About as many as there are processors, or a multiple, and a thread has few elements of a row."""
    (nest,) = with_sums(for_gpu(softmax_gradient, *matrices(rows, width, dtype), smooth=True))
    assert (-(-nest.parts.constant // nest.share), nest.threads, nest.rows) == (blocks, threads, at_once)
    assert nest.held * nest.lanes <= 16


@pytest.mark.parametrize(
    ("rows", "width", "dtype"), [(2048, 768, torch.float32), (16384, 768, torch.bfloat16), (4096, 64, torch.float32)]
)
def test_few_rows_have_sums_of_their_own(rows: int, width: int, dtype: torch.dtype) -> None:
    """Threads would not be enough, or what they read at once."""
    assert not with_sums(for_gpu(softmax_gradient, *matrices(rows, width, dtype), smooth=True))


@pytest.mark.parametrize(("sums", "are_joined"), [(2, True), (3, False)])
def test_as_many_sums_as_registers_have_room_for(sums: int, are_joined: bool) -> None:
    def function(g: Tensor, y: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        of_x, of_w = softmax_gradient(g, y, x, w)
        others = [reduce.over("sum", pointwise(lambda a, b, k=k: a * b + k, g, y), [0]) for k in range(1, sums)]
        return of_x, of_w, *others

    assert bool(with_sums(for_gpu(function, *matrices(1 << 20, 32, torch.float32), smooth=True))) == are_joined
