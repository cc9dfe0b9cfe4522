"""Sums, products, extremes, logical reductions, moments, norms and scans."""

from __future__ import annotations

import torch

from tests.support.cases import Case, bools, ints, rand, randn, special

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64

# Rows with NaN in the first, middle and last place, ties, infinities of both signs and nothing but NaN.
ROWS = torch.tensor(
    [
        [1.0, NAN, 3.0, 3.0, 0.0, -1.0, 2.0, 1.0, 4.0],
        [NAN, 2.0, 2.0, -INF, INF, 0.5, 0.5, -2.0, 1.0],
        [7.0, 7.0, -1.0, -1.0, 0.0, -0.0, 7.0, -1.0, 3.0],
        [-INF, INF, 0.0, -0.0, INF, -INF, 1.0, 2.0, 3.0],
        [NAN] * 9,
        [-INF] * 9,
        [5.0, 1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 2.0, NAN],
    ]
)
ROWS_FINITE = torch.nan_to_num(ROWS, nan=0.25, posinf=9.0, neginf=-9.0)


def sums(x):
    return (
        x.sum(),
        x.sum(1),
        x.sum(-1, keepdim=True),
        x.sum((0, 2)),
        x.sum((1, 2), keepdim=True),
        x.sum((-1, 0, 1)),
        x.mean(),
        x.mean(0),
        x.mean((1, 2), keepdim=True),
        x.mean((0, 2)),
    )


def integer_sums(x):
    return x.sum(), x.sum(0), x.sum(-1, keepdim=True), x.prod(), x.prod(1), x.sum(dtype=torch.int32)


def float_products(x):
    return x.prod(), x.prod(0), x.prod(-1, keepdim=True), x.prod(1, dtype=F64)


def sum_dtypes(x, i):
    return (
        x.sum(dtype=F64),
        x.sum(1, dtype=BF16),
        i.sum(dtype=torch.float32),
        i.mean(0, dtype=torch.float32),
        i.sum(1, dtype=torch.int16),
        x.mean(1, dtype=F64),
    )


def extremes(x):
    return (
        x.amax(),
        x.amin(),
        x.amax(1),
        x.amin((0, 1), keepdim=True),
        x.amax((0,)),
        x.max(),
        x.min(),
        *x.max(1),
        *x.min(-1, keepdim=True),
        *x.max(0),
        *torch.aminmax(x, dim=0),
        *torch.aminmax(x),
        x.argmax(),
        x.argmin(),
        x.argmax(1),
        x.argmin(-1, keepdim=True),
        x.argmax(0),
        x.argmin(keepdim=True),
    )


def logical(x):
    return (
        x.any(),
        x.any(0),
        x.any(-1, keepdim=True),
        torch.any(x, (0, 1)),
        x.all(),
        x.all(1),
        x.all(0, keepdim=True),
        torch.all(x, (0, 1), keepdim=True),
        torch.any(x, ()),
        torch.count_nonzero(x, 1),
        torch.count_nonzero(x),
    )


def moments(x):
    return (
        x.var(),
        x.var(1),
        x.var(1, unbiased=False),
        x.var((0, 2), keepdim=True),
        x.std(),
        x.std(0, correction=2),
        x.std((1, 2), unbiased=False),
        *torch.var_mean(x, 1),
        *torch.std_mean(x, (0, 1), correction=0, keepdim=True),
        *torch.var_mean(x),
    )


def norms(x):
    norm = torch.linalg.vector_norm
    return (
        norm(x),
        norm(x, 1),
        norm(x, 0, 1),
        norm(x, INF, (0, 1)),
        norm(x, -INF, 0, keepdim=True),
        norm(x, 3, 1),
        norm(x, 2, (1, 2)),
        norm(x, 2.5),
        torch.norm(x),
        torch.norm(x, p=1, dim=1),
        torch.logsumexp(x, 1),
        torch.logsumexp(x, (0, 2), keepdim=True),
        torch.nansum(x, 0),
    )


def zero_dim(x):
    return (
        x.sum(),
        x.sum(0),
        x.mean(-1),
        x.amax(),
        *x.max(0),
        x.argmax(),
        x.argmin(0),
        x.any(),
        x.prod(0),
        x.cumsum(0),
        x.logsumexp(0),
        x.var(unbiased=False),
    )


def empties(x, i, b):
    return (
        x.sum(),
        x.sum(1),
        x.mean(1),
        x.prod(1),
        x.sum(0),
        x.mean(),
        x.var(1),
        x.logsumexp(1),
        x.amax(0),
        *x.max(0),
        x.argmax(0),
        i.sum(1),
        i.prod(),
        b.any(),
        b.all(1),
        b.any(0),
        torch.linalg.vector_norm(x, 2, 1),
        torch.count_nonzero(x),
    )


