"""Transposed convolutions of stride 1 as plain ones.

A place of the result adds up what a window of the image sends to it: a convolution with the taps in reverse, and the
weight's channels the other way round. Where ATen's transposed one is fast on a CPU, the plain one takes 0.9 to 1.3
times as long; with a bias, or groups of one or two channels, it is up to thirty times as fast. In groups of many
channels and few features it is up to thirty times as slow, since it writes every channel once for every tap, where the
transposed one writes every feature so. No benchmark of this repository shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_max_backend.loops.index import Index, product
from torch_max_backend.loops.tensor import Shape, Tensor

DTYPES = (torch.float32, torch.bfloat16)
HEAVY = 1
"""Elements of the weight, which is copied, for one of the result: above that, the convolution stays as it is."""
FEW_FEATURES = 8
"""Features of a group below which oneDNN has kernels for depthwise convolutions alone."""
CHANNELS = {3: 8, 4: 8, 5: 2}
"""Channels for one of so few features from which a convolution in groups stays as it is, by the image's rank."""


# convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation,
#     bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor
def as_plain(args: Sequence[Any], result: Shape) -> list[Any] | None:
    """The arguments of the plain convolution that gives the same ``result``, if there is one that is as fast."""
    x, weight, bias, stride, padding, dilation, is_transposed, output_padding, groups = args
    taps = weight.shape[2:]
    if not is_transposed or x.dtype not in DTYPES or not all(n.is_constant for n in taps):
        return None
    around = [d * (int(n.constant) - 1) - p for n, d, p in zip(taps, dilation, padding, strict=True)]
    if any(s != 1 for s in stride) or any(p != 0 for p in output_padding) or any(p < 0 for p in around):
        return None
    features, inside = weight.shape[1].typical, x.shape[1].typical // groups
    if groups > 1 and features < FEW_FEATURES and inside >= CHANNELS[x.rank] * features:
        return None
    if product(weight.shape).typical > HEAVY * product(result).typical:
        return None
    return [x, _turned(weight, groups), bias, stride, around, dilation, False, output_padding, groups]


def _turned(weight: Tensor, groups: int) -> Tensor:
    """``[channels, features of a group, ...]`` as ``[features, channels of a group, ...]``, the taps in reverse."""
    channels, features, *taps = weight.shape
    inside = channels // groups

    def at(index: Shape) -> Any:
        feature, channel, *place = index
        group = feature // features if groups != 1 else Index.of(0)
        reverse = (n - 1 - k for n, k in zip(taps, place, strict=True))
        return weight.at((group * inside + channel, feature - group * features, *reverse))

    return Tensor((features * groups, inside, *taps), weight.dtype, at)
