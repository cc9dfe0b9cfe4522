"""Sampling of volumes: modes, paddings, corners, places outside and that are no numbers, and gradients."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.support.cases import Case, rand, randn

NAN, INF = float("nan"), float("inf")
BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64


def samples(x, grid):
    return tuple(
        F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=corners)
        for mode in ("bilinear", "nearest")
        for padding in ("zeros", "border", "reflection")
        for corners in (False, True)
    )


def cubes(x, grid):
    sampler = torch.ops.aten.grid_sampler_3d
    return tuple(sampler(x, grid, 2, padding, corners) for padding in range(3) for corners in (True, False))


def has_cubes() -> bool:
    """Whether torch samples volumes with cubic weights, which older versions do not."""
    try:
        cubes(torch.zeros(1, 1, 2, 2, 2), torch.zeros(1, 1, 1, 1, 3))
    except RuntimeError:
        return False
    return True


def gradients(x, grid, grad):
    results = []
    for mode in range(2):
        for padding in range(3):
            for corners in (False, True):
                backward = torch.ops.aten.grid_sampler_3d_backward
                results += backward(grad, x, grid, mode, padding, corners, [True, True])
    return tuple(results)


ODD = torch.tensor([0.0, 1.0, -1.0, 0.5, NAN, INF, -INF, 1e9, -2.5, 3.0, 0.25, -0.75])
ODD_GRID = torch.stack([ODD, ODD.flip(0), ODD.roll(3)], -1).reshape(1, 2, 2, 3, 3)

CASES = [
    Case("samples", samples, (randn(2, 3, 4, 5, 6), rand(2, 3, 2, 5, 3, low=-1.4, high=1.4))),
    Case("samples_f64", samples, (randn(1, 2, 3, 4, 5, dtype=F64), rand(1, 3, 3, 3, 3, low=-3, high=3, dtype=F64))),
    Case("samples_bf16", samples, (randn(1, 2, 3, 4, 5, dtype=BF16), rand(1, 3, 3, 3, 3, low=-2, high=2, dtype=BF16)),
         atol=4e-2, why="torch computes places and shares in 16 bits, one of which is up to 2 ** -6 of an element"),
    Case("samples_one", samples, (randn(1, 1, 1, 1, 1), rand(1, 2, 2, 2, 3, low=-2, high=2))),
    Case("samples_odd", samples, (randn(1, 2, 3, 4, 5), ODD_GRID)),
    Case("gradients", gradients, (randn(2, 3, 4, 5, 6), rand(2, 3, 2, 5, 3, low=-1.4, high=1.4), randn(2, 3, 3, 2, 5))),
    Case(
        "samples_dynamic",
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        (randn(2, 4, 5, 6, 7), rand(2, 8, 9, 10, 3)),
        dynamic=True,
        second=(randn(5, 2, 3, 4, 9), rand(5, 6, 7, 3, 3)),
    ),
]  # fmt: skip

if has_cubes():
    CASES += [
        Case("cubes", cubes, (randn(2, 3, 4, 5, 6), rand(2, 3, 2, 5, 3, low=-1.4, high=1.4))),
        Case("cubes_f64", cubes, (randn(1, 2, 3, 4, 5, dtype=F64), rand(1, 3, 3, 3, 3, low=-3, high=3, dtype=F64))),
    ]
