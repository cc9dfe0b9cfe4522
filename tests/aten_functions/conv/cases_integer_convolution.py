"""Convolutions of integers, which wrap around: one to three sizes, strides, paddings, dilations, groups, transposed."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.support.cases import Case, ints

WIDE = {"low": -(2**62), "high": 2**62}


def plain(x, w, b):
    convolution = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]
    return convolution(x, w, b), convolution(x[0], w[:, :2], None, stride=2, padding=1, groups=2)


def dilated(x, w, b):
    convolution = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]
    return convolution(x, w, b, dilation=2, padding=2), convolution(x, w[:, :2], None, 2, 1, 2, 2)


def same(x, w):
    return F.conv2d(x, w, padding="same")


def transposed(x, w, b):
    convolution = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[x.dim() - 3]
    return (
        convolution(x, w, b, stride=3, padding=1, output_padding=2),
        convolution(x, w, torch.cat([b, b]), groups=2),
        convolution(x, w, b, dilation=2, stride=2),
    )


CASES = [
    Case("plain_2d", plain, (ints(2, 4, 7, 8), ints(6, 4, 3, 2), ints(6))),
    Case("plain_1d", plain, (ints(2, 4, 9), ints(6, 4, 3), ints(6))),
    Case("plain_3d", plain, (ints(2, 4, 5, 6, 4), ints(6, 4, 2, 3, 2), ints(6))),
    Case("dilated_2d", dilated, (ints(2, 4, 7, 8), ints(6, 4, 3, 2), ints(6))),
    Case("dilated_1d", dilated, (ints(2, 4, 9), ints(6, 4, 3), ints(6))),
    Case("dilated_3d", dilated, (ints(2, 4, 7, 8, 5), ints(6, 4, 3, 2, 2), ints(6))),
    Case("transposed_2d", transposed, (ints(2, 4, 5, 6), ints(4, 3, 3, 2), ints(3))),
    Case("transposed_1d", transposed, (ints(2, 4, 5), ints(4, 3, 3), ints(3))),
    Case("transposed_3d", transposed, (ints(2, 4, 3, 4, 3), ints(4, 3, 2, 3, 2), ints(3))),
    Case("wraps_i64", plain, (ints(2, 4, 7, 8, **WIDE), ints(6, 4, 3, 2, **WIDE), ints(6))),
    *(
        Case(
            f"plain_{name}",
            plain,
            (
                ints(2, 4, 7, 8, low=low, high=127, dtype=dtype),
                ints(6, 4, 3, 2, low=low, high=127, dtype=dtype),
                ints(6, low=0, dtype=dtype),
            ),
        )
        for name, dtype, low in (
            ("i32", torch.int32, -99),
            ("i16", torch.int16, -99),
            ("i8", torch.int8, -99),
            ("u8", torch.uint8, 0),
        )
    ),
    Case("same", same, (ints(2, 4, 7, 8), ints(6, 4, 3, 2))),
    Case("empty_batch", lambda x, w: F.conv2d(x, w), (ints(0, 4, 7, 8), ints(6, 4, 3, 2))),
    Case(
        "dynamic",
        lambda x, w, b: (F.conv2d(x, w, b, stride=2, padding=1), F.conv_transpose2d(x, w, stride=2)),
        (ints(4, 6, 7, 8), ints(6, 6, 3, 2), ints(6)),
        dynamic=True,
        second=(ints(3, 6, 9, 10), ints(6, 6, 3, 2), ints(6)),
    ),
]
