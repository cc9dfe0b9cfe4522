"""Where the smallest difference decides, 16-bit floats are rounded between ops as in eager, and not elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support.harness import STRICT
from tests.support.loop_programs import noted_programs

pytestmark = pytest.mark.any_runner("eager is what eager is held against")

OPTIONS = {**STRICT, "executor": "program"}
DECIDING: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "gt": lambda x, y: torch.where(x * y > y, 1, 2),
    "eq": lambda x, y: x * y == y * 1.5,
    "what is too small": lambda x, y: ((x * 3e-8) > 0).sum(),
    "what is too large": lambda x, y: (x * 60000).isinf(),
    "floor": lambda x, y: (x * y).floor(),
    "ceil": lambda x, y: (x * y).ceil(),
    "trunc": lambda x, y: (x * y).trunc(),
    "round": lambda x, y: (x * y).round(),
    "sign": lambda x, y: (x * 1e-8).sign(),
    "floor_divide": lambda x, y: (x * y) // 0.125,
    "trunc_divide": lambda x, y: torch.div(x * y, 0.125, rounding_mode="trunc"),
    "remainder": lambda x, y: torch.remainder(x * 37, 1.0),
    "fmod": lambda x, y: torch.fmod(x * 37, 1.0),
    "logical_and": lambda x, y: torch.logical_and(x * 3e-8, y),
    "to integers": lambda x, y: (x * y).long(),
    "argmax along rows": lambda x, y: (x * y).argmax(1),
    "argmax down columns": lambda x, y: (x * y).argmax(0),
    "max and its place": lambda x, y: (x * y).max(1)[1],
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", DECIDING)
def test_results_are_eagers(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(700, 65, generator=generator).to(dtype) for _ in range(2))
    function = DECIDING[name]
    found = torch.compile(function, backend="max_backend", options=OPTIONS)(x, y)
    assert torch.equal(found, function(x, y))


def test_other_ops_are_not_rounded_between(monkeypatch: pytest.MonkeyPatch) -> None:
    made = noted_programs(monkeypatch)
    function = torch.compile(lambda x, y: (x * y).relu() + x, backend="max_backend", options=OPTIONS)
    function(torch.randn(8, 9).bfloat16(), torch.randn(8, 9).bfloat16())
    assert "widen" not in str(made[-1])
