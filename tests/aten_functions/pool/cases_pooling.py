"""Pooling: windows of every kind, NaN and ties, ceil mode, divisors, adaptive sizes, and gradients."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.support.cases import Case, ints, rand, randn

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64

# Ties everywhere, a NaN in two places, a window of nothing but minus infinity, and both zeros.
HARD = torch.arange(2 * 3 * 9 * 11).remainder(5).float().view(2, 3, 9, 11)
HARD[0, 0, 2, 3] = HARD[0, 0, 2, 5] = HARD[1, 2, 8, 10] = NAN
HARD[0, 1, :5, :6] = -INF
HARD[1, 0] = torch.where(torch.arange(99).view(9, 11) % 2 == 0, 0.0, -0.0)


def largest(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.max_pool2d(x, 3),
        F.max_pool2d(x, 3, 2, 1),
        F.max_pool2d(x, (2, 4), (1, 3), (1, 2), ceil_mode=True),
        F.max_pool2d(x, 3, 2, 1, dilation=2, ceil_mode=True),
        F.max_pool2d(x[0], 2),
        F.max_pool2d(x, 5, 1, 2),
    )


def largest_places(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        *F.max_pool2d(x, 3, return_indices=True),
        *F.max_pool2d(x, 3, 2, 1, return_indices=True),
        *F.max_pool2d(x, (2, 4), (1, 3), (1, 2), ceil_mode=True, return_indices=True),
        *F.max_pool2d(x, 3, 2, 1, dilation=2, ceil_mode=True, return_indices=True),
        *F.max_pool2d(x[0], 2, return_indices=True),
    )


def largest_other_sizes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.max_pool1d(x[0], 3, 2, 1),
        F.max_pool3d(x, 2),
        F.max_pool3d(x, 3, 2, 1, ceil_mode=True),
        *F.max_pool3d(x, 3, (1, 2, 2), 1, return_indices=True),
        *F.max_pool1d(x[0], 3, 2, return_indices=True),
    )


WINDOWS = (
    ([3, 3], [2, 2], [1, 1], [1, 1], False),
    ([2, 3], [1, 2], [1, 1], [2, 1], True),
    ([2, 2], [2, 2], [0, 0], [1, 1], False),
    ([3, 1], [1, 3], [1, 0], [1, 1], True),
)
"""Arguments of ``max_pool2d_with_indices``: kernel, stride, padding, dilation and whether sizes are rounded up."""


def largest_backward_of_images(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    results = []
    for window in WINDOWS:
        values, places = aten.max_pool2d_with_indices(x, *window)
        results.append(aten.max_pool2d_with_indices_backward(torch.sin(values), x, *window, places))
    return tuple(results)


def largest_backward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    window = ([1, 3, 3], [1, 2, 2], [0, 1, 1], [1, 1, 1], False)
    values, places = aten.max_pool3d_with_indices(x, *window)
    in_space = aten.max_pool3d_with_indices_backward(torch.sin(values), x, *window, places)
    return *largest_backward_of_images(x), in_space


def means(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.avg_pool2d(x, 3),
        F.avg_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        F.avg_pool2d(x, (2, 4), (1, 3), (1, 2), ceil_mode=True),
        F.avg_pool2d(x, (2, 4), (1, 3), (1, 2), ceil_mode=True, count_include_pad=False),
        F.avg_pool2d(x, 3, 2, 1, divisor_override=7, ceil_mode=True),
        F.avg_pool2d(x[0], 2),
        F.avg_pool2d(x, (9, 11)),
        F.avg_pool1d(x[0], 3, 2, 1),
        F.avg_pool1d(x[0], 4, 2, 1, ceil_mode=True, count_include_pad=False),
    )


def means_three_sizes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.avg_pool3d(x, 2),
        F.avg_pool3d(x, 3, 2, 1, count_include_pad=False),
        F.avg_pool3d(x, (1, 3, 2), (1, 2, 2), (0, 1, 1), ceil_mode=True),
    )


def whole_means(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Means of integers are rounded towards zero."""
    return (
        *means(x),
        F.avg_pool2d(x, 3, divisor_override=-2),
        *means_three_sizes(x[:, :, None].expand(2, 3, 4, 9, 11)),
    )


def means_backward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    results = []
    for window in (
        ([3, 3], [2, 2], [1, 1], False, True, None),
        ([3, 3], [1, 1], [1, 1], False, False, None),
        ([2, 4], [1, 3], [1, 2], True, True, None),
        ([2, 4], [1, 3], [1, 2], True, False, None),
        ([3, 3], [3, 4], [0, 0], False, True, None),
        ([2, 2], [3, 3], [0, 0], False, True, 5),
        ([3, 11], [3, 11], [0, 0], False, True, None),
    ):
        out = aten.avg_pool2d(x, *window)
        results.append(aten.avg_pool2d_backward(torch.sin(out), x, *window))
    if x.dtype == BF16:  # torch has no average of three spatial sizes for it
        return tuple(results)
    window = ([2, 3, 2], [1, 2, 2], [1, 1, 0], True, False, None)
    out = aten.avg_pool3d(x, *window)
    results.append(aten.avg_pool3d_backward(torch.sin(out), x, *window))
    return tuple(results)


def adaptive_means(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.adaptive_avg_pool2d(x, 1),
        F.adaptive_avg_pool2d(x, (3, 11)),
        F.adaptive_avg_pool2d(x, (4, 5)),
        F.adaptive_avg_pool2d(x, (13, 3)),
        F.adaptive_avg_pool2d(x[0], (2, None)),
        F.adaptive_avg_pool1d(x[0], 4),
        F.adaptive_avg_pool3d(x, (2, 4, 5)),
        F.adaptive_avg_pool3d(x, (1, 3, 1)),
    )