def brief(x):
    return x.sum(1), x.mean(), x.amax(0), *x.min(1), x.var(1), torch.linalg.vector_norm(x, 3), torch.logsumexp(x, 1)


def high_rank(x):
    return x.sum((0, 2, 3)), x.mean((2, 3), keepdim=True), x.amax((1, 3)), x.var((0, 2, 3)), x.sum((1, 2, 4))


def specials(x):
    return (
        torch.logsumexp(x, 1),
        torch.logsumexp(x, 0),
        x.sum(1),
        x.mean(0),
        x.prod(1),
        x.var(1),
        torch.nansum(x),
        torch.nanmean(x, 1),
        torch.linalg.vector_norm(x, 2, 1),
        torch.linalg.vector_norm(x, INF, 1),
        torch.linalg.vector_norm(x, 1, 0),
        torch.linalg.vector_norm(x, 0, 1),
        x.any(1),
        x.all(0),
        torch.count_nonzero(x, 0),
    )


def cumsums(x):
    return x.cumsum(-1), x.cumsum(0), torch.cumsum(x, 1, dtype=torch.float32)


def of_broadcasts(size):
    """Reductions of expanded tensors; with equal sizes a reduction of the wrong axis has the right shape."""

    def reductions(*tensors):
        results = []
        for t in tensors:
            wide = t.expand(*size)
            results += [wide.sum(d) for d in range(3)] + [(wide * wide).amax(d) for d in range(3)]
            results += [wide.argmin(1), wide.prod(2), wide.mean((1, 2)), wide.var(1), wide[:, 1:].sum(2)]
            results += [torch.linalg.vector_norm(wide, 2, [1], True), wide.mT.sum(1), wide.cumsum(1), wide.softmax(1)]
        first = tensors[0]  # expanded without a word
        ones, zeros = torch.ones(size[0], 1, 1), torch.zeros(size[0], 1, 1)
        return *results, (first * ones).amax(1), (first + zeros).sum(2), torch.where(ones > 0, first, zeros).mean(1)

    return reductions


def of_symbolic_broadcasts(a, b):
    wide, inner = a.expand(b.shape[0], -1, -1), b.expand(-1, a.shape[1], -1)
    return wide.sum(1), wide.amax(2), (wide * wide).mean(1), inner.sum(2), inner.amin(2), (wide * inner).sum(1)


def dynamic_reductions(x):
    return (
        x.sum(1),
        x.mean((0, 2)),
        x.mean(),
        x.amax(0),
        *x.max(1),
        x.argmax(),
        x.argmin(2, keepdim=True),
        x.var((0, 1)),
        x.std(),
        torch.linalg.vector_norm(x),
        torch.logsumexp(x, (0, 2)),
        x.cumsum(1),
        (x > 0).any(1),
        (x > 0).sum((0, 1)),
    )


