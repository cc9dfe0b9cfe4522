"""Ops that are calls of a library within a program: equal to eager, with loops before and behind them."""

# ruff: noqa: E501 (one case a line)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import torch_max_backend
from torch_max_backend.loops.libraries import LIBRARY, OF_FLOAT64, OF_INTEGERS, SORTS
from torch_max_backend.loops.rules.registry import rules

Function = Callable[..., Any]
Row = tuple[str, Function, list[Any]]
OPTIONS = {"fallback": "error", "executor": "auto"}
INF, NAN = float("inf"), float("nan")
aten = torch.ops.aten


def numbers(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    """Normally distributed values, the same for the same shape."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale).to(dtype)


def integers(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Whole numbers in [low, high), the same for the same shape."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def special(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Two rows of NaN, infinities, zeros of both signs, and equal numbers."""
    row = torch.tensor([1.0, NAN, -INF, 0.0, -0.0, 1.0, INF, NAN, -1.0, INF, 2.0])
    return torch.stack([row, row.flip(0)]).to(dtype)


def called(function: Function, inputs: list[Any]) -> list[str]:
    """Compile to programs alone, compare everything with eager to the last bit, and give the library calls' names."""
    torch._dynamo.reset()
    mine, theirs = ([x.clone() if isinstance(x, torch.Tensor) else x for x in inputs] for _ in range(2))
    found = torch.compile(function, backend="max_backend", fullgraph=True, options=OPTIONS)(*mine)
    wanted = function(*theirs)
    report = torch_max_backend.reports()[-1]
    assert report.stats.regions == report.stats.programs >= 1
    for a, b in zip(*(torch.utils._pytree.tree_leaves(x) for x in ((found, mine), (wanted, theirs))), strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, check_stride=b.numel() > 1)
    return [name for program in report.programs for name in program.library_calls]


def _along(name: str, *args: Any, **kwargs: Any) -> Function:
    return lambda x: getattr(torch, name)(x, *args, **kwargs)


TIES = integers(0, 4, 5, 23)
ORDERED: list[tuple[str, Function]] = [
    ("sort", _along("sort")),
    ("sort, descending", _along("sort", 0, descending=True)),
    ("sort, stable", _along("sort", stable=True, dim=-1)),
    ("sort, stable and descending", _along("sort", stable=True, dim=0, descending=True)),
    ("argsort", _along("argsort", 1)),
    ("msort", _along("msort")),
    ("topk", _along("topk", 2, 0)),
    ("topk, least", _along("topk", 3, largest=False)),
    ("topk, in any order", _along("topk", 3, sorted=False)),
    ("kthvalue", _along("kthvalue", 2, 1, True)),
    ("median", _along("median")),
    ("median along 1", _along("median", 1)),
    ("mode", _along("mode")),
    ("mode along 0", _along("mode", 0, True)),
]
ROWS: list[Row] = [
    (f"{name} of {dtype}", f, [x])
    for name, f in ORDERED
    for dtype, x in {
        "float32": numbers(5, 23),
        "float64": numbers(5, 23, dtype=torch.float64),
        "bfloat16": numbers(5, 23, dtype=torch.bfloat16),
        "int64": TIES,
        "NaN and infinities": special(),
    }.items()
]
ROWS += [
    (f"{name} of {dtype}", f, [TIES.to(dtype)])
    for name, f in ORDERED
    for dtype in (torch.float16, torch.uint8, torch.int32)
]
ROWS += [
    (f"{name} of {what}", f, [x])
    for name, f in ORDERED[:1] + ORDERED[2:3] + ORDERED[7:8]
    for what, x in {
        "the transposed": numbers(9, 7).t(),
        "gaps": numbers(9, 14)[:, ::2],
        "no row": numbers(0, 7),
    }.items()
]
ROWS += [
    ("sort of bool", lambda x: x.sort(1), [TIES > 1]),
    ("sort of a number", lambda x: (x.sort(), x.median(), x.topk(1), x.mode(), x.kthvalue(1)), [torch.tensor(2.0)]),
    ("sort of one", lambda x: x.sort(1), [numbers(5, 1)]),
    ("sort of nothing", lambda x: (x.sort(1), x.topk(0)), [numbers(5, 0)]),
    ("topk of nothing", lambda x: x.topk(0, 1), [numbers(5, 4)]),
    ("median of nothing", lambda x: x.median() + 1, [numbers(5, 0)]),
    ("nanmedian", lambda x: (x.nanmedian(), x.nanmedian(1), x.nanmedian(0, True)), [special()]),
    ("quantile", lambda x: (x.quantile(0.3, 1), x.nanquantile(torch.tensor([0.1, 0.9]))), [numbers(5, 23)]),
    ("sort of what is computed", lambda x: (x * 2).sort(1), [numbers(5, 23)]),
    ("what is computed of a sort", lambda x: (lambda v, i: (v * 2 + 1, i * 2, v))(*x.sort(1)), [numbers(5, 23)]),
    ("a sort, gathered back", lambda x: (lambda i: x.gather(1, i) - i.argsort(1))(x.argsort(1)), [numbers(5, 23)]),
    ("the least of a tie", lambda x: x.abs().topk(3, largest=False).values.sum(1), [TIES.float()]),
    ("an input that is sorted in place", lambda x: x.copy_(x.sort(1).values), [numbers(5, 23)]),
    ("a sort of an input that is written then", lambda x: (x.sort(1), x.mul_(2)), [numbers(5, 23)]),
    ("one sort twice", lambda x: (lambda v: (v, v, v.t(), v[1:]))(x.sort(1).values), [numbers(5, 23)]),
    ("unused indices", lambda x: x.sort(1).values, [numbers(5, 23)]),
    ("searchsorted among NaN", lambda b, x: (torch.searchsorted(b, x), torch.searchsorted(b, x, right=True)), [torch.tensor([-1.0, 0.0, 0.0, 2.0, NAN, NAN]), special()]),
    ("searchsorted in disorder", lambda b, x: torch.searchsorted(b, x), [numbers(50), numbers(90)]),
    ("searchsorted in nothing", lambda b, x: torch.searchsorted(b, x), [numbers(0), special()]),
    ("searchsorted in rows", lambda b, x: torch.searchsorted(b.sort(1).values, x * 2, right=True), [numbers(5, 23), numbers(5, 3)]),
    ("searchsorted of whole numbers", lambda b, x: torch.searchsorted(b, x), [integers(0, 9, 20).sort().values, integers(-2, 11, 9).int()]),
    ("searchsorted in many", lambda b, x: (torch.searchsorted(b, x), torch.searchsorted(b, x, right=True, out_int32=True)), [numbers(200).sort().values, special()]),
    ("searchsorted with a sorter", lambda b, x: torch.searchsorted(b, x, sorter=b.argsort()), [numbers(20), special()]),
    ("searchsorted of a number", lambda b: torch.searchsorted(b, 0.5), [numbers(200).sort().values]),
    ("bucketize in many", lambda b, x: (torch.bucketize(x, b), torch.bucketize(x, b, right=True)), [numbers(99).sort().values, special()]),
    ("bucketize of a number", lambda b: torch.bucketize(0.5, b), [numbers(9).sort().values]),
]  # fmt: skip


@pytest.mark.parametrize(("function", "inputs"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_what_is_ordered(function: Function, inputs: list[Any]) -> None:
    assert all(name.startswith("ATen aten.") for name in called(function, inputs))


def test_a_report_names_the_sort() -> None:
    assert called(lambda x: (x + 1).sort(1).values * 2, [numbers(5, 9)]) == ["ATen aten.sort.default"]


def test_what_a_library_gives_is_not_copied_again() -> None:
    """Results that leave as they are need no kernel."""
    called(lambda x: x.sort(1), [numbers(5, 9)])
    (program,) = torch_max_backend.reports()[-1].programs
    assert program.kernels == 0


def test_gradients_of_sorts() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        sorted_, median = x.sort(1).values, x.median(0).values
        return (sorted_.cumsum(1) * median).sum() + x.topk(3, 1).values.pow(2).sum() + x.kthvalue(2, 1).values.sum()

    grads = []
    for call in (f, torch.compile(f, backend="max_backend", fullgraph=True, options=OPTIONS)):
        x = numbers(5, 23).requires_grad_()
        call(x).backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: x.topk(24, 1), [numbers(5, 23)]),
        (lambda x: x.kthvalue(24, 1), [numbers(5, 23)]),
    ],
    ids=["topk", "kthvalue"],
)
def test_what_eager_refuses_is_refused(function: Function, inputs: list[Any]) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        torch.compile(function, backend="max_backend", options=OPTIONS)(*inputs)


