"""Distances between rows and the three-operand product of ``nn.Bilinear``, with their gradients."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.support.cases import Case, ints, rand, randn

NAN, INF = float("nan"), float("inf")
BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64
aten = torch.ops.aten
NORMS = (0.0, 1.0, 2.0, INF, 3.0, 0.5, 1.7)

LEFT = torch.tensor([[1.0, NAN, 2.0], [0.0, 1.0, 2.0], [INF, 0.0, 1.0], [NAN, NAN, NAN]])
RIGHT = torch.tensor([[1.0, 5.0, 2.0], [INF, 1.0, NAN], [INF, 0.0, 1.0], [-INF, 0.0, 3.0], [0.0, 1.0, 2.0]])


def between(x, y):
    return tuple(torch.cdist(x, y, p) for p in NORMS)


def few_between(x, y):
    return tuple(torch.cdist(x, y, p) for p in (0.0, INF, 1.7))


def by_mode(x, y):
    return (
        torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist"),
        torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist"),
        torch.cdist(x, y),
        aten._cdist_forward(x, y, 2.0, None),
        aten._cdist_forward(x, y, 2.0, 1),
        aten._euclidean_dist(x, y),
    )


def within(x):
    return tuple(F.pdist(x, p) for p in NORMS)


def few_within(x):
    return tuple(F.pdist(x, p) for p in (0.0, INF, 1.7))


def cdist_gradients(x, y, grad, *distances):
    return tuple(aten._cdist_backward(grad, x, y, p, d) for p, d in zip(NORMS, distances, strict=False))


def pdist_gradients(x, grad, *distances):
    return tuple(aten._pdist_backward(grad, x, p, d) for p, d in zip(NORMS, distances, strict=False))


def fixed(*shape: int) -> torch.Tensor:
    """The same numbers every time, for operands that are computed from each other."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def trilinears(a, b, c):
    return (
        aten._trilinear(a, b, c, [], [], [], [0], 1),
        aten._trilinear(a, b, c, [], [], [], [0, 2], 0),
        aten._trilinear(a, b, c, [], [], [], [1], 0),
        aten._trilinear(a, b[0], c[0, 0], [], [0], [0, 1], [2], 0),
        aten._trilinear(a[0, 0], b, c, [1, 0], [], [], [1, 2], 1),
    )


A, B, C, EYE = fixed(4, 6), fixed(5, 6), fixed(2, 4, 3), torch.eye(3)

CASES = [
    Case("cdist", between, (randn(4, 6), randn(5, 6))),
    Case("cdist_f64", few_between, (randn(3, 4, 6, dtype=F64), randn(3, 2, 6, dtype=F64))),
    Case("cdist_broadcast", few_between, (randn(2, 1, 4, 3), randn(5, 6, 3))),
    Case("cdist_special", between, (LEFT, RIGHT)),
    Case("cdist_modes", by_mode, (randn(30, 5), randn(3, 5))),
    Case("cdist_modes_f64", by_mode, (randn(7, 5, dtype=F64), randn(40, 5, dtype=F64))),
    Case("cdist_empty", few_between, (randn(4, 0), randn(5, 0))),
    Case("cdist_no_rows", few_between, (randn(0, 3), randn(5, 3))),
    Case(
        "cdist_dynamic",
        lambda x, y: (torch.cdist(x, y, 1.0), torch.cdist(x, y, 3.0), torch.cdist(x, y, INF)),
        (randn(4, 6), randn(5, 6)),
        dynamic=True,
        second=(randn(7, 3), randn(2, 3)),
    ),
    Case("cdist_gradients", cdist_gradients, (A, B, randn(4, 5), *between(A, B))),
    Case("cdist_gradients_zero", cdist_gradients, (EYE, EYE, randn(3, 3), *between(EYE, EYE))),
    Case("cdist_gradients_batch", cdist_gradients, (C, C, randn(2, 4, 4), *between(C, C)[:3])),
    Case("pdist", within, (randn(7, 5),)),
    Case("pdist_f64", few_within, (randn(30, 9, dtype=F64),)),
    Case("pdist_special", within, (RIGHT,)),
    Case("pdist_one", lambda x: (F.pdist(x), F.pdist(x[:1]), F.pdist(x[:0]), F.pdist(x[:, :0])), (randn(2, 3),)),
    Case("pdist_many", lambda x: F.pdist(x, 1.0), (randn(700, 2),)),
    Case("pdist_dynamic", lambda x: F.pdist(x), (randn(7, 5),), dynamic=True, second=(randn(12, 4),)),
    Case("pdist_gradients", pdist_gradients, (A, randn(6), *within(A))),
    Case("pdist_gradients_zero", pdist_gradients, (EYE.repeat(2, 1), randn(15), *within(EYE.repeat(2, 1)))),
    Case("bilinear", F.bilinear, (randn(4, 3), randn(4, 5), randn(6, 3, 5), randn(6))),
    Case("bilinear_batch", F.bilinear, (randn(2, 4, 3), randn(2, 4, 5), randn(6, 3, 5))),
    Case("bilinear_f64", F.bilinear, (randn(4, 3, dtype=F64), randn(4, 5, dtype=F64), randn(2, 3, 5, dtype=F64))),
    Case(
        "bilinear_bf16",
        F.bilinear,
        (rand(4, 3, dtype=BF16), rand(4, 5, dtype=BF16), rand(6, 3, 5, dtype=BF16)),
        rtol=3e-2,
        why="torch rounds every one of the partial sums to 16 bits",
    ),
    Case("bilinear_i64", F.bilinear, (ints(4, 3), ints(4, 5), ints(6, 3, 5))),
    Case("bilinear_empty", F.bilinear, (randn(0, 3), randn(0, 5), randn(6, 3, 5))),
    Case(
        "bilinear_dynamic",
        F.bilinear,
        (randn(4, 3), randn(4, 5), randn(6, 3, 5), randn(6)),
        dynamic=True,
        second=(randn(7, 3), randn(7, 5), randn(6, 3, 5), randn(6)),
    ),
    Case("trilinear", trilinears, (randn(3, 4, 5), randn(3, 4, 5), randn(3, 4, 5))),
]
