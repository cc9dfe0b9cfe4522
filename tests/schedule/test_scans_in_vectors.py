"""Scans along memory on a CPU combine the lanes of vectors with each other, and give what they gave one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.codegen.test_written_source import program
from tests.support.loop_programs import LoopProgram, check_generated, check_passes
from torch_max_backend.loops.rules import scan
from torch_max_backend.loops.tensor import Tensor, pointwise

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool]


def values(dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    """Small integers, of which many are equal, of both signs where there are two."""
    x = torch.randint(-3, 4, sizes, generator=torch.Generator().manual_seed(0))
    return (x.abs() if dtype is torch.uint8 else x).to(dtype)


def extremes(x: torch.Tensor) -> LoopProgram:
    return program(lambda t: (*scan.cummax(t, -1), *scan.cummin(t, -1)), x)


def special(dtype: torch.dtype, width: int) -> torch.Tensor:
    """Rows with NaN first, last, twice, in two vectors; of infinities alone; and of zeros of both signs."""
    x = torch.randn(7, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 0] = x[1, -1] = x[2, 3] = x[2, 5] = x[3, 14] = x[3, width // 2] = torch.nan
    x[4], x[5], x[6] = -torch.inf, torch.inf, torch.tensor([0.0, -0.0, -0.0, 0.0]).repeat(width)[:width].to(dtype)
    return x


def in_vectors(made: LoopProgram) -> bool:
    return "moved_up[8](" in made.written().source


def test_which_scans_are() -> None:
    def of(f: Callable[..., Tensor], x: torch.Tensor, dim: int = 1) -> bool:
        return in_vectors(program(lambda t: (f(t, dim),), x))

    x = torch.zeros(8, 64)
    assert of(scan.cumsum, x) and of(scan.cumsum, x.bfloat16()) and of(scan.cumprod, x.long())
    assert not of(scan.cumsum, x.double()) and not of(scan.cumprod, x) and not of(scan.logcumsumexp, x)
    assert not of(scan.cumsum, x, 0), "vectors run along rows there"
    assert in_vectors(extremes(x)) and in_vectors(extremes(x.double()))


@pytest.mark.parametrize("function", [torch.cummax, torch.cummin])
def test_zeros_keep_their_signs(function: Callable[..., tuple[torch.Tensor, ...]]) -> None:
    """The last of equals stays, as in torch."""
    x = special(torch.float32, 40)
    compiled = torch.compile(lambda t: function(t, 1)[0], backend="max_backend", options={"fallback": "error"})
    assert torch.equal(compiled(x)[6].signbit(), function(x, 1)[0][6].signbit())


@pytest.mark.sampled
def test_right_for_every_dtype(tmp_path: Path) -> None:
    made = [extremes(values(dtype, 3, width)) for dtype in DTYPES for width in (16, 77)]
    for dtype in DTYPES:
        made += [program(lambda t: (scan.cumsum(t, -1),), values(dtype, 5, width)) for width in (15, 64, 83)]
    made.append(program(lambda t: (scan.cumprod(t, -1),), values(torch.int64, 2, 35).clamp(1, 2)))
    check_generated(made, list(map(check_passes, made)), tmp_path)


@pytest.mark.sampled
def test_right_with_special_values(tmp_path: Path) -> None:
    floats = [dtype for dtype in DTYPES if dtype.is_floating_point]
    made = [extremes(special(dtype, width)) for dtype in floats for width in (64, 83)]
    check_generated(made, list(map(check_passes, made)), tmp_path)


@pytest.mark.sampled
def test_right_with_what_reads_them(tmp_path: Path) -> None:
    """A scan of what is computed, in any order of memory, and what is computed of it in the same loop."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        doubled = pointwise(lambda e: e * 2, x)
        return tuple(pointwise(lambda e: e * 3, scan.cumsum(doubled, d)) for d in range(3))

    x = values(torch.float32, 4, 33, 50)
    made = [program(function, x.permute(order)) for order in ((0, 1, 2), (2, 0, 1), (0, 2, 1))]
    made += [program(lambda t: scan.cummax(t, 0), x.flatten()[:k]) for k in (2, 16, 17, 400)]
    check_generated(made, list(map(check_passes, made)), tmp_path)


def test_sums_are_as_near_as_in_eager() -> None:
    x = torch.randn(8, 100_000, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(lambda t: t.cumsum(1), backend="max_backend", options={"fallback": "error"})
    exact = x.double().cumsum(1)
    error = (compiled(x) - exact).abs().max().item()
    assert error <= (x.cumsum(1) - exact).abs().max().item() + math.ulp(1.0) * exact.abs().max().item()
