"""Small products of floats, as loops.

oneDNN, which multiplies 16-bit floats, takes some 20 microseconds to begin, and MKL with torch's dispatcher 2 to 3,
whatever the sizes. Loops have been through a small product by then, and what follows it is computed in the same kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torch_max_backend.loops.index import Index
from torch_max_backend.loops.tensor import Tensor

aten = torch.ops.aten

# bmm(Tensor self, Tensor mat2) -> Tensor
# baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor
BATCHES = (aten.bmm.default, aten.baddbmm.default)
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
SMALL = 1 << 19
"""Multiplications up to which loops are faster."""


def is_product(args: Sequence[Any]) -> bool:
    """Whether a product of matrices, or of batches of them, with these arguments is one; sums come first."""
    *_, left, right = args
    if left.dtype not in DTYPES or right.dtype is not left.dtype:
        return False
    sizes = [Index.of(n) for n in (*left.shape, right.shape[-1])]
    return all(n.is_constant for n in sizes) and 0 < math.prod(int(n.constant) for n in sizes) <= SMALL


def is_pointwise(x: Tensor, weight: Tensor) -> bool:
    """Whether a convolution of one tap is one: an image ``[n, channels, ...]`` and a weight ``[features, ...]``."""
    places = Tensor((*x.shape[:1], *x.shape[2:], x.shape[1]), x.dtype, x.at)
    return is_product((places, Tensor((x.shape[1], weight.shape[0]), weight.dtype, weight.at)))
