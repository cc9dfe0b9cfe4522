"""Small products of 16-bit floats are loops, in whatever way their operands lie, with eager's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from torch_max_backend import reports
from torch_max_backend.loops.small_products import SMALL

pytestmark = pytest.mark.sampled

OPTIONS = {"fallback": "error", "executor": "auto"}
GENERATOR = torch.Generator().manual_seed(0)


def drawn(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*sizes, generator=GENERATOR).to(dtype)


def calls_of(function: Callable[..., torch.Tensor], *given: torch.Tensor) -> dict[str, int]:
    """The library calls of a function, whose results are as close to exact ones as eager's."""
    torch._dynamo.reset()
    got = torch.compile(function, backend="max_backend", options=OPTIONS)(*given)
    exact, eager = function(*(x.double() for x in given)), function(*given)
    assert got.dtype is eager.dtype
    assert got.stride() == eager.stride()
    assert (got.double() - exact).norm() <= 1.05 * (eager.double() - exact).norm() + 1e-6
    return reports()[-1].library_calls


PRODUCTS: dict[str, tuple[Any, ...]] = {
    "rows and rows": (lambda x, w: x @ w.t(), (79, 107), (19, 107)),
    "rows and columns": (lambda x, w: x @ w, (37, 33), (33, 50)),
    "columns and columns": (lambda x, w: x.t() @ w, (33, 37), (33, 50)),
    "columns and rows": (lambda x, w: x.t() @ w.t(), (33, 37), (50, 33)),
    "a linear": (F.linear, (5, 64), (32, 64), (32,)),
    "factors": (lambda x, w, b: torch.addmm(b, x, w, alpha=0.5, beta=2), (9, 16), (16, 24), (24,)),
    "no sum": (lambda x, w, b: torch.addmm(b, x, w, beta=0), (9, 16), (16, 24), (24,)),
    "batches": (lambda x, y: torch.bmm(x, y) * 0.5, (6, 9, 20), (6, 20, 12)),
    "a sum with batches": (lambda b, x, y: torch.baddbmm(b, x, y, alpha=0.3), (6, 9, 12), (6, 9, 20), (6, 20, 12)),
    "one column": (lambda x, y: x @ y, (70, 90), (90, 1)),
    "a depth of one": (lambda x, y: x @ y, (17, 1), (1, 33)),
    "what follows": (lambda x, w: F.gelu(x @ w.t()).softmax(-1), (30, 64), (20, 64)),
    "a convolution of one tap": (F.conv2d, (2, 8, 6, 5), (12, 8, 1, 1), (12,)),
    "a one-dimensional one": (lambda x, w: F.relu(F.conv1d(x, w)), (2, 8, 30), (12, 8, 1)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_results(name: str) -> None:
    function, *sizes = PRODUCTS[name]
    assert calls_of(function, *(drawn(*s) for s in sizes)) == {}


def test_float16() -> None:
    assert calls_of(lambda x, w: x @ w, *(drawn(24, 24, dtype=torch.float16) for _ in range(2))) == {}


def test_a_convolution_with_channels_last() -> None:
    x = drawn(2, 8, 6, 5).to(memory_format=torch.channels_last)
    assert calls_of(F.conv2d, x, drawn(12, 8, 1, 1)) == {}


@pytest.mark.parametrize(
    "given",
    [(drawn(128, 128), drawn(128, SMALL // 128**2 + 1)), (drawn(8, 8).float(), drawn(8, 8).float())],
    ids=["a large one", "float32"],
)
def test_others_are_library_calls(given: tuple[torch.Tensor, ...]) -> None:
    assert calls_of(torch.mm, *given) == {"ATen aten.mm.default": 1}
