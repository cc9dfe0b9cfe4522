"""Attention of a region on a GPU: how torch's fused kernels want what they read, and how their results lie.

Queries, keys, values and their gradients lie as in eager, where that is free to choose: mostly with heads behind
positions, so that what attention gives is rows of the product behind it. The kernels read neighbours along the last
dimension, and a mask of booleans as one of floats, which a loop makes, in rows that begin at multiples of 16 elements:
efficient attention refuses others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from torch_max_backend.capture.fake_tensors import symbols_of, value_of
from torch_max_backend.loops.attention_of_a_row import attention_of_a_row
from torch_max_backend.loops.convolution_layout import CUDNN_DTYPES
from torch_max_backend.loops.expr import constant, select, variables
from torch_max_backend.loops.from_region import FromRegion
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.libraries import ATTENTION
from torch_max_backend.loops.library_calls import source_of, variables_of
from torch_max_backend.loops.program import Ref, dense_strides
from torch_max_backend.loops.rules.registry import rule_of
from torch_max_backend.loops.tensor import Shape, Tensor, pointwise
from torch_max_backend.loops.written_out_attention import is_without_a_kernel, written_out

aten = torch.ops.aten
MASK_ROW = 16
"""Elements at multiples of which rows of a mask begin, or torch copies it for efficient attention."""
ADDED_BY_EFFICIENT_ATTENTION = {
    aten._scaled_dot_product_efficient_attention.default: 3,
    aten._scaled_dot_product_efficient_attention_backward.default: 4,
}
"""Which argument is added to scores."""
HEADS_BEHIND_POSITIONS = (0, 2, 1, 3)
"""The order in memory of the dimensions of what efficient attention returns."""
READ_LIKE_RESULTS = {
    aten._scaled_dot_product_flash_attention.default: (0,),
    aten._scaled_dot_product_cudnn_attention.default: (0,),
    aten._scaled_dot_product_flash_attention_backward.default: (1, 2, 3),
    aten._scaled_dot_product_cudnn_attention_backward.default: (1, 2, 3),
}
"""The arguments that lie as an op's first results do, in their order."""


