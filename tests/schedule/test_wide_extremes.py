"""Extremes of 16-bit floats are found in float32 on a CPU, and are what they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.codegen.test_written_source import program
from tests.support.loop_programs import LoopProgram, check_generated, check_passes
from torch_max_backend.loops import tensor
from torch_max_backend.loops.expr import cast, op, rounded
from torch_max_backend.loops.rules import reduce
from torch_max_backend.loops.tensor import Tensor
from torch_max_backend.schedule.machine import CPU, GPU
from torch_max_backend.schedule.plan import passes

SHORT = [torch.bfloat16, torch.float16]


def extremes(x: Tensor) -> tuple[Tensor, ...]:
    m, n = x.shape
    rows = tensor.reduce("maximum", [m], [n], lambda i, over: x.at((*i, *over)))
    columns = tensor.reduce("minimum", [n], [m], lambda i, over: x.at((*over, *i)))
    return rows, columns, reduce.argmax(x, 1), reduce.argmin(x, 0)


def made_of(dtype: torch.dtype, rows: int = 12, columns: int = 45) -> LoopProgram:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[1, 3], x[2, :2], x[3, 5] = torch.nan, torch.inf, -torch.inf
    x[5, 7] = x[5, 9] = 100  # the place of the first one counts
    return program(extremes, x)


@pytest.mark.parametrize("dtype", SHORT)
def test_accumulators_are_float32(dtype: torch.dtype) -> None:
    text = made_of(dtype).written().source
    assert "infinity[f32" in text and "infinity[bf16" not in text and "infinity[f16" not in text


def test_a_grid_compares_them_as_they_are() -> None:
    made = made_of(torch.bfloat16)
    changed = {m.has_grid: dict(passes(made.program, m))["wide_extremes"] for m in (CPU, GPU)}
    assert "widen<f32>" in str(changed[False]) and "<f32>" not in str(changed[True])


def of_sines(x: Tensor) -> tuple[Tensor, ...]:
    y = tensor.pointwise(lambda a: rounded(op("sin", cast(a, torch.float32)), x.dtype), x)
    return reduce.amax(y, [1]), reduce.amin(y, [0]), reduce.amax(y, [0, 1])


@pytest.mark.parametrize("is_searched", [False, True])
def test_an_extreme_alone_is_rounded_once(is_searched: bool) -> None:
    """A search compares what is rounded, and so does the extreme of the same elements, which it finds, too."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = tensor.pointwise(lambda a: rounded(op("sin", cast(a, torch.float32)), x.dtype), x)
        return (reduce.amax(y, [1]), *([reduce.argmax(y, 1)] if is_searched else []))

    text = program(function, torch.randn(12, 45).bfloat16()).written().source
    assert (text.count("cast[bf16]") == 1) is not is_searched


@pytest.mark.parametrize("dtype", SHORT)
def test_an_extreme_is_one_of_its_elements(dtype: torch.dtype) -> None:
    """What is compared with it, or less it, has been rounded as it has; so has what a place is found of."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        greatest = y.amax(1, keepdim=True)
        return (y == greatest).sum(1), y - greatest, *y.max(0), y.amin(0), y.argmin(0)

    x = torch.randn(40, 300).to(dtype)
    options = {"executor": "auto", "fallback": "error"}
    found = torch.compile(function, backend="max_backend", options=options)(x)
    assert all(map(torch.equal, found, function(x)))


@pytest.mark.sampled
def test_right(tmp_path: Path) -> None:
    made = [made_of(dtype) for dtype in SHORT]
    for dtype in SHORT:
        x = torch.randn(12, 45, generator=torch.Generator().manual_seed(1)).to(dtype)
        x[1, 3], x[:, 7] = torch.nan, 1e-30
        made.append(program(of_sines, x))
    check_generated(made, list(map(check_passes, made)), tmp_path)
