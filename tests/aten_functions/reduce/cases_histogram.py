"""Histograms with edges: equal and given ones, weights, density, elements outside, and more dimensions."""

from __future__ import annotations

import torch

from tests.support.cases import Case, ints, rand, randn, special

F64 = torch.float64


def by_count(x, w):
    return (
        *torch.histogram(x, 7),
        *torch.histogram(x, 5, range=(-1.0, 1.5)),
        *torch.histogram(x, 5, range=(-1.0, 1.5), density=True),
        *torch.histogram(x, 4, weight=w),
        *torch.histogram(x, 3, weight=w, density=True),
        *torch.histogram(x, 1),
        *torch.histogram(x, 4, range=(0.5, 0.5)),
        *torch.histogram(x[:1], 4),
    )


def by_edges(x, edges, w):
    return (
        *torch.histogram(x, edges),
        *torch.histogram(x, edges, density=True),
        *torch.histogram(x, edges, weight=w),
        *torch.histogram(x, edges, weight=w, density=True),
    )


def of_points(x, w):
    return (
        *torch.histogramdd(x, [3, 4]),
        *torch.histogramdd(x, [3, 4], range=[-1.0, 1.0, 0.0, 2.0], density=True),
        *torch.histogramdd(x, [2, 5], weight=w),
        *torch.histogramdd(x, 3),
        *torch.histogramdd(x, [torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([-0.5, 0.25, 0.5, 2.0])]),
    )


EDGES = torch.tensor([-1.0, -0.25, 0.0, 0.5, 2.0])

CASES = [
    Case("by_count", by_count, (randn(200), rand(200))),
    Case("by_count_f64", by_count, (randn(200, dtype=F64), rand(200, dtype=F64))),
    Case("by_count_whole", by_count, (ints(200, dtype=torch.float32), rand(200))),
    Case("by_count_2d", lambda x: (*torch.histogram(x, 10), *torch.histogram(x, 3, range=(0, 1))), (randn(9, 8),)),
    Case("by_edges", by_edges, (randn(200), EDGES, rand(200))),
    Case("by_edges_f64", by_edges, (randn(20, 3, dtype=F64), EDGES.to(F64), rand(20, 3, dtype=F64))),
    Case("by_edges_on_them", by_edges, (EDGES.repeat(3), EDGES, rand(15))),
    Case("by_edges_special", by_edges, (special(), EDGES, rand(16))),
    Case("range_special", lambda x: torch.histogram(x, 4, range=(-2.0, 2.0)), (special(),)),
    Case("of_points", of_points, (randn(60, 2), rand(60))),
    Case(
        "empty_density",
        lambda x: (
            *torch.histogram(x, 3, density=True),
            *torch.histogram(x, 1, weight=x, density=True),
            torch.histogramdd(x.view(0, 2), [2, 3], density=True)[0],
        ),
        (torch.zeros(0),),
    ),
    Case("empty", lambda x: (*torch.histogram(x, 3), *torch.histogram(x, 3, range=(0.0, 2.0))), (torch.zeros(0),)),
]
