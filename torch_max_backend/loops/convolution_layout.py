"""In which order of memory a convolution shall have its image, its weight and its result.

oneDNN's kernels for channels in the last place of memory are much faster where there are few channels in a group, and
about equal elsewhere. Transposed convolutions of other images take up to six times as long. Kernels of one tap are
products of matrices, which are fast with contiguous images where the weight is large. Weights with more taps are put
into blocks at every call, which takes half as long if they have their channels last already. The limits below were
chosen on two cores; no benchmark of this repository shows them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

CHANNELS_LAST = (0, 2, 3, 1)
"""The order of an image's dimensions in memory."""
FEW_CHANNELS = 16
"""Channels in a group below which a convolution with channels last is much faster: oneDNN's vectors have so many."""
A_CHAIN = 3
"""So many convolutions share what it costs to put channels last and back."""
WORTH_A_COPY = 2**14
"""Elements of a convolution's image and result below which a copy costs more than it gives."""
HEAVY, HEAVY_PRODUCT = 16, 8
"""Elements of weights for one of the result from which reading them takes most of the time: with several taps, with
one."""
LARGE = 2**20
"""Elements of a weight with several taps below which it costs little to order it."""
WORTH_AN_ORDER = 2**13
"""Elements of a weight from which it pays to put its channels last."""


@dataclass(frozen=True)
class Convolution:
    """Sizes of a convolution of images, all of them known."""

    image: Sequence[int]
    weight: Sequence[int]
    result: Sequence[int]
    is_transposed: bool
    groups: int

    @property
    def is_heavy(self) -> bool:
        """Whether its image shall be contiguous, for the sake of the weight."""
        weights, results = math.prod(self.weight), math.prod(self.result)
        if math.prod(self.weight[2:]) == 1:
            return weights > HEAVY_PRODUCT * results
        return weights > max(LARGE, HEAVY * results)

    def gains(self, convolutions: int, copies: bool) -> bool:
        """Whether it pays to put channels last, among so many ``convolutions``; ``copies`` if the image is copied."""
        if self.is_transposed:
            return self.groups == 1
        if copies and math.prod(self.image) + math.prod(self.result) < WORTH_A_COPY:
            return False
        return self.image[1] < FEW_CHANNELS * self.groups or convolutions >= A_CHAIN

    @property
    def is_worth_copies(self) -> bool:
        """Whether channels last pay even where the result leaves and is copied back."""
        return (
            self.is_transposed and self.groups == 1 and math.prod(self.image) + math.prod(self.result) >= WORTH_A_COPY
        )

    @property
    def orders_weight(self) -> bool:
        """Whether the weight of an image with channels last shall have its channels last, too."""
        _, channels, *taps = self.weight
        return channels > 1 and math.prod(taps) > 1 and math.prod(self.weight) >= WORTH_AN_ORDER


@dataclass(frozen=True)
class CudnnConvolution(Convolution):
    """A convolution on a GPU. cuDNN's kernels for 16-bit floats take channels last, and copy everything else first."""

    @property
    def is_heavy(self) -> bool:
        """Never: the weight is read with channels last, too."""
        return False

    def gains(self, convolutions: int, copies: bool) -> bool:
        """Whether channels fill vectors. Groups of other sizes are faster with contiguous images."""
        inside, outside = self.image[1] // self.groups, self.result[1] // self.groups
        depthwise = inside == 1 and self.groups > 1
        return self.groups == 1 or depthwise or (inside % 8 == 0 and outside % 8 == 0)

    @property
    def orders_weight(self) -> bool:
        """Always."""
        return True


CUDNN_DTYPES = (torch.bfloat16, torch.float16)
"""Dtypes for which cuDNN has kernels for channels last alone."""