# -- other kernels ----------------------------------------------------------------------------------------------------
def _every_special(x: torch.Tensor) -> Any:
    names = """airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 erfcx i0 i0e i1 i1e log_ndtr modified_bessel_i0
        modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 ndtri scaled_modified_bessel_k0
        scaled_modified_bessel_k1 spherical_bessel_j0"""
    return [getattr(torch.special, name)(x) for name in names.split()]


POLYNOMIALS = [
    "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
    "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w", "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l",
    "legendre_polynomial_p",
]  # fmt: skip


def _every_polynomial(x: torch.Tensor, n: torch.Tensor) -> Any:
    functions = [getattr(torch.special, name) for name in POLYNOMIALS]
    return [(f(x, n), f(x, 3), f(0.5, n)) for f in functions]


OFFSETS = torch.tensor([0, 2, 2, 5])
GRID = numbers(2, 4, 3, 2, scale=0.7)
GRID3 = numbers(2, 2, 4, 3, 3, scale=0.7)
OTHERS: list[Row] = [
    *((f"special functions of {x.dtype}", _every_special, [x]) for x in (numbers(40, scale=2), special(torch.float64))),
    *((f"polynomials of {x.dtype}", _every_polynomial, [x, integers(-1, 9, 9)]) for x in (numbers(9), numbers(9, dtype=torch.float64))),
    ("incomplete gammas", lambda a, x: (torch.igamma(a, x), torch.igammac(a, x)), [numbers(40).abs(), numbers(40).abs() * 3]),
    ("polygamma", lambda x: (torch.polygamma(1, x), torch.polygamma(3, x)), [special()]),
    ("zeta", lambda x, q: (torch.special.zeta(x, q), torch.special.zeta(2.5, q), torch.special.zeta(x, 2)), [numbers(40).abs() + 1, numbers(40)]),
    ("divisors", lambda a, b: (torch.gcd(a, b), torch.lcm(a, b)), [integers(-40, 40, 30), integers(-40, 40, 30)]),
    *(
        (f"grid_sample {mode} {padding} {corners}", lambda x, g, m=mode, p=padding, c=corners: F.grid_sample(x, g, m, p, c), [numbers(2, 3, 7, 5), GRID])
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for corners in (False, True)
    ),
    ("grid_sample of volumes", lambda x, g: F.grid_sample(x, g, align_corners=False), [numbers(2, 3, 4, 7, 5), GRID3]),
    ("grid_sample of bfloat16", lambda x, g: F.grid_sample(x, g, align_corners=False), [numbers(2, 3, 7, 5, dtype=torch.bfloat16), GRID.bfloat16()]),
    ("grid_sample beside loops", lambda x, g: F.grid_sample(x.relu(), g.tanh(), align_corners=False).neg(), [numbers(2, 3, 7, 5), torch.zeros(2, 4, 3, 2)]),
    ("masked_scatter", lambda x, m, y: x.masked_scatter(m, y), [numbers(5, 9), numbers(5, 9) > 0, numbers(45)]),
    ("masked_scatter of rows", lambda x, m, y: x.masked_scatter(m, y) * 2, [numbers(5, 9), numbers(5, 1) > 0, numbers(45)]),
    ("histc", lambda x: (x.histc(7, -2, 2), torch.histc(x)), [numbers(90)]),
    ("histogram", lambda x, w: (torch.histogram(x, 5), torch.histogram(x, 5, range=(-1, 1), weight=w), torch.histogram(x, x[:7].sort().values)), [numbers(90), numbers(90)]),
    ("histogramdd", lambda x: torch.histogramdd(x, [3, 4]), [numbers(90, 2)]),
    ("nonzero_static", lambda x: torch.nonzero_static(x, size=7, fill_value=-1), [integers(0, 2, 4, 5)]),
    ("segment_reduce", lambda x, n: torch.segment_reduce(x, "max", lengths=n), [numbers(9, 3), torch.tensor([2, 3, 4])]),
    *(
        (f"embedding_bag {mode}", lambda w, i, o, m=mode: F.embedding_bag(i, w, o, mode=m) + 1, [numbers(9, 4), integers(0, 9, 12), OFFSETS])
        for mode in ("sum", "mean", "max")
    ),
    ("pdist", lambda x: (F.pdist(x), F.pdist(x, 1.0)), [numbers(9, 4)]),
    ("fractional_max_pool2d", lambda x, s: aten.fractional_max_pool2d(x, [2, 2], [3, 3], s), [numbers(2, 3, 9, 8), torch.full((2, 3, 2), 0.4)]),
    ("antialias", lambda x: F.interpolate(x, size=(4, 5), mode="bilinear", antialias=True), [numbers(2, 3, 9, 8)]),
    ("antialias, cubic", lambda x: F.interpolate(x, scale_factor=0.6, mode="bicubic", antialias=True), [numbers(2, 3, 9, 8)]),
    *(
        (f"bytes, {mode} of {channels}", lambda x, m=mode: F.interpolate(x, size=(9, 13), mode=m), [integers(0, 256, 2, channels, 6, 7, dtype=torch.uint8)])
        for mode in ("bilinear", "bicubic")
        for channels in (3, 5)
    ),
]  # fmt: skip


