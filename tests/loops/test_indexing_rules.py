"""Rules of indexing, scatters and scans: each runs as a program, and gives what eager gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_max_backend
from torch_max_backend.base.errors import OutOfRangeError
from torch_max_backend.diagnostics import report

pytestmark = pytest.mark.sampled

aten = torch.ops.aten
OPTIONS = {"fallback": "error", "executor": "auto"}
Function = Callable[..., Any]


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(shape, generator=generator)
    return x > 0 if dtype is torch.bool else (x * 4).to(dtype)


def integers(high: int, *shape: int, low: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(5))


def ties(*shape: int) -> torch.Tensor:
    return integers(4, *shape).float()


def with_nan(*shape: int) -> torch.Tensor:
    x = numbers(*shape)
    x.view(-1)[5::7] = torch.nan
    return x


BF16, I32, I64, BOOL = torch.bfloat16, torch.int32, torch.int64, torch.bool
X, ROWS = numbers(9, 40), integers(9, 7, low=-9)

READS: list[tuple[str, Function, list[Any]]] = [
    ("index of rows", lambda x, i: x[i], [X, ROWS]),
    ("index of columns", lambda x, i: x[:, i], [X, integers(40, 21, low=-40)]),
    ("index of both", lambda x, i, j: x[i, j], [X, ROWS, integers(40, 7)]),
    ("index, broadcast", lambda x, i, j: x[i[:, None], j], [X, ROWS, integers(40, 5)]),
    ("index of the middle", lambda x, i: x[:, i], [numbers(3, 5, 20), integers(5, 2, 3)]),
    ("index, apart", lambda x, i, j: x[i, :, j], [numbers(3, 5, 20), integers(3, 4), integers(20, 4)]),
    ("index by a number", lambda x, i: aten.index(x, [i]) + 1, [X, torch.tensor(-3)]),
    ("index by int32", lambda x, i: x[i.int()], [X, ROWS]),
    ("index of bfloat16", lambda x, i: x[i] * 2, [numbers(9, 40, dtype=BF16), ROWS]),
    ("index of int64", lambda x, i: x[i], [numbers(9, 40, dtype=I64), ROWS]),
    ("index of bool", lambda x, i: ~x[i], [numbers(9, 40, dtype=BOOL), ROWS]),
    ("index of columns in memory", lambda x, i: x.t()[:, i.abs()], [numbers(40, 9).t().contiguous(), ROWS]),
    ("index, empty", lambda x, i: x[i] + 1, [X, torch.zeros(0, dtype=I64)]),
    ("index by a computed index", lambda x, i: x[i * 2 % 9], [X, ROWS]),
    ("index by a range", lambda x: x[torch.arange(8, -1, -2)] * 2, [X]),
    ("index by an index", lambda x, i, j: x[i[j]], [X, ROWS, integers(7, 30)]),
    ("index_select", lambda x, i: x.index_select(1, i), [X, integers(40, 9)]),
    ("index_select of a number", lambda x, i: x.index_select(0, i) + 1, [torch.tensor(3.0), torch.zeros(1, dtype=I64)]),
    ("gather along columns", lambda x, i: x.gather(1, i), [X, integers(40, 9, 13)]),
    ("gather along rows", lambda x, i: x.gather(0, i), [X, integers(9, 4, 33)]),
    ("gather of bfloat16", lambda x, i: x.gather(-1, i).exp(), [numbers(9, 40, dtype=BF16), integers(40, 9, 40)]),
    ("gather, empty", lambda x, i: x.gather(1, i) + 1, [X, torch.zeros(9, 0, dtype=I64)]),
    ("gather of a number", lambda x, i: x.gather(0, i) + 1, [torch.tensor(2.0), torch.tensor(0)]),
    ("take", lambda x, i: x.take(i), [X, integers(360, 6, 5, low=-360)]),
    ("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 1), [X, integers(40, 9, 3)]),
    ("embedding", lambda w, i: F.embedding(i, w), [numbers(30, 17), integers(30, 4, 6)]),
    ("embedding of int32", lambda w, i: F.embedding(i, w).sum(1), [numbers(30, 64), integers(30, 4, 6).int()]),
    ("one_hot", lambda i: F.one_hot(i, 11), [integers(11, 3, 8)]),
    ("bucketize", lambda x, b: torch.bucketize(x, b), [with_nan(50), torch.linspace(-3, 3, 12)]),
    ("bucketize, right", lambda x, b: torch.bucketize(x, b, right=True, out_int32=True), [ties(50), torch.arange(4.0)]),
    ("searchsorted", lambda x, b: torch.searchsorted(b, x), [numbers(3, 20), numbers(3, 9).sort().values]),
    ("cross_entropy", lambda x, i: F.cross_entropy(x, i), [X, integers(40, 9)]),
]

WRITES: list[tuple[str, Function, list[Any]]] = [
    ("scatter along columns", lambda x, i, y: x.scatter(1, i, y), [X, integers(40, 9, 5), numbers(9, 5)]),
    ("scatter along rows", lambda x, i, y: x.scatter(0, i, y), [X, torch.argsort(numbers(9, 30), 0), numbers(9, 33)]),
    ("scatter of a number", lambda x, i: x.scatter(1, i, 3.5), [X, integers(40, 9, 5)]),
    ("scatter_add along columns", lambda x, i, y: x.scatter_add(1, i, y), [X, integers(40, 9, 90), numbers(9, 90)]),
    ("scatter_add along rows", lambda x, i, y: x.scatter_add(0, i, y), [X, integers(9, 50, 37), numbers(50, 37)]),
    ("scatter_add of a line", lambda x, i, y: x.scatter_add(0, i, y), [numbers(9), integers(9, 99), numbers(99)]),
    (
        "scatter_add of what is computed",
        lambda x, i, y: (x * 2).scatter_add(0, i, y.exp()) + 1,
        [X, integers(9, 9, 40), X],
    ),
    (
        "scatter_add of bfloat16",
        lambda x, i, y: x.scatter_add(0, i, y),
        [X.bfloat16(), integers(9, 9, 40), X.bfloat16()],
    ),
    ("scatter_add of int64", lambda x, i, y: x.scatter_add(1, i, y), [X.long(), integers(40, 9, 40), X.long()]),
    ("scatter_add, empty", lambda x, i, y: x.scatter_add(0, i, y) + 1, [X, torch.zeros(0, 40, dtype=I64), X]),
    (
        "scatter_add to a number",
        lambda x, i, y: x.scatter_add(0, i, y),
        [torch.tensor(1.0), torch.tensor(0), torch.tensor(2.0)],
    ),
    ("scatter with multiply", lambda x, i, y: x.scatter(1, i, y, reduce="multiply"), [X, integers(40, 9, 40), X]),
    ("index_put", lambda x, i, y: x.index_put((i,), y), [X, torch.tensor([3, -1, 0]), numbers(3, 40)]),
    ("index_put of pairs", lambda x, i, j: x.index_put((i, j), torch.tensor(5.0)), [X, ROWS, integers(40, 7)]),
    ("index_put, summed", lambda x, i, y: x.index_put((i,), y, True), [X, integers(9, 20, low=-9), numbers(20, 40)]),
    (
        "index_put of columns",
        lambda x, i, y: aten.index_put(x, [None, i], y, True),
        [X, integers(40, 20), numbers(9, 20)],
    ),
    (
        "index_put, apart",
        lambda x, i, y: aten.index_put(x, [i, None, i], y, True),
        [numbers(4, 5, 6), integers(4, 9), numbers(9, 5)],
    ),
    ("index_put by a mask", lambda x, m: x.index_put((m,), torch.tensor(2.0)), [X, X > 1]),
    ("index_put by a mask of rows", lambda x, m, y: x.index_put((m,), y), [X, numbers(9, dtype=BOOL), numbers(40)]),
    ("assignment in place", lambda x, i, y: x.mul_(2).index_put_((i,), y), [X, torch.tensor([3, 1]), numbers(2, 40)]),
    ("index_add of rows", lambda x, i, y: x.index_add(0, i, y), [X, integers(9, 50), numbers(50, 40)]),
    (
        "index_add of wide rows",
        lambda x, i, y: x.index_add(0, i, y),
        [numbers(9, 500), integers(9, 50), numbers(50, 500)],
    ),
    ("index_add of columns", lambda x, i, y: x.index_add(1, i, y), [X, integers(40, 50), numbers(9, 50)]),
    ("index_add times alpha", lambda x, i, y: x.index_add(0, i, y, alpha=2), [X, integers(9, 5), numbers(5, 40)]),
    (
        "index_add of bfloat16",
        lambda x, i, y: x.index_add(0, i, y),
        [X.bfloat16(), integers(9, 30), numbers(30, 40, dtype=BF16)],
    ),
    ("index_copy", lambda x, i, y: x.index_copy(0, i, y), [X, torch.tensor([3, 1]), numbers(2, 40)]),
    ("index_fill", lambda x, i: x.index_fill(1, i, 7.0), [X, integers(40, 5, low=-40)]),
    ("put", lambda x, i, y: x.put(i, y, accumulate=True), [X, integers(360, 99, low=-360), numbers(99)]),
    ("slice_scatter", lambda x, y: torch.slice_scatter(x, y, 1, 3, 33, 2), [X, numbers(9, 15)]),
    ("slice_scatter in place", lambda x, y: x.clone()[2:5].copy_(y), [X, numbers(3, 40)]),
    ("select_scatter", lambda x, y: torch.select_scatter(x, y, 0, -2), [X, numbers(40)]),
    *(
        (f"diagonal_scatter at {k}", lambda x, y, k=k: torch.diagonal_scatter(x, y, k), [X, X.diagonal(k) * 2])
        for k in (0, 3, -2, 35, -8)
    ),
    (
        "diagonal_scatter of planes",
        lambda x, y: torch.diagonal_scatter(x, y, -1, 2, 0),
        [numbers(4, 3, 5), numbers(3, 4)[:, :4]],
    ),
    ("a diagonal in place", lambda x: x.clone().diagonal().mul_(2), [X]),
    ("to what is not contiguous", lambda x, i, y: x.t().index_add(1, i, y), [X, integers(9, 20), numbers(40, 20)]),
    (
        "a gradient of rows",
        lambda g, i: aten.embedding_dense_backward(g, i, 30, 3, False),
        [numbers(4, 9, 40), integers(30, 4, 9)],
    ),
    (
        "a gradient by frequency",
        lambda g, i: aten.embedding_dense_backward(g, i, 9, -1, True),
        [numbers(44, 40), integers(9, 44)],
    ),
]
WRITES += [
    (
        f"scatter_reduce {how}{'' if own else ' without self'} of {name}",
        lambda x, i, y, how=how, own=own: x.scatter_reduce(1, i, y, how, include_self=own),
        [x, integers(40, 9, 55), y],
    )
    for how in ("sum", "prod", "mean", "amax", "amin")
    for own in (True, False)
    for name, x, y in [("float32", X, with_nan(9, 55)), ("int64", X.long(), numbers(9, 55, dtype=I64))]
]

SCANS: list[tuple[str, Function, list[Any]]] = [
    (f"{op.__name__} along {dim} of {name}", lambda x, op=op, dim=dim: op(x, dim), [x])
    for op in (torch.cumsum, torch.cumprod, torch.cummax, torch.cummin)
    for dim in (0, 1)
    for name, x in [
        ("float32", numbers(33, 21)),
        ("bfloat16", numbers(9, 40, dtype=BF16)),
        ("int32", numbers(9, 20, dtype=I32)),
        ("bool", numbers(9, 20, dtype=BOOL)),
    ]
    if not (
        op is torch.cumprod and x.dtype is BF16
    )  # its products are not equal where torch rounds between two vectors
]
SCANS += [
    ("logcumsumexp along 0", lambda x: x.logcumsumexp(0), [numbers(33, 21)]),
    ("logcumsumexp along 1", lambda x: x.logcumsumexp(1), [numbers(9, 40)]),
    (
        "logcumsumexp of infinities",
        lambda x: x.logcumsumexp(0),
        [torch.tensor([-torch.inf, -torch.inf, 1, torch.inf, 2])],
    ),
    ("cummax of ties", lambda x: x.cummax(1), [ties(9, 40)]),
    ("cummin of NaN", lambda x: x.cummin(1), [with_nan(9, 40)]),
    ("cummax of NaN", lambda x: x.cummax(0), [with_nan(9, 40)]),
    ("cumsum of a number", lambda x: x.cumsum(0) + 1, [torch.tensor(2.0)]),
    ("cummax of a number", lambda x: x.cummax(0), [torch.tensor(2.0)]),
    ("cumsum of one", lambda x: x.cumsum(0), [numbers(1, 9)]),
    ("cumsum, empty", lambda x: x.cumsum(1), [numbers(9, 0)]),
    ("cumsum of the transposed", lambda x: x.t().cumsum(0), [numbers(20, 30)]),
    ("cumsum of the middle", lambda x: (x * 2).cumsum(1).relu(), [numbers(3, 9, 20)]),
    ("cumsum to float64", lambda x: x.cumsum(0, dtype=torch.float64), [numbers(30, dtype=I32)]),
    ("positions of a mask", lambda m: m.long().cumsum(-1) * m - 1, [numbers(4, 30, dtype=BOOL)]),
]

CASES = READS + WRITES + SCANS


def as_program(f: Function, arguments: list[Any]) -> Any:
    report.clear()
    result = torch.compile(f, backend="max_backend", fullgraph=True, options=OPTIONS)(*arguments)
    (found,) = torch_max_backend.reports()
    assert found.stats.regions == found.stats.programs >= 1
    return result


@pytest.mark.parametrize(("f", "arguments"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_equals_eager(f: Function, arguments: list[Any]) -> None:
    """Elements are combined in eager's order and dtypes, so results are equal, but for what exp and log round."""
    want = f(*[a.clone() for a in arguments])
    got = as_program(f, [a.clone() for a in arguments])
    torch.testing.assert_close(got, want, equal_nan=True)


