"""Convolutions as loops: depthwise ones of few taps, and small ones.

oneDNN takes some 25 to 45 microseconds to begin, whatever the sizes. A depthwise convolution multiplies little for what
it reads, so loops with its taps written out take no longer, and what follows is computed in the same kernel. With
channels last in memory, a vector of channels meets its weights again at every place of a row; in other images vectors
lie along the rows, and many taps are cut at the borders into many parts. On an NVIDIA GPU depthwise
ones alone are loops (`loops/on_gpu.py`). The limits were chosen on two cores and on an H200; no benchmark of this
repository shows them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from torch_max_backend.loops.expr import Scalar, cast, constant, op, rounded, select
from torch_max_backend.loops.index import Index, clamped
from torch_max_backend.loops.rules.windows import Window, where_all, windows_of
from torch_max_backend.loops.tensor import Shape, Tensor, computed_in, define, reduce

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
SMALL = 1 << 16
"""Multiplications up to which loops are faster."""
FEW_TAPS = 9
"""Taps of a window up to which it is written out in any image."""
MOST_TAPS = {torch.float32: 49}
"""The same of depthwise convolutions of images with channels last. Numbers of 16 bits are converted at every tap, which
takes long to compile, too."""


def is_small(args: Sequence[Any], result: Sequence[int]) -> bool:
    """Whether loops are faster than any library. Sizes of the weight, and of the ``result``, are numbers."""
    x, weight = args[:2]
    inside, *taps = (int(n.constant) for n in weight.shape[1:])
    work = math.prod(result) * inside * math.prod(taps)
    return x.dtype in DTYPES and 0 < work <= SMALL and math.prod(taps) <= FEW_TAPS


def is_depthwise(args: Sequence[Any], result: Sequence[int]) -> bool:
    """Whether a convolution of images has groups of one channel, and few taps for an image with channels last.

    Of one image plane many features may be made: with many taps that is better a library's.
    """
    x, weight = args[:2]
    inside, *taps = (int(n.constant) for n in weight.shape[1:])
    most = MOST_TAPS.get(x.dtype, FEW_TAPS) if x.shape[1] != 1 else FEW_TAPS
    return x.rank == 4 and x.dtype in DTYPES and inside == 1 and math.prod(result) > 0 and math.prod(taps) <= most


# convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation,
#     bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor
def convolved(args: Sequence[Any], branches: bool = True) -> Tensor:
    """What a convolution that is not transposed gives: added up in float32 for floats of 16 bits, and rounded once.

    Args:
        branches: Whether taps in the padding are left out. Otherwise a place next to each is read, and 0 is taken for
            it: on a GPU all reads are under way together then.
    """
    x, weight, bias, stride, padding, dilation, _, _, groups = args
    taps = [int(n.constant) for n in weight.shape[2:]]
    windows = windows_of(x, taps, stride, padding, dilation, False, len(taps))
    inner = computed_in(x.dtype)
    shape = (x.shape[0], weight.shape[0], *(Index.of(w.outputs) for w in windows))
    each, inside = int(weight.shape[0].constant) // groups, weight.shape[1]

    def window(index: Shape, channel: Index) -> Scalar:
        n, feature, *o = index
        group = feature if each == 1 else feature // each

        def product(k: tuple[Index, ...], total: Scalar) -> Scalar:
            place = [w.position(i, t) for w, i, t in zip(windows, o, k, strict=True)]
            if not branches:
                ends = [(i, Index.of(w.inputs) - 1) for w, i in zip(windows, place, strict=True)]
                value = x.at((n, group * inside + channel, *(clamped(i, Index.of(0), last) for i, last in ends)))
                for condition in (c for w, i, t in zip(windows, o, k, strict=True) for c in w.inside(i, t)):
                    value = select(condition, value, constant(0, x.dtype))
                return op("fma", cast(value, inner), cast(weight.at((feature, channel, *k)), inner), total)
            value = x.at((n, group * inside + channel, *place))
            return op("fma", cast(value, inner), cast(weight.at((feature, channel, *k)), inner), total)

        return _window_sum(windows, o, product, constant(0, inner), branches)

    if inside == 1:
        sums = Tensor(shape, inner, lambda index: window(index, Index.of(0)))
    else:
        sums = reduce("sum", shape, (inside,), lambda index, place: window(index, place[0]))

    def result(index: Shape) -> Scalar:
        total = sums.at(index)
        return rounded(total if bias is None else total + cast(bias.at((index[1],)), inner), x.dtype)

    return define(shape, x.dtype, result)


def _window_sum(windows: Sequence[Window], o: Sequence[Index], product: Any, zero: Scalar, branches: bool) -> Scalar:
    """The sum over a window: row by row, so that no product waits for all that were added before.

    ``product`` adds that of a tap to a total; if it is padding it is left out here, with ``branches``.
    """
    *others, last = windows
    total = None
    for row in itertools.product(*(map(Index.of, range(w.taps)) for w in others)):
        own = zero
        for k in map(Index.of, range(last.taps)):
            own = where_all(last.inside(o[-1], k) if branches else [], product((*row, k), own), own)
        is_inside = [c for w, i, k in zip(others, o, row, strict=False) for c in w.inside(i, k)]
        own = where_all(is_inside if branches else [], own, zero)
        total = own if total is None else total + own
    assert total is not None
    return total
