"""Sorting, selection by rank, medians, binary search, histograms and scans that are kernels."""

from __future__ import annotations

import torch

from tests.support.cases import Case, bools, ints, rand, randn, special

NAN, INF = float("nan"), float("inf")
BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64

ROWS = torch.tensor(
    [
        [1.0, NAN, 3.0, 3.0, 0.0, -1.0, 2.0, 1.0, 4.0],
        [NAN, 2.0, 2.0, -INF, INF, 0.5, 0.5, -2.0, 1.0],
        [7.0, 7.0, -1.0, -1.0, 0.0, -0.0, 7.0, -1.0, 3.0],
        [-INF, INF, 0.0, -0.0, INF, -INF, 1.0, 2.0, NAN],
        [NAN] * 9,
        [-INF] * 9,
    ]
)


def distinct(rows: int, n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows without equal elements, so that places are defined."""
    generator = torch.Generator().manual_seed(3)
    return torch.stack([torch.randperm(n, generator=generator) - n // 2 for _ in range(rows)]).to(dtype)


def sorts(x):
    return (
        *torch.sort(x, stable=True),
        *torch.sort(x, dim=0, stable=True, descending=True),
        *torch.sort(x, descending=True, stable=True),
        torch.argsort(x, dim=0, stable=True),
        torch.sort(x, dim=0).values,
        torch.msort(x),
    )


def long_sorts(x):
    return *torch.sort(x, stable=True), *torch.sort(x, descending=True, stable=True)


def tops(x):
    return (
        *x.topk(3),
        *x.topk(1, 0),
        *x.topk(4, largest=False),
        *x.topk(x.shape[1], sorted=True),
        *x.topk(2, 0, largest=False, sorted=True),
        x.topk(0)[0],
        *x.kthvalue(1),
        *x.kthvalue(3, 0, keepdim=True),
        *x.kthvalue(x.shape[1]),
    )


def tied_tops(x):
    """Of equal elements those that torch's algorithms come upon: heaps of few, partitions of many."""
    n = x.shape[1]
    return (
        *x.topk(n // 70),
        *x.topk(n // 64, largest=False),
        *x.topk(n // 3),
        *x.topk(n // 2, largest=False),
        *x.topk(n - 1, sorted=False),
        *x.topk(n),
        *x.kthvalue(n // 2),
        *x.kthvalue(max(n // 5, 1)),
    )


def tied_sorts(x):
    """Sorts that are not told to be stable, and medians."""
    return *x.sort(1), *x.sort(1, descending=True), *x.sort(0), *x.median(1), *x.nanmedian(1)


def medians(x):
    return (
        x.median(),
        x.nanmedian(),
        *x.median(1),
        *x.nanmedian(-1, keepdim=True),
        *x.median(0),
        x[0].median(),
    )


def median_values(x):
    return x.median(), x.nanmedian(), x.median(1).values, x.nanmedian(1).values, x.median(0, keepdim=True).values


def quantiles(x):
    return torch.quantile(x, 0.3, dim=1), torch.quantile(x, torch.tensor([0.0, 0.5, 1.0])), torch.nanquantile(x, 0.6)


def searches(edges, x):
    search = torch.searchsorted
    return (
        search(edges, x),
        search(edges, x, right=True),
        search(edges, x, side="right", out_int32=True),
        torch.bucketize(x, edges),
        torch.bucketize(x, edges, right=True, out_int32=True),
        torch.bucketize(1, edges),
        search(edges, 1),
    )


def batched_searches(edges, x):
    return torch.searchsorted(edges, x), torch.searchsorted(edges, x, right=True)


def sorted_searches(rows, x):
    """The sequence is in any order, and a sorter says in which one it is sorted."""
    first = rows[0]
    return (
        torch.searchsorted(rows, x, sorter=rows.argsort(-1)),
        torch.searchsorted(rows, x, sorter=rows.argsort(-1), right=True, out_int32=True),
        torch.searchsorted(first, x, sorter=first.argsort(), side="right"),
        torch.searchsorted(first, 0.5, sorter=first.argsort()),
        torch.searchsorted(first[:0], x, sorter=first[:0].argsort()),
    )


def histograms(x):
    return (
        torch.histc(x, 10, -2, 2),
        torch.histc(x, 7),
        torch.histc(x, 1, 0, 1),
        torch.histc(x[:1, :1], 4),
        torch.histc(x, 5, min=-1, max=-0.5),
    )


def scans(x):
    return x.cumprod(-1), x.cumprod(0), *x.cummax(1), *x.cummin(0), *x.cummin(-1), *x.cummax(0)


def float_scans(x):
    return *scans(x), x.logcumsumexp(1), x.logcumsumexp(0)


def zero_dim(x):
    return (
        *x.sort(),
        *x.topk(1),
        *x.kthvalue(1),
        x.median(),
        *x.median(0),
        *x.cummax(0),
        x.cumprod(0),
        x.logcumsumexp(0),
    )


def empties(x):
    return (
        *x.sort(1),
        *x.sort(0),
        *x.topk(0),
        x.cumprod(1),
        *x.cummax(0),
        x.median(),
        x.long().median(),
        x.logcumsumexp(0),
    )


def dynamic_sorts(x, edges):
    return (
        *x.sort(dim=1, stable=True),
        *x.topk(2),
        *x.topk(3, 0, largest=False),
        *x.median(1),
        torch.bucketize(x, edges),
        x.cumprod(1),
        *x.cummax(0),
        torch.histc(x, 4, -1, 1),
    )


CASES = [
    Case("sorts_f32", sorts, (ROWS,)),
    Case("tops_f32", tops, (distinct(5, 9),)),
    Case("searches_f32", searches, (torch.tensor([-1.0, 0.0, 0.0, 1.0, 2.0, INF]), special())),
    Case("scans_nan", float_scans, (ROWS,)),
    Case("sorts_f64", sorts, (ROWS.to(F64),)),
    Case("sorts_bf16", sorts, (ROWS.to(BF16),)),
    Case("sorts_f16", sorts, (ROWS.to(F16),)),
    Case("sorts_i64", sorts, (ints(7, 9),)),
    Case("sorts_i32", sorts, (ints(7, 9, low=-(2**31), high=2**31, dtype=torch.int32),)),
    Case("sorts_u8", sorts, (ints(7, 9, low=0, high=256, dtype=torch.uint8),)),
    Case("sorts_bool", sorts, (bools(7, 9),)),
    Case(
        "sorts_3d",
        lambda x: (*x.sort(dim=1, stable=True), *x.sort(dim=0, descending=True, stable=True)),
        (ints(3, 4, 5),),
    ),
    Case("sort_special", lambda x: (*x.sort(), *x.sort(descending=True, stable=True)), (special(),), exact=True),
    Case("sort_33", long_sorts, (ints(3, 33),)),
    Case("sort_64", long_sorts, (ints(3, 64),)),
    Case("sort_100", long_sorts, (randn(20, 100),)),
    Case("sort_1000", long_sorts, (ints(5, 1000, low=-100, high=100),)),
    Case("sort_5000", long_sorts, (randn(1, 5000, dtype=BF16),)),
    Case("tops_i64", tops, (distinct(5, 9, torch.int64),)),
    Case("tops_bf16", tops, (distinct(5, 9, BF16),)),
    Case("tops_nan", tied_tops, (ROWS,)),
    Case("tops_f64_nan", tied_tops, (ROWS.to(F64),)),
    Case("tops_ties", tied_tops, (ints(6, 9),)),
    Case("tops_ties_140", tied_tops, (ints(20, 140),)),
    Case("tops_ties_1000", tied_tops, (ints(9, 1000, low=-20, high=20),)),
    Case("tops_ties_u8", tied_tops, (ints(4, 130, low=0, high=3, dtype=torch.uint8),)),
    Case("tops_sorted_runs", tied_tops, (torch.arange(3 * 256).reshape(3, 256) // 7,)),
    Case("sorts_tied_nan", tied_sorts, (ROWS,)),
    Case("sorts_tied_f64_nan", tied_sorts, (ROWS.to(F64),)),
    Case("sorts_tied", tied_sorts, (ints(6, 9),)),
    Case("sorts_tied_140", tied_sorts, (ints(20, 140),)),
    Case("sorts_tied_1000", tied_sorts, (ints(9, 1000, low=-20, high=20),)),
    Case("sorts_tied_u8", tied_sorts, (ints(4, 130, low=0, high=3, dtype=torch.uint8),)),
    Case("sorts_tied_runs", tied_sorts, (torch.arange(3 * 256).reshape(3, 256) // 7,)),
    Case("tops_long", lambda x: (*x.topk(8), *x.topk(100), *x.topk(64, largest=False)), (distinct(40, 700),)),
    Case("medians_f32", medians, (distinct(5, 8),)),
    Case("medians_i64", medians, (distinct(5, 9, torch.int64),)),
    Case("medians_nan", median_values, (ROWS,)),
    Case("medians_bf16", median_values, (ROWS.to(BF16),)),
    Case("quantiles", quantiles, (randn(4, 9),)),
    Case("searches_i64", searches, (torch.tensor([-3, -1, 0, 0, 2, 4]), ints(3, 5))),
    Case("searches_mixed", lambda e, x: torch.bucketize(x, e), (torch.tensor([-1, 0, 2]), randn(3, 5))),
    Case("searches_nan", searches, (torch.tensor([-1.0, 0.5, NAN, NAN]), special())),
    Case("searches_batched", batched_searches, (torch.arange(24.0).reshape(2, 3, 4), rand(2, 3, 5, high=24.0))),
    Case("searches_sorter", sorted_searches, (randn(3, 7), randn(3, 4))),
    Case("histograms", histograms, (randn(9, 8),)),
    Case("histogram_nan", lambda x: torch.histc(x, 4, -3, 3), (special(),)),
    Case("scans_f32", float_scans, (randn(4, 30),)),
    Case("scans_f64", float_scans, (randn(4, 30, dtype=F64),)),
    Case("scans_bf16", float_scans, (randn(4, 9, dtype=BF16),), atol=1e-2, why="one rounding step of 16-bit results"),
    Case("scans_i64", scans, (ints(4, 9),)),
    Case("scans_i32", scans, (ints(4, 9, dtype=torch.int32),)),
    Case("scans_bool", lambda x: (*x.cummax(1), *x.cummin(0), x.cumprod(1)), (bools(4, 9),)),
    Case("scans_3d", lambda x: (x.cumprod(1), *x.cummax(-2), x.logcumsumexp(1)), (randn(2, 5, 3),)),
    Case("scan_dtype", lambda x: x.cumprod(0, dtype=F64), (randn(4, 3),)),
    Case("zero_dim", zero_dim, (torch.tensor(2.5),)),
    Case("empties", empties, (torch.zeros(3, 0),)),
    Case(
        "dynamic",
        dynamic_sorts,
        (distinct(5, 9), torch.tensor([-1.0, 2.0])),
        dynamic=True,
        second=(distinct(6, 11), torch.tensor([-1.0, 0.0, 2.0])),
    ),
]