class AttentionOnGpu(FromRegion):
    """The walk over a region's nodes, as far as it is attention on a GPU."""

    def _attention(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], promise: Any) -> Any:
        """What an op of attention gives."""
        if target is not aten.scaled_dot_product_attention.default:
            if (k := ADDED_BY_EFFICIENT_ATTENTION.get(target)) is not None and isinstance(args[k], Tensor):
                args = [*args[:k], self._at_aligned_rows(args[k]), *args[k + 1 :]]
            placed = self._placed(target, args)
            like = READ_LIKE_RESULTS.get(target, ())
            strides = [self._strides_like(placed[k], x) for k, x in zip(like, promise, strict=False)]
            return self._call(target, placed, kwargs, promise, strides)
        if (found := attention_of_a_row(*args, **kwargs)) is not None:
            return found
        if is_without_a_kernel(args, dict(kwargs)):
            return self._by(written_out, target, args, kwargs)
        args, kwargs = self._with_positive_scale(args, kwargs)
        if _is_of_other_rank(args, kwargs):
            return self._attention_of_four(args, kwargs, promise)
        dtype = args[0].dtype
        args = [*args[:3], *(self._mask(x, dtype) for x in args[3:4]), *args[4:]]
        kwargs = {k: self._mask(v, dtype) if k == "attn_mask" else v for k, v in kwargs.items()}
        placed = self._placed(target, args)
        lies = self._strides_like(placed[0], promise)
        if lies is not None and dtype not in CUDNN_DTYPES:  # efficient attention's
            is_aligned = all(x.shape[-1] % (16 // dtype.itemsize) == 0 for x in (args[0], args[2]))
            order = HEADS_BEHIND_POSITIONS if len(lies) == 4 and is_aligned else tuple(range(len(lies)))
            lies = dense_strides(self.symbols.shape(promise.shape), order)
        return self._call(target, placed, kwargs, promise, [lies])

    def _placed(self, target: Any, args: Sequence[Any]) -> list[Any]:
        """The arguments; tensors of four dimensions lie as in eager, where they may."""
        node = self.node
        own = node.args if node is not None and node.target is target else ()
        orders = [_order_in_eager(x) for x in own] + [None] * (len(args) - len(own))
        return [self._operand(target, x, order) for x, order in zip(args, orders, strict=True)]

    def _reference(self, target: Any, x: Tensor) -> Ref:
        if target not in ATTENTION:
            return super()._reference(target, x)
        ref = self._ref(x)
        is_apart = x.rank > 2 and ref.strides[-1] != 1 and x.shape[-1] != 1
        return self._ref(self._defined(x)) if is_apart else ref

    def _operand(self, target: Any, x: Any, order: tuple[int, ...] | None) -> Any:
        """An argument of attention, in an order of memory if it is a tensor that has none yet."""
        if not isinstance(x, Tensor):
            return x
        if order is not None and len(order) == x.rank and self._in_place(x, order) is None:
            self._in_place(self._defined(x), order)
        return self._reference(target, x)

    def _strides_like(self, operand: Any, promise: torch.Tensor) -> Shape | None:
        """The strides of a result that lies as an operand does. A guess that costs a copy if it is wrong."""
        if not isinstance(operand, Ref) or not all(s.is_constant for s in (*operand.sizes, *operand.strides)):
            return None
        order = sorted(range(len(operand.sizes)), key=lambda d: -operand.strides[d].constant)
        return dense_strides(self.symbols.shape(promise.shape), tuple(order))

    def _with_positive_scale(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Attention whose queries have the sign of the scale: torch's kernels give NaN unless that is positive."""
        scale = kwargs.get("scale")
        if not isinstance(scale, int | float) or scale > 0:
            return args, kwargs
        scaled = pointwise(lambda x: x * (-1.0 if scale else 0.0), args[0])
        return [scaled, *args[1:]], {**kwargs, "scale": -scale or 1.0}

    def _attention_of_four(self, args: Sequence[Any], kwargs: Mapping[str, Any], promise: torch.Tensor) -> Tensor:
        """Attention of tensors that have more or fewer than four dimensions, for which torch has no fused kernel.

        Of all dimensions before the last two, the one with the shortest steps is that of heads, and the others are one:
        as memory has them where queries, keys and values were one product.
        """
        target, rank = aten.scaled_dot_product_attention.default, args[0].rank
        strides = self._reference(target, args[0]).strides[: rank - 2]
        heads = min(range(rank - 2), key=lambda d: strides[d].typical)
        order = [*(d for d in range(rank - 2) if d != heads), heads, rank - 2, rank - 1]
        view, permute = rule_of(aten.view.default), rule_of(aten.permute.default)
        assert view is not None and permute is not None

        def folded(x: Tensor) -> Tensor:
            turned = permute(x, order)
            return view(turned, [math.prod(s.constant for s in turned.shape[:-3]), *turned.shape[-3:]])

        sizes = [promise.shape[d] for d in order]
        like = torch.empty((math.prod(sizes[:-3]), *sizes[-3:]), dtype=promise.dtype, device="meta")
        found = self._library(target, [*map(folded, args[:3]), *args[3:]], kwargs, like)
        opened = view(found, list(self.symbols.shape(sizes)))
        return permute(opened, [order.index(d) for d in range(rank)])

    def _mask(self, x: Any, dtype: torch.dtype) -> Any:
        """A mask as attention adds it. If it is written for that, rows begin where efficient attention wants them."""
        mask = _as_floats(x, dtype)
        if not isinstance(mask, Tensor) or source_of(mask) in self.memory:
            return mask
        found = self._in_place(mask, multiple=MASK_ROW, shortest=1)
        if found is None or (found.strides[-1] != 1 and mask.shape[-1] != 1):
            found = self._in_place(self._defined(mask), multiple=MASK_ROW, shortest=1)
        return found

    def _at_aligned_rows(self, x: Tensor) -> Ref:
        """``x`` in rows that begin at multiples of ``MASK_ROW`` elements, copied with zeros between them unless it lies
        so. Of what is the same for all of a dimension's indices, one is copied."""
        found = self._in_place(x, multiple=MASK_ROW, shortest=0)
        begins = () if found is None else (found.offset, *found.strides[:-1])
        if found is not None and found.strides[-1] == 1 and all(_is_multiple(n, MASK_ROW) for n in begins):
            return found
        indices = variables_of(x)
        used = variables(x.at(tuple(map(Index.of, indices))))
        repeats = [v not in used for v in indices[:-1]] + [False]
        one = tuple(Index.of(1) if same else n for same, n in zip(repeats, x.shape, strict=True))
        gap = Index.of(MASK_ROW - 1) - (x.shape[-1] + MASK_ROW - 1) % MASK_ROW
        padded = self._ref(self._with_zeros(Tensor(one, x.dtype, x.at), [0, gap]))
        strides = tuple(Index.of(0) if same else s for same, s in zip(repeats, padded.strides, strict=True))
        return Ref(padded.name, x.shape, strides, padded.offset)


def _order_in_eager(x: object) -> tuple[int, ...] | None:
    """The order of four dimensions in memory by the strides that eager has; ``None`` if attention reads no such."""
    value = value_of(x) if isinstance(x, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.dim() != 4 or symbols_of(value):
        return None
    strides = value.stride()
    if any(n > 1 and step == 0 for n, step in zip(value.shape, strides, strict=True)):
        return None
    order = tuple(sorted(range(4), key=lambda d: -strides[d]))
    return order if order[-1] == 3 else None


def _is_of_other_rank(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether attention is of tensors with other than four dimensions, the outer ones the same in all of them."""
    query, key, value = args[:3]
    mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
    known = all(s.is_constant and s.constant > 0 for x in (query, key, value) for s in x.shape)
    return (
        known
        and query.rank not in (2, 4)
        and query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
        and (mask is None or mask.rank <= 2)
    )


def _is_multiple(x: Index, of: int) -> bool:
    """Whether a number is known to be a multiple."""
    return x % of == 0


def _as_floats(mask: Any, dtype: torch.dtype) -> Any:
    """A mask of booleans as what is added: nothing where it is true, and minus infinity elsewhere."""
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        return mask
    nothing, all_of_it = constant(0.0, dtype), constant(-math.inf, dtype)
    return Tensor(mask.shape, dtype, lambda index: select(mask.at(index), nothing, all_of_it))
