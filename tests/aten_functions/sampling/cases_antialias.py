"""Antialiased resizing: filters, sizes, scales, bytes, and gradients."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.support.cases import Case, ints, randn

F64 = torch.float64
aten = torch.ops.aten
FILTERS = ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa")


def resizes(x):
    results = []
    for name in FILTERS:
        if hasattr(aten, name):
            results += [getattr(aten, name)(x, [3, 5], False), getattr(aten, name)(x, [4, 30], True)]
    return tuple(results)


def more_sizes(x):
    cubic = aten._upsample_bicubic2d_aa
    return *(cubic(x, [n, n], c) for n in (1, 20) for c in (False, True)), cubic(x, list(x.shape[2:]), False)


def scaled(x):
    return tuple(
        F.interpolate(x, scale_factor=s, mode=mode, antialias=True, recompute_scale_factor=r)
        for mode in ("bilinear", "bicubic")
        for s, r in ((0.5, None), (0.37, None), (0.37, True), ((0.3, 2.1), None))
    )


def gradients(grad):
    results = []
    for name in FILTERS:
        if hasattr(aten, f"{name}_backward"):
            backward = getattr(aten, f"{name}_backward")
            for size, corners in (([2, 3, 12, 17], False), ([2, 3, 4, 3], True)):
                results.append(backward(grad, list(grad.shape[2:]), size, corners))
    return tuple(results)


SPECIAL = torch.zeros(1, 1, 12, 12)
SPECIAL[0, 0, 3, 3], SPECIAL[0, 0, 9, 9], SPECIAL[0, 0, 0, 11] = float("nan"), float("inf"), -float("inf")

CASES = [
    Case("resizes", resizes, (randn(2, 3, 7, 11),)),
    Case("resizes_f64", resizes, (randn(1, 2, 13, 6, dtype=F64),)),
    Case("resizes_bytes", resizes, (ints(3, 2, 17, 23, low=0, high=256, dtype=torch.uint8),)),
    Case("more_sizes", more_sizes, (randn(1, 2, 13, 6),)),
    Case("scaled", scaled, (randn(2, 3, 17, 23),)),
    Case("scaled_bytes", scaled, (ints(2, 3, 17, 23, low=0, high=256, dtype=torch.uint8),)),
    Case("resizes_special", resizes, (SPECIAL,)),
    Case("resizes_far", lambda x: F.interpolate(x, (7, 9), mode="bicubic", antialias=True), (randn(1, 3, 224, 300),)),
    Case("resizes_channels_last", lambda x: F.interpolate(x.contiguous(memory_format=torch.channels_last), (5, 4),
         mode="bilinear", antialias=True), (randn(2, 3, 9, 8),)),
    Case("resizes_empty", lambda x: F.interpolate(x, (5, 4), mode="bilinear", antialias=True), (randn(0, 3, 9, 8),)),
    Case("gradients", gradients, (randn(2, 3, 6, 8),)),
    Case("gradients_f64", gradients, (randn(2, 3, 6, 8, dtype=F64),)),
]  # fmt: skip
