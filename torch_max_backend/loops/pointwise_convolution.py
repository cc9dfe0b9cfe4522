"""Convolutions of one tap as products: a row for each place, a column for each channel of the result.

On a CPU, ATen's product takes 0.5 to 1.0 times as long as its convolution, in float32 and bfloat16, unless an image has
many places and many channels: a convolution puts its weight into blocks in every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_max_backend.loops.index import Index, product
from torch_max_backend.loops.tensor import Shape, Tensor

DTYPES = (torch.float32, torch.bfloat16)
FEW_PLACES, FEW_CHANNELS = 2048, 40
"""Places of all images, or channels of an image, up to which a product is faster."""


# convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation,
#     bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor
def is_product(args: Sequence[Any]) -> bool:
    """Whether a convolution with these arguments reads each place of its image once, by itself."""
    x, weight, _, stride, padding, _, transposed, _, groups = args
    return (
        x.dtype in DTYPES
        and x.rank > 2
        and not transposed
        and groups == 1
        and all(n == 1 for n in weight.shape[2:])
        and all(s == 1 for s in stride)
        and all(p == 0 for p in padding)
        and not any(n == 0 for n in (*x.shape, *weight.shape))
        and (x.shape[1].typical <= FEW_CHANNELS or _places(x).typical <= FEW_PLACES)
    )


def _places(x: Tensor) -> Index:
    return product([x.shape[0], *x.shape[2:]])


def operands(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The image as ``[places, channels]``, and the weight as ``[channels, channels of the result]``."""
    channels, *sizes = x.shape[1:]

    def at(index: Shape) -> Any:
        place, channel = index
        own = []
        for size in reversed(sizes):
            own.append(place % size)
            place = place // size
        return x.at((place, channel, *reversed(own)))

    zeros = (Index.of(0),) * len(sizes)
    rows = Tensor((_places(x), channels), x.dtype, at)
    turned = Tensor((channels, weight.shape[0]), weight.dtype, lambda index: weight.at((index[1], index[0], *zeros)))
    return rows, turned


def image_of(y: Tensor, shape: Shape) -> Tensor:
    """A product's result ``[places, channels]`` as an image of this shape."""

    def at(index: Shape) -> Any:
        place, channel, *own = index
        for k, size in zip(own, shape[2:], strict=True):
            place = place * size + k
        return y.at((place, channel))

    return Tensor(shape, y.dtype, at)
