"""Scans on a GPU in which a block has a row: few long rows."""

from __future__ import annotations

import pytest
import torch

from tests.codegen.test_emulated_kernels import for_gpu
from tests.support.grid_programs import check_emulated
from torch_max_backend.loops.rules import scan
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
