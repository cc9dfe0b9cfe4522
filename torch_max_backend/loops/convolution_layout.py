"""In which order of memory a convolution shall have its image, its weight and its result.

oneDNN's kernels for channels in the last place of memory are much faster where there are few channels in a group, and
somewhat faster elsewhere: of more than one tap, they pay for copies of images by loops, which turn them in registers,
unless weights are large, which are copied as well. Transposed convolutions of other images take up to six times as long
(those of stride 1 are plain ones by then: see ``transposed_convolution``). Kernels of one tap are products of matrices,
which are fast with contiguous images where the weight is large. Weights with more taps are put into blocks at every
call, which takes half as long if they have their channels last already. The limits below were chosen on two cores; no
benchmark of this repository shows them.
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
FEW_FEATURES = 4
"""The same of a group's features."""
FEW_TRANSPOSED = 4
"""The same of a transposed one, of a stride other than 1. With one channel in a group, four in the result's, and a
stride of 2, it takes a seventh of the time in bfloat16 and a third in float32, with copies a quarter and nine tenths;
two and three channels were not measured. Depthwise ones do not pay for copies."""
A_CHAIN = 3
"""So many convolutions share what it costs to put channels last and back."""
WORTH_A_COPY = 2**14
"""Elements of a convolution's image and result below which a copy costs more than it gives."""
HEAVY, HEAVY_PRODUCT = 16, 8
"""Elements of weights for one of the result from which reading them takes most of the time: with several taps, with
one."""
LARGE = 2**20
"""Elements of a weight with several taps below which it costs little to order it."""
LARGE_FOR_GRADIENTS = 2**18
"""The same where gradients are computed with channels last."""
COPIED_WEIGHTS = 8
"""Elements of images for one of the weight from which gradients pay for copies. Those of depthwise convolutions always
do: they take 1.2 to 25 times as long with contiguous images, of the weight above all."""
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
            return self._is_slow_transposed
        if copies and math.prod(self.image) + math.prod(self.result) < WORTH_A_COPY:
            return False
        is_narrow = self.image[1] < FEW_CHANNELS * self.groups or self._is_of_narrow_groups
        return is_narrow or convolutions >= A_CHAIN or self._is_worth_turning

    @property
    def is_worth_copies(self) -> bool:
        """Whether channels last pay even where the result leaves and is copied back."""
        if math.prod(self.image) + math.prod(self.result) < WORTH_A_COPY:
            return False
        if self.is_transposed:
            return self._is_slow_transposed
        return self._is_of_narrow_groups or self._is_worth_turning

    @property
    def _is_of_narrow_groups(self) -> bool:
        """Whether its groups, of more than a channel, have few channels or few features."""
        inside, features = self.image[1] // self.groups, self.result[1] // self.groups
        is_narrow = inside < FEW_CHANNELS or features < FEW_FEATURES
        return self.groups > 1 and inside > 1 and is_narrow and math.prod(self.weight[2:]) > 1

    @property
    def _is_worth_turning(self) -> bool:
        """Whether a convolution without groups gains more from channels last than it costs to turn image and result."""
        images = math.prod(self.image) + math.prod(self.result)
        return self.groups == 1 and math.prod(self.weight[2:]) > 1 and 2 * math.prod(self.weight) <= images

    @property
    def _is_slow_transposed(self) -> bool:
        """Whether a transposed convolution of a contiguous image takes longer: of groups, those of few channels."""
        inside, outside = self.image[1] // self.groups, self.result[1] // self.groups
        return self.groups == 1 or (inside < FEW_TRANSPOSED and outside > 1)

    def gains_gradients(self, copies: bool) -> bool:
        """Whether gradients gain from an image with channels last; ``copies`` if it and the gradient are copied."""
        weights, images = math.prod(self.weight), math.prod(self.image) + math.prod(self.result)
        if self.is_transposed or (copies and images < WORTH_A_COPY):
            return False
        return self.groups > 1 or (COPIED_WEIGHTS if copies else 2) * weights <= images

    @property
    def orders_weight(self) -> bool:
        """Whether the weight of an image with channels last shall have its channels last, too."""
        _, channels, *taps = self.weight
        return channels > 1 and math.prod(taps) > 1 and math.prod(self.weight) >= WORTH_AN_ORDER

    @property
    def orders_weight_for_gradients(self) -> bool:
        """The same where gradients are computed: a copy of the weight that they alone read."""
        return not self.is_transposed and math.prod(self.weight) >= LARGE_FOR_GRADIENTS


