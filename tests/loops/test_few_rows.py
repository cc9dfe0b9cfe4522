"""Products of a few rows with a large matrix are loops that read each row of it once, with eager's results."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torch_max_backend import reports
from torch_max_backend.loops.few_rows import ROWS

pytestmark = pytest.mark.sampled

OPTIONS = {"fallback": "error", "executor": "auto"}
TOLERANCE = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}}


def calls_of(function: nn.Module, x: torch.Tensor, dynamic: bool = False) -> dict[str, int]:
    with torch.no_grad():
        run = torch.compile(function, backend="max_backend", options=OPTIONS, dynamic=dynamic)
        torch.testing.assert_close(run(x), function(x), **TOLERANCE[x.dtype])
    return reports()[-1].library_calls


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [False, True])
def test_results(dtype: torch.dtype, bias: bool) -> None:
    """With and without rows that are left after those at once, and one behind the other."""
    model = nn.Sequential(nn.Linear(1024, 1031, bias), nn.GELU(), nn.Linear(1031, 1024, bias)).to(dtype)
    for rows in (ROWS[dtype][0], 6, ROWS[dtype][-1]):
        torch._dynamo.reset()
        assert calls_of(model, torch.randn(rows, 1024, dtype=dtype)) == {}


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Linear(1024, 1024), torch.randn(ROWS[torch.float32][-1] + 1, 1024)),
        (nn.Linear(512, 1024), torch.randn(4, 512)),
        (nn.Linear(1024, 1024).double(), torch.randn(4, 1024).double()),
    ],
    ids=["many rows", "a small matrix", "float64"],
)
def test_others_are_library_calls(model: nn.Module, x: torch.Tensor) -> None:
    TOLERANCE.setdefault(torch.float64, {"rtol": 1e-12, "atol": 1e-12})
    assert calls_of(model, x) == {"ATen aten.addmm.default": 1}


def test_a_matrix_whose_rows_are_contiguous() -> None:
    matrix = torch.randn(1024, 1024)
    assert calls_of(lambda x: x @ matrix, torch.randn(4, 1024)) == {"ATen aten.mm.default": 1}


def test_symbolic_rows() -> None:
    assert calls_of(nn.Linear(1024, 1024), torch.randn(4, 1024), dynamic=True) == {"ATen aten.addmm.default": 1}