@pytest.mark.parametrize(("function", "inputs"), [r[1:] for r in OTHERS], ids=[r[0] for r in OTHERS])
def test_other_kernels(function: Function, inputs: list[Any]) -> None:
    assert called(function, inputs)


GRADIENTS: list[Row] = [
    ("grid_sample", lambda x, g: F.grid_sample(x, g, align_corners=False), [numbers(2, 3, 7, 5), GRID]),
    ("grid_sample of volumes", lambda x, g: F.grid_sample(x, g, align_corners=True), [numbers(2, 3, 4, 7, 5), GRID3]),
    ("pdist", F.pdist, [numbers(9, 4)]),
    ("embedding_bag", lambda w: F.embedding_bag(torch.arange(8) % 5, w, OFFSETS, mode="mean"), [numbers(9, 4)]),
    ("embedding_bag of maxima", lambda w: F.embedding_bag(torch.arange(8) % 5, w, OFFSETS, mode="max"), [numbers(9, 4)]),
    ("masked_scatter", lambda x, y: x.masked_scatter(torch.tensor([True, False, True]), y), [numbers(4, 3), numbers(12)]),
    ("antialias", lambda x: F.interpolate(x, size=(4, 5), mode="bilinear", antialias=True), [numbers(2, 3, 9, 8)]),
]  # fmt: skip