@dataclass(frozen=True)
class CudnnConvolution(Convolution):
    """A convolution on a GPU. cuDNN's kernels for tensor cores take channels last, and copy everything else first.

    Those of float32, which multiply in TF32, have a rival in kernels for contiguous images that copy nothing.
    """

    dtype: torch.dtype = torch.bfloat16

    @property
    def is_heavy(self) -> bool:
        """Never: the weight is read with channels last, too."""
        return False

    def gains(self, convolutions: int, copies: bool) -> bool:
        """Whether groups fill cuDNN's tiles. Those of other sizes are faster with contiguous images.

        cuDNN fills their tiles up with zeros: of an image with channels last by a kernel that takes longer than the
        convolution, of a contiguous one as it copies it anyway. Images of one channel lie in both ways at once: ATen
        takes them for contiguous. Groups were measured in 16 bits alone (docs/gpu-measurements.md). Channels without
        groups are filled up as well; of one tap little is multiplied, and reading the image is what takes long.
        """
        inside, outside = self.image[1] // self.groups, self.result[1] // self.groups
        if copies and self.dtype not in CUDNN_DTYPES and not self.is_worth_a_copy:
            return False
        vector = 16 // self.dtype.itemsize
        if self.groups == 1:
            is_filled = math.prod(self.weight[2:]) == 1 and bool(inside % vector or outside % vector)
            return inside > 1 and not (is_filled and (copies or convolutions < A_CHAIN))
        return inside == 1 or all(n % vector == 0 and n.bit_count() == 1 for n in (inside, outside))

    @property
    def is_worth_a_copy(self) -> bool:
        """Whether so much is multiplied, for each number that is copied, too, that a copy of an image is soon paid."""
        read, written = (self.result, self.image) if self.is_transposed else (self.image, self.result)
        inside, taps = read[1] // self.groups, math.prod(self.weight[2:])
        is_dense = inside > 1 and (taps > 1 or inside >= WIDE)
        return is_dense and math.prod(written) * inside * taps >= WORTH_COPIES

    @property
    def is_worth_copies(self) -> bool:
        """Whether channels last pay even where the result leaves and is copied back."""
        return self.is_worth_a_copy and self.gains(1, copies=True)

    @property
    def orders_weight(self) -> bool:
        """Always."""
        return True


CUDNN_DTYPES = (torch.bfloat16, torch.float16)
"""Dtypes for which cuDNN has kernels for channels last alone."""
WORTH_COPIES, WIDE = 2**27, 128
"""Multiplications of a convolution on a GPU that are worth copies of its image and result, and channels from which one
of a single tap is: a guess that no benchmark of this repository shows. On an H200, float32 convolutions of 2.4e9 and
6e8 multiplications took two thirds of the time, a copy included."""


def cudnn_dtypes(device: torch.device) -> tuple[torch.dtype, ...]:
    """Dtypes of convolutions on a GPU for which channels may be put last: float32 if it may be multiplied in TF32."""
    here = torch.cuda.is_available()
    has_tf32 = torch.backends.cudnn.allow_tf32 and (not here or torch.cuda.get_device_capability(device) >= (8, 0))
    return (*CUDNN_DTYPES, torch.float32) if has_tf32 else CUDNN_DTYPES
