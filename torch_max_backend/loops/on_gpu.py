"""Library calls of a region on a GPU: how cuBLASLt, cuDNN and fused attention want what they read and write.

- cuDNN's kernels for tensor cores take channels last: of 16-bit floats, and of float32 where TF32 is allowed. ATen adds
  a bias by a kernel of its own, so a loop does it.
- cuBLASLt computes GELU of a product itself.
- cuBLASLt's fast kernels for 16-bit floats take sizes that are multiples of 16 bytes, and rows that begin at such.
  Where it pays, factors get zeros, and the rows of what loops write for a product are put so far apart.
- What attention reads and gives is in `loops/attention_on_gpu.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from torch_max_backend.capture.fake_tensors import symbols_of, tensor_of
from torch_max_backend.capture.fx_nodes import is_getitem
from torch_max_backend.capture.view_ops import PERMUTES, RESHAPES
from torch_max_backend.loops.attention_on_gpu import AttentionOnGpu
from torch_max_backend.loops.convolution_layout import (
    CHANNELS_LAST,
    CUDNN_DTYPES,
    Convolution,
    CudnnConvolution,
    cudnn_dtypes,
)
from torch_max_backend.loops.convolution_loops import FEW_TAPS, convolved, is_depthwise
from torch_max_backend.loops.from_region import place_of
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.libraries import ATTENTION, scans_on_a_gpu
from torch_max_backend.loops.library_calls import source_of
from torch_max_backend.loops.narrow_products import PRODUCTS, large_packed_product, product_as_loops
from torch_max_backend.loops.product_epilogues import ACTIVATED, activation_behind
from torch_max_backend.loops.program import Ref, dense_strides
from torch_max_backend.loops.rules.indexing import filled
from torch_max_backend.loops.rules.registry import rule_of
from torch_max_backend.loops.tensor import Builder, Shape, Tensor
from torch_max_backend.partition.region import Region
from torch_max_backend.runtime.odd_products import MM_OF_ODD_COLUMNS, ROW, even
from torch_max_backend.runtime.packed_products import MM_OF_PACKED

aten = torch.ops.aten
_HALF = CUDNN_DTYPES
_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, ACTIVATED)
_WHOLE_VIEWS = RESHAPES | PERMUTES
SHORTEST, LARGE = 64, 2**16
"""Sizes of a product, and elements of what it reads, that are worth care for rows."""
LARGE_ROWS = 2**25
"""Elements of a matrix whose rows are contiguous, above which cuBLASLt multiplies one row with it faster than loops."""
WORTH_ZEROS = 2**31
"""Multiplications of a product that is worth zeros behind its factors."""
WORTH_A_COPY = 256
"""The same for each element of a result that leaves, or of a factor, if it is copied for that. Both limits were chosen
on one H100, where odd columns took two to five times as long; no benchmark of this repository shows them."""
WORTH_A_PART = 2**22
"""Elements of a factor whose odd columns are a product of their own, which takes less time than a copy then."""


class OnGpu(AttentionOnGpu):
    """The walk over a region's nodes, on a GPU."""

    row_bytes = 16
    has_onednn = False

    def __init__(self, region: Region, builder: Builder) -> None:
        super().__init__(region, builder)
        self.channels_last = cudnn_dtypes(self.device)
        self.factors = dict(sorted(_computed_factors(region), key=lambda found: found[1]))
        self.with_zeros: dict[str, int] = {}
        """Tensors of which rows have zeros behind them, up to that length."""
        self.activated: set[fx.Node] = set()
        """Activations that a product's call has computed."""

    def _node(self, node: fx.Node) -> Any:
        """What products read as it is and transposed, as a gradient, is computed once, and lies as in eager."""
        result = self.env[node.args[0]] if node in self.activated else super()._node(node)
        if node not in self.factors or not isinstance(result, Tensor) or source_of(result) in self.memory:
            return result
        length = tensor_of(node).shape[-1]
        leaves = any(port.node is node for port in self.region.outputs)
        if leaves or self.factors[node] < WORTH_ZEROS or length < SHORTEST or length % ROW == 0:
            return self._defined(result)
        padded = self._with_zeros(result, [0, even(length) - length])
        self.with_zeros[source_of(padded)] = even(length)
        return Tensor(result.shape, result.dtype, padded.at)

    def _is_for_library(self, target: Any, args: Sequence[Any]) -> bool:
        first, dim = (*args, None, None)[:2]
        return isinstance(first, Tensor) and scans_on_a_gpu(target, first.shape, dim)

    def _special_product(
        self, target: Any, args: Sequence[Any], kwargs: dict[str, Any], promise: object
    ) -> Tensor | None:
        """A product of one row, which takes the time of reading its matrix: a library has few blocks for that.

        With more rows one whose large matrix is unpacked.
        """
        if target not in PRODUCTS:
            return None
        if not is_a_row(args):
            return self._packed_product(target, args, promise)
        matrix = self._in_place(args[-1]) if source_of(args[-1]) in self.memory else None
        if matrix is not None and matrix.strides[1] == 1 and math.prod(s.constant for s in args[-1].shape) > LARGE_ROWS:
            return None
        return product_as_loops(args, kwargs)

    def _packed_product(self, target: Any, args: Sequence[Any], promise: object) -> Tensor | None:
        """A product with a large matrix that is unpacked part by part; none if it is no such."""
        packed = large_packed_product(self.builder.program, target, args)
        if packed is None:
            return None
        strides = Index.of(even(int(args[1].shape[1].constant))), Index.of(1)
        return self._call(MM_OF_PACKED, packed, {}, promise, [strides])

    def _is_better_as_loops(self, args: Sequence[Any], promise: torch.Tensor) -> bool:
        """Whether a convolution is depthwise and of few taps: cuDNN takes several times as long as reading it, unless
        channels are last and each has one feature."""
        x, weight, is_transposed = args[0], args[1], args[6]
        sizes = [Index.of(n) for of in (x.shape, weight.shape, self.symbols.shape(promise.shape)) for n in of]
        if is_transposed or not all(n.is_constant for n in sizes):
            return False
        taps = math.prod(int(s.constant) for s in weight.shape[2:])
        if not is_depthwise(args, promise.shape) or taps > FEW_TAPS or x.dtype is torch.float64:
            return False
        if weight.shape[0] != x.shape[1]:
            return True
        if source_of(x) in self.memory:
            return self._last(x, self._in_place(x)) is None
        shapes = (x.shape, weight.shape, self.symbols.shape(promise.shape))
        image, kernel, result = ([int(s.constant) for s in shape] for shape in shapes)
        return not self._kind(image, kernel, result, args[6], args[8], x.dtype).gains(1, copies=False)

    def _library(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], promise: Any) -> Any:
        if target is aten.convolution.default and self._is_better_as_loops(args, promise):
            return convolved(args, branches=False)
        if target is aten.convolution.default and args[2] is not None:
            self.adds_bias = True
            result = self._call(target, [*args[:2], None, *args[3:]], kwargs, promise)
            self.adds_bias = False
            return self._sum(result, args[2], 1, promise)
        if target in (aten.mm.default, aten.addmm.default) and not kwargs:
            return self._product(target, args, promise)
        if target is aten.convolution_backward.default:
            return self._gradients(args, promise)
        if target in ATTENTION:
            return self._attention(target, args, kwargs, promise)
        return self._call(target, args, kwargs, promise)

    def _product(self, target: Any, args: Sequence[Any], promise: torch.Tensor) -> Any:
        """A product of matrices, with a bias or without. Where it pays, zeros make odd sizes multiples of ``ROW``, or
        odd columns are a product of their own."""
        *before, a, b = args
        if a.dtype not in _HALF or not all(s.is_constant for x in (a, b) for s in x.shape):
            return self._call(target, args, {}, promise)
        (rows, depth), columns = (int(s.constant) for s in a.shape), int(b.shape[1].constant)
        if rows * depth * columns < WORTH_ZEROS or min(rows, depth, columns) < SHORTEST:
            found = self._activated(before, (a, b), promise) if before else None
            return found or self._call(target, args, {}, promise)
        is_copied = self._leaves() and depth < WORTH_A_COPY
        is_plain = not before or before[0].shape == (columns,)
        wide = even(columns) if is_plain and not is_copied else columns
        deep = even(depth) if min(rows, columns) >= WORTH_A_COPY else depth
        adds_little = not before or rows < depth  # cuBLASLt adds no bias to parts of rows: it is written there first
        if wide != columns and deep == depth and adds_little and self._is_cut(b):
            given = [self._factor(a, (rows, depth), columns), b, *(before or [None])]
            return self._call(MM_OF_ODD_COLUMNS, given, {}, promise, [(Index.of(wide), Index.of(1))])
        factors = [self._factor(a, (rows, deep), columns), self._factor(b, (deep, wide), rows)]
        if wide == columns:
            return self._activated(before, factors, promise) or self._call(target, [*before, *factors], {}, promise)
        bias = [self._with_zeros(x, [0, wide - columns]) for x in before]
        whole = torch.empty((rows, wide), dtype=a.dtype, device="meta")
        found = self._activated(bias, factors, whole) or self._call(target, [*bias, *factors], {}, whole)
        return Tensor(self.symbols.shape(promise.shape), a.dtype, found.at)

    def _is_cut(self, factor: Tensor) -> bool:
        """Whether odd columns of a second factor, as of a linear's weight, are a product of their own: a copy of all
        columns, with zeros behind them, would take longer."""
        ref = self._reference(aten.mm.default, factor)
        depth, columns = (int(s.constant) for s in ref.sizes)
        is_turned = ref.strides[0] == 1 and int(ref.strides[1].constant) % ROW == 0
        return is_turned and depth * columns >= WORTH_A_PART

    # _addmm_activation(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, bool use_gelu=False)
    #     -> Tensor
    def _activated(
        self, bias: Sequence[Tensor], factors: Sequence[Tensor | Ref], promise: torch.Tensor
    ) -> Tensor | None:
        """A product of two factors with the activation that reads it; none if there is none."""
        node = None if self.node is None else activation_behind(self.node, self.region)
        if node is None or (bias and bias[0].rank != 1):
            return None
        self.activated.add(node)
        own = bias[0] if bias else filled(self.symbols.shape(promise.shape[1:]), promise.dtype)
        self.builder.where += f"\n{place_of(node)}"
        found = self._call(ACTIVATED, [own, *factors], {"use_gelu": True}, promise)
        assert isinstance(found, Tensor)
        return found

    def _factor(self, x: Tensor, sizes: tuple[int, int], others: int) -> Ref:
        """A factor as a product reads it, with zeros up to ``sizes``; copied if rows are uneven or zeros are needed.

        Args:
            others: How many rows or columns of the other factor each element meets.
        """
        ref = self._reference(aten.mm.default, x)
        step = max(int(s.constant) for s in ref.strides)
        turned = ref.strides[0] == 1
        along, across = (0, 1) if turned else (1, 0)
        wanted = tuple(map(Index.of, sizes))
        if wanted[across] == x.shape[across] and sizes[along] <= self.with_zeros.get(ref.name, 0):
            return Ref(ref.name, wanted, ref.strides, ref.offset)
        if sizes == tuple(s.constant for s in x.shape) and (step % ROW == 0 or others < WORTH_A_COPY):
            return ref
        rows = Tensor(x.shape[::-1], x.dtype, lambda index: x.at(index[::-1])) if turned else x
        outer, length = (int(s.constant) for s in rows.shape)
        own = sizes[::-1] if turned else sizes
        padded = self._ref(self._with_zeros(rows, [0, even(length) - length, 0, own[0] - outer]))
        strides = padded.strides[::-1] if turned else padded.strides
        return Ref(padded.name, tuple(map(Index.of, sizes)), strides, padded.offset)

    def _sum(self, x: Tensor, bias: Tensor, dim: int, promise: object) -> Tensor:
        """A library's result and a bias for each index of a dimension."""
        self.builder.promise = promise
        add = rule_of(aten.add.Tensor)
        assert add is not None
        return add(x, Tensor(x.shape, bias.dtype, lambda index: bias.at((index[dim],))))

    def _kind(self, *sizes: Any) -> CudnnConvolution:
        return CudnnConvolution(*sizes)

    def _with_channels_last(self, x: Tensor, convolution: Convolution) -> Ref | None:
        return None if x.shape[1] == 1 else super()._with_channels_last(x, convolution)

    # convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride,
    #     SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups,
    #     bool[3] output_mask) -> (Tensor, Tensor, Tensor)
    def _gradients(self, args: Sequence[Any], promise: Sequence[Any]) -> list[Any]:
        """Gradients of a convolution: of its image and weight cuDNN's, and of its bias a sum, which ATen would do by a
        general kernel of its own."""
        *given, mask = args
        strides: list[Shape | None] = []
        if any(mask[:2]) and self._is_image_with_channels_last(args):
            given = [*map(self._ordered, given[:3]), *given[3:]]
            strides = [self._strides_with_channels_last(x) for x in promise[:2]]
        of_bias = None
        if mask[2]:  # before the call, so that what computes the gradient may add it up
            self.builder.promise = promise[2]
            sum_of = rule_of(aten.sum.dim_IntList)
            assert sum_of is not None
            of_bias = sum_of(args[0], [d for d in range(args[0].rank) if d != 1])
        if not any(mask[:2]):
            return [None, None, of_bias]
        target, without_bias = aten.convolution_backward.default, [*mask[:2], False]
        found = self._call(target, [*given, without_bias], {}, [*promise[:2], None], strides)
        return [*found[:2], of_bias]

    def _is_image_with_channels_last(self, args: Sequence[Any]) -> bool:
        """Whether gradients of a convolution are computed with channels last, as it is itself, see ``_convolution``."""
        x, convolution = args[1], self._convolution_of(args)
        if convolution is None or x.shape[1] == 1:
            return False
        is_placed = source_of(x) in self.memory
        if is_placed and self._last(x, self._in_place(x)) is not None:
            return True
        return convolution.gains(1, copies=is_placed)

    def _strides_with_channels_last(self, x: object) -> Shape | None:
        is_image = isinstance(x, torch.Tensor) and x.dim() == 4
        return dense_strides(self.symbols.shape(x.shape), CHANNELS_LAST) if is_image else None  # type: ignore[attr-defined]

    def _reference(self, target: Any, x: Tensor) -> Ref:
        if target in _PRODUCTS and x.dtype in _HALF and x.rank > 1 and all(s.is_constant for s in x.shape):
            multiple = ROW if math.prod(s.constant for s in x.shape) >= LARGE else 1
            found = self._in_place(x, multiple=multiple)
            return found or self._in_place(self._defined(x), multiple=multiple)  # type: ignore[return-value]
        return super()._reference(target, x)


def is_a_row(args: Sequence[Any]) -> bool:
    """Whether the first factor of a product is one row of floats, and all sizes are known."""
    row, matrix = args[-2:]
    known = all(s.is_constant for x in (row, matrix) for s in x.shape)
    return known and row.shape[0] == 1 and row.dtype.is_floating_point and row.dtype is not torch.float64


def _computed_factors(region: Region) -> Iterator[tuple[fx.Node, int]]:
    """The nodes that products of matrices read, or a view of all their elements, in 16 bits; with multiplications."""
    for node in region.nodes:
        if node.target not in _PRODUCTS or symbols_of(tensor_of(node)):
            continue
        for factor in map(_viewed, node.args[-2:]):
            value = tensor_of(factor)
            if (
                factor.op == "call_function"
                and not is_getitem(factor)
                and value.dtype in _HALF
                and not symbols_of(value)
            ):
                yield factor, tensor_of(node).numel() * tensor_of(node.args[-1]).shape[-2]


def _viewed(node: Any) -> fx.Node:
    """What a node is a view of, with all its elements."""
    while node.target in _WHOLE_VIEWS:
        node = node.args[0]
    return node
