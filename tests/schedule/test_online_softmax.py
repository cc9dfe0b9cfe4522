"""A row's maximum and the sum of its exponentials, found in one pass: on a GPU, by the emulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from tests.codegen.test_emulated_kernels import for_gpu
from tests.codegen.test_grid_rows import nests
from tests.support.grid_programs import check_emulated
from tests.support.loop_programs import LoopProgram
from torch_max_backend.loops.expr import op
from torch_max_backend.loops.rules import reduce
from torch_max_backend.loops.tensor import Tensor, pointwise
from torch_max_backend.schedule.machine import GPU

pytestmark = [pytest.mark.any_runner("programs without a graph")]

INF, NAN = float("inf"), float("nan")


def logsumexp(x: Tensor) -> tuple[Tensor, ...]:
    return (reduce.logsumexp(x, [1]),)


def softmax(x: Tensor) -> tuple[Tensor, ...]:
    return (reduce.softmax(x, 1, False),)


def log_of_scaled(x: Tensor) -> tuple[Tensor, ...]:
    """With what else is found of the row on the way."""
    scaled = pointwise(lambda a: a * 0.5 + 1.0, x)
    return (reduce.log_softmax(scaled, 1, False), reduce.over("sum", scaled, [1]), reduce.argmax(scaled, 1))


def rows(length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows that grow, that are infinite in parts, in whole and at the other end, and one with NaN."""
    x = torch.randn(8, length, generator=torch.Generator().manual_seed(0)) * 3
    x[1] = torch.linspace(-60, 60, length)
    x[2, : length // 2] = -INF
    x[3] = -INF
    x[4, 5] = INF
    x[5, -1] = NAN
    x[6, ::7] = -INF
    x[7] = -1e30
    return x.to(dtype)


def for_few_rows(
    function: Callable[[Tensor], tuple[Tensor, ...]], x: torch.Tensor, cluster: int = GPU.cluster
) -> LoopProgram:
    """A program with kernels as of many rows: these would be in parts, which blocks share."""
    machine = dataclasses.replace(GPU, parts=1, results=(1, 1), cluster=cluster)
    return dataclasses.replace(for_gpu(function, x, smooth=True), machine=machine)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [logsumexp, softmax, log_of_scaled])
def test_a_row_is_read_once_for_both(
    function: Callable[[Tensor], tuple[Tensor, ...]], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_max_backend.schedule.grid_limits.REGISTERS", 4)  # or threads keep it
    made = for_few_rows(function, rows(6000, dtype), cluster=1)
    found = [str(s) for n in nests(made) for stage in n.stages for s in stage.statements]
    assert sum("sum_exp of" in text for text in found) == 1
    assert not any("sum of exp" in text for text in found)
    check_emulated(made)


@pytest.mark.parametrize("length", [5000, 5001, 4096])
def test_a_row_that_is_only_reduced_has_one_pass(length: int) -> None:
    """Some lanes and threads have an element less."""
    made = for_few_rows(logsumexp, rows(length))
    assert any("sum_exp of" in str(n) for n in nests(made))
    check_emulated(made)


def test_a_row_that_threads_keep_is_read_once_anyway() -> None:
    assert not any("sum_exp of" in str(n) for n in nests(for_few_rows(softmax, rows(2048))))


def test_exponentials_of_something_else_have_a_pass_of_their_own() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        top = reduce.over("maximum", x, [1], True)
        return (reduce.over("sum", pointwise(lambda a, m: op("exp", a * 0.5 - m), x, top), [1]),)

    made = for_few_rows(function, rows(3000))
    assert not any("sum_exp of" in str(n) for n in nests(made))
    check_emulated(made)
