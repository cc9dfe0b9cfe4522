"""Sums of exponentials, whose parts are computed with the parts of the maximum that is taken off."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.absent_gpu import trace
from tests.support.emulated_gpu import emulate_gpu
from tests.support.loop_programs import noted_programs
from torch_max_backend.loops.program import Definition
from torch_max_backend.schedule import split
from torch_max_backend.schedule.machine import GPU
from torch_max_backend.schedule.plan import schedule

pytestmark = [pytest.mark.any_runner("programs without a graph"), pytest.mark.sampled]

OPTIONS = {"executor": "auto", "fallback": "error"}
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: x.softmax(0),
    "log_softmax": lambda x: (x * 0.5).log_softmax(0),
    "logsumexp": lambda x: x.logsumexp(0),
    "logsumexp, kept": lambda x: x.logsumexp(0, keepdim=True) * x.sign(),
    "softmin": lambda x: torch.nn.functional.softmin(x, 0),
}


def columns(rows: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers, and columns with infinite ones: in a part, all over, of both signs, and what is none."""
    torch.manual_seed(0)
    x = torch.randn(rows, 8) * 20
    x[: rows // 2, 1] = -math.inf
    x[:, 2] = -math.inf
    x[7, 3] = math.inf
    x[rows // 2 :, 4] = math.inf
    x[9, 5] = math.nan
    x[:, 6] = 1000
    x[rows - 1, 6] = -1000
    return x.to(dtype)


CASES = [
    *[(name, 4096, torch.float32) for name in FUNCTIONS],
    ("softmax", 5003, torch.float32),
    ("log_softmax", 4096, torch.bfloat16),
    ("logsumexp", 5003, torch.bfloat16),
]


@pytest.mark.parametrize(("name", "rows", "dtype"), CASES, ids=str)
def test_results(name: str, rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = []
    exponentials_in_parts = split.exponentials_in_parts

    def noted(*args: Any) -> list[Definition]:
        found = exponentials_in_parts(*args)
        cut.append(bool(found))
        return found

    monkeypatch.setattr(split, "exponentials_in_parts", noted)
    emulate_gpu(monkeypatch)
    function, x = FUNCTIONS[name], columns(rows, dtype)
    found = torch.compile(function, backend="max_backend", options=OPTIONS)(x)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), function(x.double()), rtol=8 * eps, atol=8 * eps, equal_nan=True)
    assert any(cut)


@pytest.mark.parametrize(("name", "kernels"), [("softmax", 3), ("log_softmax", 3), ("logsumexp", 2)])
def test_what_is_read_once(name: str, kernels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel of the parts; what leaves for each element reads it again."""
    programs = noted_programs(monkeypatch)
    trace(FUNCTIONS[name], lambda: torch.empty(16384, 1000, dtype=torch.bfloat16, device="cuda"))
    steps = schedule(programs[-1], GPU).steps
    reading = [s for s in steps if "x0[" in str(s)]
    assert len(steps) == kernels and len(reading) == kernels - 1
