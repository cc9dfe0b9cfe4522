"""Fractional max pooling: where windows begin, NaN, 16-bit random numbers, and gradients."""

from __future__ import annotations

import torch

from tests.support.cases import Case, ints, rand, randn

NAN = float("nan")
BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64
aten = torch.ops.aten


def pools(x, r):
    return (
        *aten.fractional_max_pool2d(x, [2, 3], [3, 4], r),
        *aten.fractional_max_pool2d(x, [2, 2], [1, 1], r),
        *aten.fractional_max_pool2d(x, [1, 1], [7, 9], r),
        *aten.fractional_max_pool2d(x[0], [3, 2], [5, 2], r[:1]),
    )


def pools_3d(x, r):
    return (
        *aten.fractional_max_pool3d(x, [2, 3, 1], [3, 4, 2], r),
        *aten.fractional_max_pool3d(x[0], [2, 2, 2], [1, 3, 2], r[:1]),
    )


def gradients(x, r, grad):
    _, at = aten.fractional_max_pool2d(x, [2, 3], [3, 4], r)
    return aten.fractional_max_pool2d_backward(grad, x, [2, 3], [3, 4], at)


def gradients_3d(x, r, grad):
    _, at = aten.fractional_max_pool3d(x, [2, 3, 1], [3, 4, 2], r)
    return aten.fractional_max_pool3d_backward(grad, x, [2, 3, 1], [3, 4, 2], at)


SPECIAL = torch.full((1, 2, 8, 9), -float("inf"))
SPECIAL[0, 0, 2, 2], SPECIAL[0, 0, 2, 3], SPECIAL[0, 1, 6, 6] = NAN, NAN, 3.0

CASES = [
    Case("pools", pools, (randn(2, 3, 8, 10), rand(2, 3, 2))),
    Case("pools_f64", pools, (randn(2, 3, 8, 10, dtype=F64), rand(2, 3, 2, dtype=F64))),
    Case("pools_bf16", pools, (randn(2, 3, 70, 90, dtype=BF16), rand(2, 3, 2, dtype=BF16))),
    Case("pools_f16", pools, (randn(2, 3, 70, 90, dtype=F16), rand(2, 3, 2, dtype=F16))),
    Case("pools_special", pools, (SPECIAL, rand(1, 2, 2))),
    Case("pools_ties", pools, (ints(4, 3, 8, 10, low=0, high=2, dtype=torch.float32), rand(4, 3, 2))),
    Case("pools_3d", pools_3d, (randn(2, 3, 6, 8, 5), rand(2, 3, 3))),
    Case("pools_3d_bf16", pools_3d, (randn(2, 3, 16, 18, 15, dtype=BF16), rand(2, 3, 3, dtype=BF16))),
    Case("gradients", gradients, (randn(2, 3, 8, 10), rand(2, 3, 2), randn(2, 3, 3, 4))),
    Case("gradients_3d", gradients_3d, (randn(2, 3, 6, 8, 5), rand(2, 3, 3), randn(2, 3, 3, 4, 2))),
    Case(
        "pools_dynamic",
        lambda x, r: aten.fractional_max_pool2d(x, [2, 3], [3, 4], r),
        (randn(4, 3, 8, 10), rand(4, 3, 2)),
        dynamic=True,
        second=(randn(3, 5, 9, 11), rand(3, 5, 2)),
    ),
]
