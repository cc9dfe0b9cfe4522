"""Kernels of a GPU that read the same rows, of which the second needs the first one's results of its row, are one."""

from __future__ import annotations

import pytest
import torch

from tests.support.absent_gpu import trace
from tests.support.emulated_gpu import emulate_gpu
from tests.support.loop_programs import noted_programs
from torch_max_backend.schedule.machine import GPU
from torch_max_backend.schedule.plan import schedule

pytestmark = pytest.mark.any_runner("loop programs for a GPU that is not there")


def gradient_of_norm(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    slope = grad * weight
    normed = centred * scale
    along = (slope * normed).mean(-1, keepdim=True)
    return scale * (slope - slope.mean(-1, keepdim=True) - normed * along)


def other_rows(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Sums of ``x``, and then of ``grad`` alone with the row's sum."""
    largest = x.amax(-1, keepdim=True)
    return (grad * weight).sum(-1) * torch.sin(largest.sum(-1))


@pytest.mark.parametrize(("function", "kernels"), [(gradient_of_norm, 1), (other_rows, 2)])
def test_launches(function: object, kernels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = noted_programs(monkeypatch)
    rows, columns = 4096, 2048
    made = [lambda: torch.empty(rows, columns, device="cuda")] * 2 + [lambda: torch.empty(columns, device="cuda")]
    trace(function, *made)  # type: ignore[arg-type]
    assert len(schedule(found[-1], GPU).steps) == kernels


@pytest.mark.parametrize("columns", [96, 515, 2048])
def test_results(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_gpu(monkeypatch)
    grad, x, weight = torch.randn(70, columns), torch.randn(70, columns) * 3 + 1, torch.randn(columns)
    options = {"fallback": "error", "executor": "auto"}
    found = torch.compile(gradient_of_norm, backend="max_backend", options=options)(grad, x, weight)
    wanted = gradient_of_norm(grad.double(), x.double(), weight.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)
