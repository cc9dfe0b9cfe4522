"""Small products are loops, in whatever way their operands lie, with eager's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from torch_max_backend import reports
from torch_max_backend.loops.small_products import DTYPES, SMALL

pytestmark = pytest.mark.sampled

OPTIONS = {"fallback": "error", "executor": "auto"}
GENERATOR = torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _from_the_same_numbers() -> None:
    GENERATOR.manual_seed(0)


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
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_results(name: str, dtype: torch.dtype) -> None:
    function, *sizes = PRODUCTS[name]
    assert calls_of(function, *(drawn(*s, dtype=dtype) for s in sizes)) == {}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_other_dtypes(dtype: torch.dtype) -> None:
    assert calls_of(lambda x, w: x @ w, *(drawn(24, 24, dtype=dtype) for _ in range(2))) == {}


LINEARS = [(64, 64, 64), (16, 32, 32), (3, 100, 30), (70, 12, 4), (128, 32, 128)]


@pytest.mark.parametrize("sizes", LINEARS, ids=str)
def test_linears(sizes: tuple[int, int, int]) -> None:
    """Whatever of rows, columns and sums there is most of; the errors are no larger than eager's."""
    rows, columns, depth = sizes
    given = (drawn(rows, depth, dtype=torch.float32), drawn(columns, depth, dtype=torch.float32))
    bias = drawn(columns, dtype=torch.float32)
    for f in (
        F.linear,
        lambda x, w, b: F.layer_norm(F.linear(x, w, b), b.shape),
        lambda x, w, b: (x @ w.t()).relu() @ w,
    ):
        assert calls_of(f, *given, bias) == {}


def test_one_number() -> None:
    """Eager's error of a single number may be none; ours is small beside what is added up."""
    x, w = drawn(1, 128, dtype=torch.float32), drawn(1, 128, dtype=torch.float32)
    got = torch.compile(F.linear, backend="max_backend", options=OPTIONS)(x, w)
    assert (got.double() - F.linear(x.double(), w.double())).abs() <= 2**-24 * F.linear(x.abs(), w.abs())


def test_what_is_not_finite_and_what_is_empty() -> None:
    x, w = drawn(40, 33, dtype=torch.float32), drawn(40, 33, dtype=torch.float32)
    x[0, 1], x[2, 3], w[5, 6] = torch.nan, torch.inf, -torch.inf
    w[7, 3] = 0  # times infinity
    for given in ((x, w), (x[:0], w), (x, w[:0]), (x[:, :0], w[:, :0])):
        torch._dynamo.reset()
        compiled = torch.compile(F.linear, backend="max_backend", options=OPTIONS)
        torch.testing.assert_close(compiled(*given), F.linear(*given), equal_nan=True)


def test_symbolic_sizes_are_a_librarys() -> None:
    compiled = torch.compile(F.linear, backend="max_backend", options=OPTIONS, dynamic=True)
    w = drawn(32, 16, dtype=torch.float32)
    for rows in (5, 9):
        x = drawn(rows, 16, dtype=torch.float32)
        torch.testing.assert_close(compiled(x, w), F.linear(x, w))


def test_a_convolution_with_channels_last() -> None:
    x = drawn(2, 8, 6, 5).to(memory_format=torch.channels_last)
    assert calls_of(F.conv2d, x, drawn(12, 8, 1, 1)) == {}


@pytest.mark.parametrize(
    "given",
    [(drawn(128, 128, dtype=dtype), drawn(128, SMALL // 128**2 + 1, dtype=dtype)) for dtype in DTYPES[:3:2]],
    ids=["bfloat16", "float32"],
)
def test_others_are_library_calls(given: tuple[torch.Tensor, ...]) -> None:
    assert calls_of(torch.mm, *given) == {"ATen aten.mm.default": 1}
