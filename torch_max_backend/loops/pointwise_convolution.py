"""Convolutions of one tap as products.

With channels last it is one product: a row for each place, a column for each channel of the result. On a CPU, ATen's
product takes 0.5 to 1.0 times as long as its convolution, in float32 and bfloat16, unless an image has many places and
many channels: a convolution puts its weight into blocks in every call.

With contiguous images it is a product for each of them, of the weight and the image, which takes 0.2 to 0.6 times as
long as a convolution in bfloat16. In float32 loops take 0.3 to 1.0 times as long, where there are few channels. Groups
are products, too: 0.2 to 0.6 times as long with few channels in a group, and in float32 up to 1.1 with more.

Of a stride other than 1, the places that are read are picked first, which is a copy of as many elements, or a loop's
own way to read. Contiguous images take 0.15 to 0.8 times as long then; those with channels last gain where they are
small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_max_backend.loops.index import Index, product
from torch_max_backend.loops.rules import views
from torch_max_backend.loops.tensor import Shape, Tensor

DTYPES = (torch.float32, torch.bfloat16)
FEW_PLACES, FEW_CHANNELS = 2048, 40
"""Places of all images, or channels of an image, up to which a product is faster."""
FEW_PICKED, FEW_MULTIPLICATIONS = 1 << 15, 1 << 22
"""Elements of picked places up to which a copy costs less than a convolution takes to begin, and multiplications below
which that is so."""
FEWER_CHANNELS = 32
"""Channels of contiguous images of float32, or of the result, below which loops are faster."""


# convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation,
#     bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor
def is_of_one_tap(args: Sequence[Any]) -> bool:
    """Whether a convolution with these arguments reads each place of its image once, by itself."""
    x, weight, _, _, padding, _, is_transposed = args[:7]
    return (
        x.dtype in DTYPES
        and x.rank > 2
        and not is_transposed
        and all(n == 1 for n in weight.shape[2:])
        and all(p == 0 for p in padding)
        and not any(n == 0 for n in (*x.shape, *weight.shape))
    )


def of_stride_1(args: Sequence[Any]) -> list[Any]:
    """The arguments of a convolution of one tap, of those places of its image alone that it reads."""
    x, weight, bias, stride, *others = args
    for dim, step in enumerate(stride, 2):
        x = views.slice_(x, dim, step=step) if step != 1 else x
    return [x, weight, bias, [1] * len(stride), *others]


def is_product(args: Sequence[Any], is_picked: bool = False) -> bool:
    """Whether a convolution of one tap is better one product; of places that are picked from an image, they are copied
    for it."""
    x, weight = args[:2]
    if is_picked:
        places, channels, features = (n.typical for n in (_places(x), x.shape[1], weight.shape[0]))
        few = places <= FEW_PLACES and places * channels <= FEW_PICKED
        return few and places * channels * features < FEW_MULTIPLICATIONS
    return x.shape[1].typical <= FEW_CHANNELS or _places(x).typical <= FEW_PLACES


def has_few_channels(args: Sequence[Any]) -> bool:
    """Whether a convolution of one tap of contiguous images of float32 is better a loop."""
    x, weight = args[:2]
    return x.dtype is torch.float32 and min(n.typical for n in weight.shape[:2]) < FEWER_CHANNELS


def has_small_groups(args: Sequence[Any]) -> bool:
    """Whether a convolution of one tap of contiguous images is better a product for each group of each image."""
    x, inside = args[0], args[1].shape[1].typical
    return x.dtype is torch.bfloat16 or inside < FEWER_CHANNELS


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

    rows = Tensor((_places(x), channels), x.dtype, at)
    return rows, views.t(_matrix(weight))


def operands_for_each_image(x: Tensor, weight: Tensor, groups: int = 1) -> tuple[Tensor, Tensor]:
    """The weight as ``[images * groups, features, channels]``, the images as ``[images * groups, channels, places]``.

    Features and channels are those of a group.
    """
    images, channels = x.shape[:2]
    matrix = views.reshaped(_matrix(weight), [groups, weight.shape[0] // groups, weight.shape[1]])
    every = views.expand(views.unsqueeze(matrix, 0), [images, *matrix.shape])
    parts = views.reshaped(x, [images * groups, channels // groups, product(x.shape[2:])])
    return views.reshaped(every, [images * groups, *matrix.shape[1:]]), parts


def _matrix(weight: Tensor) -> Tensor:
    """A weight as ``[features, channels]``."""
    return views.reshaped(weight, weight.shape[:2])


def image_of(y: Tensor, shape: Shape) -> Tensor:
    """A product's result ``[places, channels]`` as an image of this shape."""

    def at(index: Shape) -> Any:
        place, channel, *own = index
        for k, size in zip(own, shape[2:], strict=True):
            place = place * size + k
        return y.at((place, channel))

    return Tensor(shape, y.dtype, at)
