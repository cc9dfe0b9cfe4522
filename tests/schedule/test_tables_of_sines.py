"""Sines of a table that many elements read: on a GPU they take longer than reading them, and are computed once."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.absent_gpu import trace
from tests.support.loop_programs import noted_programs
from torch_max_backend.schedule.machine import GPU
from torch_max_backend.schedule.plan import schedule

pytestmark = pytest.mark.any_runner("loop programs, of which nothing is run")


@pytest.mark.parametrize(("rows", "kernels"), [(4096, 2), (1, 1)], ids=["many readers", "one"])
def test_tables(rows: int, kernels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = noted_programs(monkeypatch)

    def function(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        return x * angles.cos() + x.flip(-1) * angles.sin()

    trace(function, lambda: torch.empty(rows, 128, 64, device="cuda"), lambda: torch.empty(1, 128, 64, device="cuda"))
    assert len(schedule(found[-1], GPU).steps) == kernels


def test_positions_of_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the angles of a batch are those of one row, sines are computed for that row."""
    found = noted_programs(monkeypatch)

    def function(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = positions.unsqueeze(-1) * torch.arange(64, device=x.device)
        return x * angles.cos() + x.flip(-1) * angles.sin()

    def positions() -> torch.Tensor:
        return torch.empty(128, device="cuda").expand(4096, 128)

    trace(function, lambda: torch.empty(4096, 128, 64, device="cuda"), positions)
    made = schedule(found[-1], GPU).program
    sizes = sorted(math.prod(v.size for v in d.variables) for d in made.definitions())
    assert sizes == [128 * 64, 128 * 64, 4096 * 128 * 64]