def adaptive_means_backward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    sizes = ([4, 5], [3, 11], [1, 1], [13, 3])
    flat = [aten._adaptive_avg_pool2d_backward(torch.sin(aten._adaptive_avg_pool2d(x, s)), x) for s in sizes]
    deep = aten._adaptive_avg_pool3d_backward(torch.sin(aten._adaptive_avg_pool3d(x, [2, 4, 1])), x)
    return (*flat, deep)


def adaptive_largest(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        *F.adaptive_max_pool2d(x, (4, 5), return_indices=True),
        *F.adaptive_max_pool2d(x[0], 1, return_indices=True),
        *F.adaptive_max_pool3d(x, (2, 4, 5), return_indices=True),
        *F.adaptive_max_pool1d(x[0], 4, return_indices=True),
    )


def adaptive_largest_backward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    flat, places = aten.adaptive_max_pool2d(x, [4, 5])
    deep, deep_places = aten.adaptive_max_pool3d(x, [2, 4, 5])
    return (
        aten.adaptive_max_pool2d_backward(torch.sin(flat), x, places),
        aten.adaptive_max_pool3d_backward(torch.sin(deep), x, deep_places),
    )


def empty(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.max_pool2d(x, 2),
        *F.max_pool2d(x, 2, return_indices=True),
        F.avg_pool2d(x, 2),
        F.adaptive_avg_pool2d(x, (4, 5)),
    )


IMAGE = randn(2, 3, 9, 11)
ONCE = "sums of a window in another order, rounded once"

CASES = [
    Case("largest_hard", largest, (HARD,), exact=True),
    Case("largest_bf16", largest, (randn(2, 3, 9, 11, dtype=BF16),), exact=True),
    Case("largest_i64", largest, (ints(2, 3, 9, 11),)),
    Case(
        "largest_channels_last",
        lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2),
        (HARD.to(memory_format=torch.channels_last),),
        exact=True,
    ),
    Case("places_channels_last", largest_places, (HARD.to(memory_format=torch.channels_last),), exact=True),
    Case(
        "largest_backward_channels_last",
        largest_backward_of_images,
        (HARD.nan_to_num().to(memory_format=torch.channels_last),),
    ),
    Case("places_hard", largest_places, (HARD,), exact=True),
    Case("places_f16", largest_places, (randn(2, 3, 9, 11, dtype=F16),), exact=True),
    Case("places_i32", largest_places, (ints(2, 3, 9, 11, dtype=torch.int32),)),
    Case("largest_other_sizes", largest_other_sizes, (HARD,), exact=True),
    Case("largest_backward_f32", largest_backward, (HARD.nan_to_num(),)),
    Case("largest_backward_f64", largest_backward, (randn(2, 3, 9, 11, dtype=F64),)),
    Case("means_f32", means, (IMAGE,)),
    Case("means_i64", whole_means, (ints(2, 3, 9, 11, low=-99, high=99),)),
    Case("means_i64_wraps", whole_means, (ints(2, 3, 9, 11, low=-(2**62), high=2**62),)),
    Case("means_f64", means, (randn(2, 3, 9, 11, dtype=F64),)),
    Case("means_bf16", means, (rand(2, 3, 9, 11, dtype=BF16),), atol=8e-3, why=ONCE),
    Case("means_not_finite", means, (HARD,)),
    Case("means_three_sizes", means_three_sizes, (IMAGE,)),
    Case("means_backward_f32", means_backward, (IMAGE,)),
    Case("means_backward_bf16", means_backward, (randn(2, 3, 9, 11, dtype=BF16),), atol=8e-3, why=ONCE),
    Case("adaptive_means_f32", adaptive_means, (IMAGE,)),
    Case("adaptive_means_bf16", adaptive_means, (rand(2, 3, 9, 11, dtype=BF16),), atol=8e-3, why=ONCE),
    Case("adaptive_means_not_finite", adaptive_means, (HARD,)),
    Case("adaptive_means_backward_f32", adaptive_means_backward, (IMAGE,)),
    Case("adaptive_largest_hard", adaptive_largest, (HARD,), exact=True),
    Case("adaptive_largest_backward", adaptive_largest_backward, (IMAGE,)),
    Case("empty", empty, (torch.zeros(0, 3, 9, 11),)),
    Case(
        "dynamic_largest",
        lambda x: (F.max_pool2d(x, 3, 2, 1), *F.max_pool2d(x, 2, 2, ceil_mode=True, return_indices=True)),
        (IMAGE,),
        dynamic=True,
        second=(randn(3, 4, 12, 10),),
    ),
    Case(
        "dynamic_means",
        lambda x: (
            F.avg_pool2d(x, 3, 2, 1),
            F.adaptive_avg_pool2d(x, 1),
            F.avg_pool2d(x, 2),
        ),
        (IMAGE,),
        dynamic=True,
        second=(randn(3, 4, 12, 10),),
    ),
    Case(
        "dynamic_backward",
        lambda g, x: aten.avg_pool2d_backward(g, x, [3, 3], [2, 2], [1, 1], False, True, None),
        (randn(2, 3, 5, 6), IMAGE),
        dynamic=True,
        second=(randn(3, 4, 6, 5), randn(3, 4, 12, 10)),
    ),
    Case(
        "dynamic_counts",  # specialised: windows at the border count fewer elements
        lambda x: (F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), F.avg_pool2d(x, 2, 2, ceil_mode=True)),
        (IMAGE,),
        dynamic=True,
    ),
]