OUTSIDE: list[tuple[str, Function, list[Any]]] = [
    ("index", lambda x, i: x[i], [X, torch.tensor([1, 9])]),
    ("index from the end", lambda x, i: x[i], [X, torch.tensor([1, -10])]),
    ("index of columns", lambda x, i: x[:, i], [X, torch.tensor([1, 40] * 20)]),
    ("index_select", lambda x, i: x.index_select(0, i), [X, torch.tensor([1, -1])]),
    ("gather", lambda x, i: x.gather(1, i), [X, torch.full((9, 33), -1)]),
    ("take", lambda x, i: x.take(i), [X, torch.tensor([1, 360])]),
    ("embedding", lambda x, i: F.embedding(i, x), [X, torch.tensor([1, 9])]),
    ("scatter_add", lambda x, i: x.scatter_add(0, i, x), [X, torch.full((9, 40), 9)]),
    ("scatter", lambda x, i: x.scatter(1, i, 1.0), [X, torch.full((9, 1), -1)]),
    ("index_put", lambda x, i: x.index_put((i,), torch.tensor(1.0)), [X, torch.tensor([1, 9])]),
    ("index_add", lambda x, i: x.index_add(0, i, x[:2]), [X, torch.tensor([1, 9])]),
    ("index_copy", lambda x, i: x.index_copy(0, i, x[:2]), [X, torch.tensor([1, 9])]),
    ("index_fill", lambda x, i: x.index_fill(0, i, 2.0), [X, torch.tensor([1, 9])]),
    ("nll_loss", lambda x, i: F.nll_loss(x, i, ignore_index=-1), [X, torch.tensor([1, -1, 40, 3, 4, 5, 6, 7, 8])]),
    ("nll_loss of each", lambda x, i: F.nll_loss(x, i, reduction="none"), [X, torch.tensor([-1] * 9)]),
    ("nll_loss of an image", lambda x, i: F.nll_loss(x, i, X[0, :3]), [numbers(2, 3, 4, 5), torch.full((2, 4, 5), 3)]),
    ("cross_entropy", lambda x, i: F.cross_entropy(x, i, reduction="sum"), [X, torch.tensor([40] * 9)]),
]


