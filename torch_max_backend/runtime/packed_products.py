"""Products with a matrix of integers of 8 bits that is not unpacked as a whole: an op of its own, for programs.

What a library takes only in part is cut here and not in a program, whose kernels would join the parts.
"""

from __future__ import annotations

import torch

from torch_max_backend.runtime.odd_products import ROW, even, multiply

PACKED = 32
"""What divides both sides of a matrix that torch's kernel for a CPU reads as it is packed."""
PART = 2**23
"""Bytes of a part of a matrix that is unpacked on a GPU, at most: a piece of the memory, and it stays in the L2 cache.
There are two parts at least."""

_library = torch.library.Library("torch_max_backend", "FRAGMENT")
_library.define("mm_of_packed(Tensor self, Tensor packed) -> Tensor")


def mm_of_packed(self: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """``self @ packed.to(self.dtype).t()``, rounded as ``torch.mm`` rounds.

    Args:
        self: ``[rows, depth]``, of bfloat16; on a GPU of float16, too.
        packed: ``[features, depth]`` without gaps, of int8; on a GPU of uint8, too. On a CPU ``PACKED`` divides depth.

    Returns:
        ``[rows, features]``. On a GPU rows have gaps of up to ``ROW - 1`` elements between them.
    """
    return _in_parts(self, packed) if self.is_cuda else _and_the_rest(self, packed)


MM_OF_PACKED = torch.ops.torch_max_backend.mm_of_packed.default
_library.impl("mm_of_packed", mm_of_packed, "CompositeExplicitAutograd")


def _in_parts(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    features, depth = packed.shape
    step = max(min(PART // (depth * x.element_size()), even(-(-features // 2))) // ROW, 1) * ROW
    whole = x.new_empty_strided((x.shape[0], features), (even(features), 1))
    for start in range(0, features, step):
        multiply(x, packed[start : start + step].to(x.dtype).t(), whole[:, start : start + step])
    return whole


def _and_the_rest(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    features = packed.shape[0]
    cut = features // PACKED * PACKED
    whole = x.new_empty((x.shape[0], features))
    whole[:, :cut] = torch._weight_int8pack_mm(x, packed[:cut], x.new_ones(cut))
    whole[:, cut:] = torch.mm(x, packed[cut:].to(x.dtype).t())
    return whole