@pytest.mark.parametrize(("function", "inputs"), [r[1:] for r in GRADIENTS], ids=[r[0] for r in GRADIENTS])
def test_gradients_of_other_kernels(function: Function, inputs: list[Any]) -> None:
    results = []
    for call in (function, torch.compile(function, backend="max_backend", fullgraph=True, options=OPTIONS)):
        own = [x.clone().requires_grad_() for x in inputs]
        y = call(*own)
        y.backward(torch.cos(torch.arange(y.numel())).view(y.shape))
        results.append([y.detach(), *(x.grad for x in own)])
    assert all(r.stats.programs == r.stats.regions for r in torch_max_backend.reports()[-2:])
    torch.testing.assert_close(results[1], results[0])


def test_calls_write_into_nothing_that_they_are_given() -> None:
    for op in LIBRARY:
        assert not op._schema.is_mutable, op  # type: ignore[attr-defined]
        assert not any(r.alias_info for r in op._schema.returns), op  # type: ignore[attr-defined]


def test_an_op_has_a_rule_or_a_library() -> None:
    """Few have both: no rule sorts long rows, searches with a sorter, or computes functions of integers or a softmax of
    float64."""
    searches = {torch.ops.aten.searchsorted.Tensor, torch.ops.aten.bucketize.Tensor}
    assert {op for op in LIBRARY if op in rules()} == {*searches, *SORTS, *OF_INTEGERS, *OF_FLOAT64}
