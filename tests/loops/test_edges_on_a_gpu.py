"""Numbers of which torch's kernels for GPUs make something else than those for CPUs: a program has the device's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.emulated_gpu import emulate_gpu
from torch_max_backend.loops.rules.registry import aten

pytestmark = pytest.mark.any_runner("programs without a graph")
NAN = float("nan")


def slope(x: torch.Tensor) -> torch.Tensor:
    return aten.hardswish_backward(torch.full_like(x, 3), x)


def differing(x: torch.Tensor) -> torch.Tensor:
    return torch.cdist(x[None], x[None] + 1, 0.0)


@pytest.mark.parametrize(("function", "on_gpu"), [(slope, [3.0] * 64), (differing, [[64.0]])])
def test_nan(function: Any, on_gpu: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.full((64,), NAN)
    compiled = torch.compile(function, backend="max_backend", options={"executor": "auto", "fallback": "error"})
    assert compiled(x).isnan().all()
    torch._dynamo.reset()
    written = emulate_gpu(monkeypatch)
    assert compiled(x).tolist() == on_gpu
    assert written
