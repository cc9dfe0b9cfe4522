"""Scans on a GPU in which a block has a row: few long rows."""

from __future__ import annotations

import pytest
import torch

from tests.codegen.test_emulated_kernels import for_gpu
from tests.support.grid_programs import check_emulated
from torch_max_backend.loops.rules import scan
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.machine import GPU
from torch_max_backend.schedule.plan import schedule

pytestmark = [pytest.mark.any_runner("programs without a graph"), pytest.mark.sampled]
FUNCTIONS = {
    "cumsum": lambda x: (scan.cumsum(x, 1),),
    "cumprod": lambda x: (scan.cumprod(x, 1),),
    "cummax": lambda x: scan.cummax(x, 1),
    "cummin": lambda x: scan.cummin(x, 1),
    "logcumsumexp": lambda x: (scan.logcumsumexp(x, 1),),
}


@pytest.mark.parametrize("length", [64, 100, 643, 1024])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results(name: str, length: int) -> None:
    numbers = torch.randint(-3, 4, (3, length), generator=torch.Generator().manual_seed(length)).float()
    numbers = numbers.sign() if name == "cumprod" else numbers
    made = for_gpu(FUNCTIONS[name], numbers, smooth=name == "logcumsumexp")
    found = [n for n in schedule(made.program, GPU).steps if isinstance(n, GridNest)]
    assert max(n.threads for n in found) >= 64
    check_emulated(made)


@pytest.mark.parametrize("shape", [(300, 8), (300, 21), (70, 100), (3, 4096), (4, 5000)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sums_of_exponentials(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Of numbers far from each other, with infinities and NaN, by lanes, warps, blocks and in parts."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 40
    x[0, 3], x[1, :3], x[2, 5], x[-1, 2] = torch.inf, -torch.inf, -torch.inf, torch.nan
    x[2, 6] = x[2, 7] = torch.inf
    check_emulated(for_gpu(lambda x: (scan.logcumsumexp(x, 1),), x.to(dtype), smooth=True))


def test_few_long_rows_are_cut_in_parts() -> None:
    made = for_gpu(lambda x: (scan.logcumsumexp(x, 1),), torch.zeros(1).expand(4, 1 << 17), smooth=True)
    within, *_ = (n for n in schedule(made.program, GPU).steps if isinstance(n, GridNest))
    assert "f64" not in made.written().source
    assert cost.count(within.outer) >= 1024