@pytest.mark.parametrize(("f", "arguments"), [c[1:] for c in OUTSIDE], ids=[c[0] for c in OUTSIDE])
def test_an_index_out_of_range_raises_in_torchs_words(f: Function, arguments: list[Any]) -> None:
    with pytest.raises((IndexError, RuntimeError)) as eager:
        f(*arguments)
    with pytest.raises(OutOfRangeError) as ours:
        as_program(f, arguments)
    assert str(eager.value).splitlines()[0] in str(ours.value)
    assert "aten." in str(ours.value) and "test_indexing_rules.py" in str(ours.value)


def test_an_index_in_range_does_not_raise_after_one_that_was_not() -> None:
    f = torch.compile(lambda x, i: x[i], backend="max_backend", options=OPTIONS)
    with pytest.raises(OutOfRangeError):
        f(X, torch.tensor([1, 9]))
    assert torch.equal(f(X, torch.tensor([1, 8])), X[[1, 8]])


def test_a_write_into_an_input_copies_nothing_else() -> None:
    """The elements that a scatter leaves are not moved: a cache of keys is written where it is."""
    cache, rows = numbers(64, 128), numbers(2, 128)
    want = cache.clone().index_copy_(0, torch.tensor([5, 9]), rows)

    def f(cache: torch.Tensor, at: torch.Tensor, rows: torch.Tensor) -> None:
        cache.index_copy_(0, at, rows)

    as_program(f, [cache, torch.tensor([5, 9]), rows])
    assert torch.equal(cache, want)
