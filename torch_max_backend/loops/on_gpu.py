"""Library calls of a region on a GPU: how cuBLASLt, cuDNN and fused attention want what they read and write.

- cuDNN's kernels for 16-bit floats take channels last. ATen adds a bias by a kernel of its own, so a loop does it.
- cuBLASLt's fast kernels for 16-bit floats take rows that begin at multiples of 16 bytes. Rows of what a loop or a
  product writes are put that far apart where their length is no such multiple.
- Attention reads neighbours along the last dimension, and a mask of booleans as one of floats, which a loop makes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_max_backend.loops.convolution_layout import CHANNELS_LAST, CudnnConvolution
from torch_max_backend.loops.expr import constant, select
from torch_max_backend.loops.from_region import CONVOLUTIONS, FromRegion
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.libraries import ATTENTION, scans_on_a_gpu
from torch_max_backend.loops.program import Ref, dense_strides
from torch_max_backend.loops.rules.registry import rule_of
from torch_max_backend.loops.tensor import Shape, Tensor

aten = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)
_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default)
ROW = 8
"""Elements of 16 bits in 16 bytes."""
SHORTEST, LARGE = 64, 2**16
"""Elements of a row, and of what a product reads, that are worth gaps behind rows."""
WORTH_ROWS = 2**28
"""Multiplications of a product that is worth being given other rows."""
WORTH_A_COPY = 256
"""The same for each element of a result that leaves, or of a factor, if it is copied for that. A product of 4096 x 768 by
50257 columns takes 3.3 ms on an H100, and 0.5 with other rows, and a copy 0.3."""


class OnGpu(FromRegion):
    """The walk over a region's nodes, on a GPU."""

    kind = CudnnConvolution
    channels_last = _HALF

    def _is_for_library(self, target: Any, args: Sequence[Any]) -> bool:
        first, dim = (*args, None, None)[:2]
        return isinstance(first, Tensor) and scans_on_a_gpu(target, first.shape, dim)

    def _library(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], promise: Any) -> Any:
        if target is aten.convolution.default and args[2] is not None:
            self.adds_bias = True
            result = self._call(target, [*args[:2], None, *args[3:]], kwargs, promise)
            self.adds_bias = False
            return self._sum(result, args[2], 1, promise)
        if target in (aten.mm.default, aten.addmm.default) and not kwargs:
            return self._product(target, args, promise)
        if target is aten.convolution_backward.default and self._is_image(args[1]):
            with_channels_last = [self._ordered(x) for x in args[:3]]
            strides = [self._strides_with_channels_last(x) for x in promise]
            return self._call(target, [*with_channels_last, *args[3:]], kwargs, promise, strides)
        if target is aten.scaled_dot_product_attention.default:
            args = [*args[:3], _as_floats(args[3], args[0].dtype), *args[4:]] if len(args) > 3 else args
            kwargs = {k: _as_floats(v, args[0].dtype) if k == "attn_mask" else v for k, v in kwargs.items()}
            return self._call(target, args, kwargs, promise, [self._strides_like(args[0], promise)])
        return self._call(target, args, kwargs, promise)

    def _strides_like(self, queries: Tensor, promise: torch.Tensor) -> Shape | None:
        """The strides of attention's result: in memory its dimensions are in the order of the queries'."""
        ref = self._reference(aten.scaled_dot_product_attention.default, queries)
        if not all(s.is_constant for s in (*ref.sizes, *ref.strides)):
            return None
        order = tuple(sorted(range(len(ref.sizes)), key=lambda d: -ref.strides[d].constant))
        return dense_strides(self.symbols.shape(promise.shape), order)

    def _product(self, target: Any, args: Sequence[Any], promise: torch.Tensor) -> Any:
        """A product of matrices, with a bias or without, whose rows begin at multiples of 16 bytes where that pays."""
        *before, a, b = args
        rows = self._rows(a, b, promise)
        factors = [self._even(a, b.shape[1]), self._even(b, a.shape[0])]
        if rows is None or (before and before[0].rank != 1):
            return self._call(target, [*before, *factors], {}, promise)
        product = self._call(aten.mm.default, factors, {}, promise, [rows], into=True)
        return self._sum(product, before[0], 1, promise) if before else product

    def _even(self, x: Tensor, others: Index) -> Ref:
        """A factor as a product reads it: copied if its rows, each of which meets so many ``others``, are not even."""
        ref = self._reference(aten.mm.default, x)
        if x.dtype not in _HALF or not all(s.is_constant for s in (*ref.sizes, *ref.strides, others)):
            return ref
        step = max(int(s.constant) for s in ref.strides)
        worth = others.constant >= WORTH_A_COPY and math.prod(int(s.constant) for s in ref.sizes) >= LARGE
        if step % ROW == 0 or not worth or min(int(s.constant) for s in ref.sizes) < SHORTEST:
            return ref
        turned = ref.strides[0] == 1
        rows = Tensor(x.shape[::-1], x.dtype, lambda index: x.at(index[::-1])) if turned else x
        even = self._in_place(self._defined(rows), multiple=ROW)
        assert even is not None
        return Ref(even.name, x.shape, even.strides[::-1], even.offset) if turned else even

    def _sum(self, x: Tensor, bias: Tensor, dim: int, promise: object) -> Tensor:
        """A library's result and a bias for each index of a dimension."""
        self.builder.promise = promise
        add = rule_of(aten.add.Tensor)
        assert add is not None
        return add(x, Tensor(x.shape, bias.dtype, lambda index: bias.at((index[dim],))))

    def _is_image(self, x: Tensor) -> bool:
        return x.rank == 4 and x.dtype in self.channels_last and all(s.is_constant for s in x.shape)

    def _strides_with_channels_last(self, x: object) -> Shape | None:
        is_image = isinstance(x, torch.Tensor) and x.dim() == 4
        return dense_strides(self.symbols.shape(x.shape), CHANNELS_LAST) if is_image else None  # type: ignore[attr-defined]

    def _rows(self, a: Tensor, b: Tensor, promise: torch.Tensor) -> Shape | None:
        """The strides with which a product shall be written, if not without gaps."""
        shape = self.symbols.shape(promise.shape)
        if a.dtype not in _HALF or not all(s.is_constant for s in (*a.shape, *shape)):
            return None
        depth, length = int(a.shape[-1].constant), int(shape[-1].constant)
        work = depth * math.prod(int(s.constant) for s in shape)
        if length % ROW == 0 or length < SHORTEST or work < WORTH_ROWS:
            return None
        if self._leaves() and depth < WORTH_A_COPY:
            return None
        return dense_strides(shape, rows=(length, -(-length // ROW) * ROW))

    def _reference(self, target: Any, x: Tensor) -> Ref:
        if target in CONVOLUTIONS:
            return self._image(x)
        if target in ATTENTION:
            ref = self._ref(x)
            far = x.rank > 2 and ref.strides[-1] != 1 and x.shape[-1] != 1
            return self._ref(self._defined(x)) if far else ref
        if target in _PRODUCTS and x.dtype in _HALF and x.rank > 1 and all(s.is_constant for s in x.shape):
            multiple = ROW if math.prod(s.constant for s in x.shape) >= LARGE else 1
            found = self._in_place(x, multiple=multiple)
            return found or self._in_place(self._defined(x), multiple=multiple)  # type: ignore[return-value]
        return self._ref(x)


def _as_floats(mask: Any, dtype: torch.dtype) -> Any:
    """A mask of booleans as what is added: nothing where it is true, and minus infinity elsewhere."""
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        return mask
    nothing, all_of_it = constant(0.0, dtype), constant(-math.inf, dtype)
    return Tensor(mask.shape, dtype, lambda index: select(mask.at(index), nothing, all_of_it))