CASES = [
    Case("row_sums", lambda x: (x.sum(-1), x.view(150, 2, 24).sum(-1, keepdim=True)), (randn(300, 24),)),
    Case(
        "column_sums",
        lambda x: (x.sum(0), x.view(2, 75, 32).sum(1), (x * x).mean(0, keepdim=True), x.view(15, 10, 8, 4).sum((0, 2))),
        (randn(150, 32),),
    ),
    Case("sums_f32", sums, (randn(3, 5, 7),)),
    Case("extremes_nan", extremes, (ROWS,), exact=True),
    Case("moments_f32", moments, (randn(3, 5, 7),)),
    Case("specials_rows", specials, (ROWS,)),
    Case("sums_bf16", sums, (randn(3, 5, 7, dtype=BF16),), atol=1e-2, why="eager rounds in another order"),
    Case("of_broadcasts_square", of_broadcasts((3, 3, 3)), (randn(1, 3, 3), randn(3, 1, 3), randn(1, 1, 3))),
    Case("of_broadcasts", of_broadcasts((2, 3, 4)), (randn(1, 3, 4), randn(2, 1, 4), randn(2, 3, 1), randn(1, 3, 1))),
    Case("sum_long_rows", lambda x: (x.sum(1), x.sum(0), x.mean(1)), (rand(4, 20000),)),
    Case("sum_long_rows_bf16", lambda x: (x.sum(1), x.mean(1)), (rand(4, 20000, dtype=BF16),)),
    Case("integer_sums_i64", integer_sums, (ints(3, 4),)),
    Case("integer_sums_i32_wrap", integer_sums, (ints(3, 4, low=2**28, high=2**30, dtype=torch.int32),)),
    Case("integer_sums_u8", integer_sums, (ints(3, 4, low=0, high=256, dtype=torch.uint8),)),
    Case("integer_sums_bool", integer_sums, (bools(3, 4),)),
    Case("products_f32", float_products, (rand(3, 4, low=0.5, high=1.5),)),
    Case("sum_dtypes", sum_dtypes, (randn(3, 4), ints(3, 4, dtype=torch.int32))),
    Case("extremes_bf16", extremes, (ROWS.to(BF16),)),
    Case("extremes_i64", extremes, (ints(6, 9, low=-3, high=4),)),
    Case("extremes_i32_limits", extremes, (torch.tensor([[2**31 - 1, -(2**31), 0]], dtype=torch.int32),)),
    Case("extremes_u8", extremes, (ints(6, 9, low=0, high=256, dtype=torch.uint8),)),
    Case("extremes_bool", lambda x: (x.amax(), x.amin(0), *x.max(1), *x.min(0), x.max()), (bools(3, 4),)),
    Case("argmax_ties_wide", lambda x: (x.argmax(1), x.argmin(1), x.max(1)[1]), (ints(4, 500, low=0, high=9),)),
    Case("argmax_wide_f32", lambda x: (x.argmax(1), x.argmin(0), *x.min(1)), (randn(4, 1500),)),
    Case("logical_f32", logical, (torch.tensor([[0.0, -0.0, NAN], [0.0, 0.0, 0.0], [1.0, INF, -1.0]]),)),
    Case("logical_bool", logical, (bools(3, 4),)),
    Case("logical_u8", logical, (ints(3, 4, low=0, high=2, dtype=torch.uint8),)),
    Case("moments_bf16", moments, (randn(3, 5, 7, dtype=BF16),), atol=1e-2, why="eager rounds in another order"),
    Case(
        "moments_large_mean",
        lambda x: (x.var(1), *torch.var_mean(x)),
        (rand(3, 500, low=1000, high=1001),),
        rtol=1e-3,
        why="the variance loses the digits of the mean",
    ),
    Case("moments_degenerate", lambda x: (x.var(1), x.std(0, correction=3), x.var(0, correction=4)), (randn(3, 1),)),
    Case("norms_f32", norms, (randn(3, 5, 7),)),
    Case("norms_bf16", norms, (randn(3, 5, 7, dtype=BF16),), atol=1e-2, why="eager rounds in another order"),
    Case("norm_dtype", lambda x: torch.linalg.vector_norm(x, 2, 1, dtype=F64), (randn(3, 4),)),
    Case("dist", lambda a, b: (torch.dist(a, b), torch.dist(a, b, 1), torch.dist(a, b, INF)), (randn(3, 4), randn(4))),
    Case("specials_line", lambda x: (x.sum(), x.max(), x.argmin(), torch.logsumexp(x, 0)), (special(),)),
    Case("logsumexp_large", lambda x: torch.logsumexp(x, 1), (randn(4, 300, scale=200.0),)),
    Case("logsumexp_int", lambda x: torch.logsumexp(x, 1), (ints(4, 30),)),
    Case("zero_dim_f32", zero_dim, (torch.tensor(2.5),)),
    Case("empties", empties, (torch.zeros(3, 0), torch.zeros(3, 0, dtype=torch.int64), torch.zeros(3, 0).bool())),
    Case("empties_outer", lambda x: (x.sum(), x.sum(1), x.mean(1), x.amax(1), x.argmax(1)), (torch.zeros(0, 4),)),
    Case("brief_f64", brief, (ROWS.to(F64),)),
    Case("brief_f16", brief, (randn(3, 7, dtype=F16),)),
    Case("high_rank", high_rank, (randn(2, 3, 4, 5, 2),)),
    Case("cumsum_f32", cumsums, (randn(4, 100),)),
    Case("cumsum_bf16", cumsums, (randn(4, 100, dtype=BF16),), atol=5e-2, why="one rounding step of a sum of size 10"),
    Case("cumsum_i32", lambda x: (x.cumsum(1), x.cumsum(0)), (ints(4, 9, dtype=torch.int32),)),
    Case("cumsum_bool", lambda x: (x.cumsum(1), x.cumsum(0), torch.cumsum(x, 0, dtype=torch.int32)), (bools(4, 9),)),
    Case("cumsum_special", lambda x: (x.cumsum(0), x.cumsum(1)), (ROWS,)),
    Case(
        "of_symbolic_broadcasts",
        of_symbolic_broadcasts,
        (randn(1, 3, 4), randn(3, 1, 4)),
        dynamic=True,
        second=(randn(1, 5, 5), randn(5, 1, 5)),
    ),
    Case("dynamic", dynamic_reductions, (randn(3, 4, 5),), dynamic=True, second=(randn(2, 6, 7),)),
]
