"""Resizing in every mode, sampling at given places, and the rearrangement between images and columns."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.support.cases import Case, ints, rand, randn

aten = torch.ops.aten
BF16, F64 = torch.bfloat16, torch.float64


def nearest(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.interpolate(x, scale_factor=2),
        F.interpolate(x, size=(9, 5)),
        F.interpolate(x, scale_factor=(1.7, 0.6), mode="nearest-exact"),
        F.interpolate(x[0], size=13, mode="nearest-exact"),
        F.interpolate(x[None], size=(3, 9, 5)),
    )


def linear(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.interpolate(x, scale_factor=2, mode="bilinear"),
        F.interpolate(x, size=(9, 5), mode="bilinear", align_corners=True),
        F.interpolate(x, scale_factor=(1.7, 0.6), mode="bilinear"),
        F.interpolate(x[None], size=(3, 9, 5), mode="trilinear"),
        F.interpolate(x, scale_factor=1.5, mode="bicubic"),
    )


def overloads(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The ops themselves, which other front ends keep where Dynamo decomposes them."""
    return (
        aten.upsample_nearest2d(x, [12, 16]),
        aten.upsample_nearest2d(x, [9, 5], 1.7, 0.6),
        aten._upsample_nearest_exact2d(x, [9, 5]),
        aten.upsample_bilinear2d(x, [9, 5], True),
        aten.upsample_bicubic2d(x, [9, 5], False),
        aten.upsample_linear1d(x[0], [13], False),
        aten.upsample_trilinear3d(x[None], [3, 9, 5], False),
    )


def backward(g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        aten.upsample_nearest2d_backward(g, [12, 16], [2, 3, 6, 8]),
        aten.upsample_nearest2d_backward(g, [12, 16], [2, 3, 7, 5]),
        aten._upsample_nearest_exact2d_backward(g, [12, 16], [2, 3, 7, 5]),
        aten.upsample_bilinear2d_backward(g, [12, 16], [2, 3, 7, 5], False),
        aten.upsample_bicubic2d_backward(g, [12, 16], [2, 3, 7, 5], True),
    )


def backward_1d(g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        aten.upsample_nearest1d_backward(g, [12], [2, 3, 5]),
        aten._upsample_nearest_exact1d_backward(g, [12], [2, 3, 7]),
        aten.upsample_linear1d_backward(g, [12], [2, 3, 7], False),
        aten.upsample_linear1d_backward(g, [12], [2, 3, 17], True),
    )


def backward_3d(g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        aten.upsample_nearest3d_backward(g, [4, 6, 8], [1, 2, 2, 3, 4]),
        aten._upsample_nearest_exact3d_backward(g, [4, 6, 8], [1, 2, 5, 4, 3]),
        aten.upsample_trilinear3d_backward(g, [4, 6, 8], [1, 2, 5, 4, 3], False),
        aten.upsample_trilinear3d_backward(g, [4, 6, 8], [1, 2, 3, 2, 1], True),
    )


def sampled(x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(
        F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=(i + j) % 2 == 0)
        for i, mode in enumerate(("bilinear", "nearest", "bicubic"))
        for j, padding in enumerate(("zeros", "border", "reflection"))
    )


def sampled_backward(g: torch.Tensor, x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
    results: list[torch.Tensor] = []
    for padding, corners in ((0, False), (1, True), (2, False), (2, True)):
        results += aten.grid_sampler_2d_backward(g, x, grid, 0, padding, corners, [True, True])
    results += aten.grid_sampler_2d_backward(g, x, grid, 1, 0, False, [True, True])
    return tuple(results)


def columns(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.unfold(x, 3),
        F.unfold(x, (2, 3), dilation=(2, 1), padding=(1, 2), stride=(2, 1)),
        F.unfold(x[0], 2, stride=2),
    )


def images(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.fold(x, (5, 7), 3),
        F.fold(x[0], (5, 7), 3),
        F.fold(x[..., :12], (8, 6), 3, padding=1, stride=2),
        F.fold(x[..., :12], (7, 6), 3, dilation=2, padding=1, stride=(2, 1)),
    )


def rearranged(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.pixel_shuffle(x, 2),
        F.pixel_unshuffle(x, 2),
        F.channel_shuffle(x, 4),
        F.affine_grid(x[:, 0, :2, :3], [2, 1, 5, 6], align_corners=False),
    )


PLACES = rand(2, 5, 4, 2, low=-1.6, high=1.6)

CASES = [
    Case("nearest_f32", nearest, (randn(2, 3, 6, 8),), exact=True),
    Case("nearest_u8", nearest, (ints(2, 3, 6, 8, low=0, high=255, dtype=torch.uint8),)),
    Case("linear_f32", linear, (randn(2, 3, 6, 8),)),
    Case(
        "linear_bf16",
        lambda x: F.interpolate(x, size=(9, 5), mode="bilinear"),
        (randn(2, 3, 6, 8, dtype=BF16),),
        atol=2e-2,
        why="eager rounds per axis or tap",
    ),
    Case("overloads_f32", overloads, (randn(2, 3, 6, 8),)),
    Case("overloads_f64", overloads, (randn(2, 3, 6, 8, dtype=F64),), atol=1e-5, why="weights are float32"),
    Case("backward_f32", backward, (randn(2, 3, 12, 16),)),
    Case("backward_1d_f32", backward_1d, (randn(2, 3, 12),)),
    Case("backward_1d_f64", backward_1d, (randn(2, 3, 12, dtype=F64),), atol=1e-5, why="weights are float32"),
    Case("backward_3d_f32", backward_3d, (randn(1, 2, 4, 6, 8),)),
    Case("sampled_f32", sampled, (randn(2, 3, 6, 8), PLACES)),
    Case(
        "sampled_far_away",
        lambda x, grid: tuple(F.grid_sample(x, grid, padding_mode=p, align_corners=True) for p in ("zeros", "border")),
        (randn(2, 3, 6, 8), torch.tensor([1e20, -1e20, -30.0, 0.5]).view(1, 1, 2, 2).expand(2, 1, 2, 2).clone()),
    ),
    Case("sampled_backward", sampled_backward, (randn(2, 3, 5, 4), randn(2, 3, 6, 8), PLACES)),
    Case("columns_f32", columns, (randn(2, 3, 6, 8),), exact=True),
    Case("columns_bf16", columns, (randn(2, 3, 6, 8, dtype=BF16),), exact=True),
    Case("images_f32", images, (randn(2, 18, 15),)),
    Case("rearranged_f32", rearranged, (randn(2, 8, 4, 6),)),
    Case(
        "dynamic",
        lambda x: (F.unfold(x, 3), F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False)),
        (randn(2, 3, 6, 8),),
        dynamic=True,
        second=(randn(3, 4, 7, 5),),
    ),
]
