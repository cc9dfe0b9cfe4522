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
    g, x, w = wide(g), wide(x), wide(w)
    weighted = pointwise(lambda a, b: a * b, g, w)
    shared = reduce.over("sum", pointwise(lambda a, b: a * b, weighted, x), [-1], True)
    of_x = pointwise(lambda a, b, c, s: (a - b * c) * s, weighted, x, shared, scale)
    of_w = reduce.over("sum", pointwise(lambda a, b, s: a * b * s, g, x, scale), [0])
    return of_x, of_w


def softmax_gradient(g: Tensor, y: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Of the softmax of a product with a weight, whose gradient needs the row's sum."""
    shared = reduce.over("sum", pointwise(lambda a, b: a * b, g, y), [-1], True)
    of_product = pointwise(lambda a, b, s: a * b - b * s, g, y, shared)
    of_x = pointwise(lambda a, b: a * b, of_product, w)
    return of_x, reduce.over("sum", pointwise(lambda a, b: a * b, of_product, x), [0])


def made(function: Function, rows: int, width: int, dtype: torch.dtype) -> LoopProgram:
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.randn(rows, width, generator=generator).to(dtype) for _ in range(3)]
    weight = torch.randn(width, generator=generator).to(dtype)
    if function is norm_gradient:
        matrices[2] = torch.rand(rows, 1, generator=generator)
    found = for_gpu(function, *matrices, weight, smooth=True)
    machine = dataclasses.replace(GPU, parts=2, alone=64, results=(4, 1 << 14), part=rows * width // 4, block=256)
    return dataclasses.replace(found, machine=machine)


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
    matrices = [torch.empty_strided((rows, width), (width, 1), dtype=dtype, device="meta") for _ in range(3)]
    weight = torch.empty_strided((width,), (1,), dtype=dtype, device="meta")
    (nest,) = with_sums(for_gpu(softmax_gradient, *matrices, weight, smooth=True))
    assert (-(-nest.parts.constant // nest.share), nest.threads, nest.rows) == (blocks, threads, at_once)
    assert nest.held * nest.lanes <= 16


@pytest.mark.parametrize(("rows", "width"), [(2048, 768), (16384, 768), (4096, 64), (1 << 20, 1 << 5)])
def test_few_rows_and_wide_sums_are_kernels_of_their_own(rows: int, width: int) -> None:
    """Where threads would not be enough, or what they read at once; and where more is summed than registers have room
    for."""

    def three(g: Tensor, y: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        of_x, of_w = softmax_gradient(g, y, x, w)
        others = [reduce.over("sum", pointwise(lambda a, b, k=k: a * b + k, g, z), [0]) for k, z in enumerate((x, y))]
        return of_x, of_w, *others

    dtype = torch.bfloat16 if rows == 16384 else torch.float32
    matrices = [torch.empty_strided((rows, width), (width, 1), dtype=dtype, device="meta") for _ in range(3)]
    weight = torch.empty_strided((width,), (1,), dtype=dtype, device="meta")
    assert not with_sums(for_gpu(three if rows >= 1 << 20 else softmax_gradient, *matrices, weight, smooth=True))
