"""What library calls on a CPU have allocated while they run, by torch's allocator, beside what they read.

Measured with torch 2.15 and its oneDNN: ``tests/codegen/test_library_workspaces.py`` compares each with torch's own
records. On a GPU, libraries choose their workspaces when they are called; those are not counted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_max_backend.loops.index import Index, product
from torch_max_backend.loops.program import Call, Ref
from torch_max_backend.runtime.packed_products import MM_OF_PACKED, PACKED

aten = torch.ops.aten
BLOCK = {"AVX512": 16}
"""Channels that oneDNN keeps together in memory, by what the processor can do; 8 on others."""
QUERIES = ((768, 256), (192, 64), (0, 32))
"""Rows of queries that a thread of attention has at a time, by the least number of queries."""
KEYS = 512
"""Keys that it has at a time."""


def totals(call: Call) -> list[Index]:
    """Bytes that a call has allocated at times, its results among them, of which the greatest is its peak.

    Empty where nothing comes to the results.
    """
    count = WITH_WORKSPACES.get(call.target)
    return count(call) if count is not None else []


def _convolution(call: Call) -> list[Index]:
    """oneDNN has its own order of channels in memory: it copies the image there, the weight, and the result back.

    An image with channels last stays as it is, and so does one of few channels.
    """
    image, weight, *_ = call.args
    (result,) = call.results
    if result is None or not isinstance(image, Ref) or not isinstance(weight, Ref):
        return []
    size = result.dtype.itemsize
    own = product(result.sizes) * size
    if result.dtype is torch.float64:
        columns = product(weight.sizes[1:]) * product(result.sizes[2:]) * result.sizes[0] * call.args[8]
        return [own + columns * size]
    if _has_channels_last(image):
        turned = Index.of(0) if _has_channels_last(weight) else product(weight.sizes) * size
        return [own + turned + _of_weight(weight, call.args[8]) * size]
    few = image.sizes[1].is_constant and image.sizes[1].constant < FEW
    blocked = _blocked(result.sizes) * size
    read = Index.of(0) if few else _blocked(image.sizes) * size
    return [read + _of_weight(weight, call.args[8]) * size + blocked, blocked + own]


FEW = 4
"""Channels of an image that oneDNN reads as it is."""


NARROW = 3
"""The side of a kernel of one channel whose gradient oneDNN computes as it lies; larger ones get whole blocks."""


def _convolution_backward(call: Call) -> list[Index]:
    gradient, image, weight = call.args[:3]
    if not all(isinstance(x, Ref) for x in (gradient, image, weight)) or call.results[1] is None:
        return []
    of_image, of_weight = call.results[:2]
    size, groups = call.results[1].dtype.itemsize, call.args[9]
    kept = product(image.sizes) * size if of_image is not None else Index.of(0)
    own, turned = product(weight.sizes) * size, _of_weight(weight, groups) * size
    assert of_weight is not None
    if _has_channels_last(image):
        wide = groups != 1 and any(n.typical > NARROW for n in weight.sizes[2:])
        return [kept + own * (_block() ** 2 if wide else 1) + own * 2, kept + turned + own * 2]
    given, read = (_blocked(x.sizes) * size for x in (gradient, image))
    later = [kept + given + read + turned, kept + turned + own]
    return later if of_image is None else [given + turned + read, read + kept, *later]


def _attention(call: Call) -> list[Index]:
    """Each thread has scores of some queries and keys, and sums of their values."""
    queries, keys, _ = call.args[:3]
    if not isinstance(queries, Ref) or not isinstance(keys, Ref) or call.results[0] is None:
        return []
    rows, columns, width = queries.sizes[2], keys.sizes[2], queries.sizes[3]
    at_once = next(n for least, n in QUERIES if rows.typical >= least)
    several = min(KEYS, columns.typical)
    of_thread = at_once * several + 2 * at_once + width * at_once
    result = call.results[0]
    sums = product(queries.sizes[:3]) * 4
    return [product(result.sizes) * result.dtype.itemsize + sums + of_thread * 4 * torch.get_num_threads()]


def _mm_of_packed(call: Call) -> list[Index]:
    """Most features are copied behind torch's kernel, which wants a scale for each; the others are unpacked."""
    rows, packed = call.args
    (result,) = call.results
    if result is None or not isinstance(rows, Ref) or not isinstance(packed, Ref):
        return []
    size, features = result.dtype.itemsize, packed.sizes[0]
    rest = features % PACKED
    most, own = features - rest, product(result.sizes) * size
    return [own + most * (rows.sizes[0] + 1) * size, own + rest * (rows.sizes[0] + packed.sizes[1]) * size]


def _has_channels_last(x: Ref) -> bool:
    """Whether neighbours in memory are channels, as they are in an image of one pixel either way."""
    return len(x.strides) > 2 and x.strides[1] == 1 and product(x.sizes[2:]) != 1


def _blocked(sizes: tuple[Index, ...]) -> Index:
    """Elements of an image whose channels are filled up to whole blocks."""
    return product((sizes[0], _filled(sizes[1]), *sizes[2:]))


def _of_weight(weight: Ref, groups: int) -> Index:
    if groups != 1:
        return product(weight.sizes)
    return product((_filled(weight.sizes[0]), weight.sizes[1], *weight.sizes[2:]))


def _filled(channels: Index) -> Index:
    block = _block()
    return (channels + (block - 1)) // block * block


@functools.cache
def _block() -> int:
    return BLOCK.get(torch.backends.cpu.get_cpu_capability(), 8)


WITH_WORKSPACES: dict[Any, Callable[[Call], list[Index]]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    MM_OF_PACKED: _mm_of_packed,
}
"""What counts them, by op."""
