"""Attention on an NVIDIA GPU by cuDNN (`mojo_kernels/nvidia/cudnn_attention.mojo`), which never stores scores.

Operands are read where they are: with the heads before the lengths, behind them, or as slices of one larger tensor. The
result has its heads inside, ``[B, S, H, F]`` in memory, as a model goes on with, unless it leaves the region otherwise.
"""

from __future__ import annotations

import math

from max.dtype import DType
from max.graph import DeviceRef, TensorValue, ops

from torch_max_backend.aten_functions.support.axis_reductions import largest
from torch_max_backend.aten_functions.support.cublaslt_products import HALVES, is_library_used
from torch_max_backend.aten_functions.support.dtypes import Operand
from torch_max_backend.aten_functions.support.flash_attention import keeps_order
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import promise
from torch_max_backend.aten_functions.support.tensor_ops import (
    broadcast_to,
    cast,
    columns_of,
    constant,
    memory_order,
    narrow,
    permute,
    reshape,
    static,
    tensor,
)

LARGEST = 256
"""The size of a head up to which the library has kernels on every GPU that it knows."""
LARGEST_OF_GRADIENTS = 128
"""The same for gradients."""
STEP = 8
"""What sizes of heads are multiples of: rows begin at multiples of 16 bytes."""
INSIDE, OUTSIDE = (0, 2, 1, 3), (0, 1, 2, 3)
"""The permutation between ``[B, H, S, E]`` and ``[B, S, H, E]``, and none."""
LOWEST = -(2.0**100)
"""The least number of a bias: the kernels give 0 for a row whose scores are near the lowest of their dtype."""
INF = float("inf")


def suits_library(
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    mask: TensorValue | None,
    is_causal: bool,
    scale: Operand | None,
) -> bool:
    """Whether the library computes this on every GPU of NVIDIA's with tensor cores for 16-bit floats.

    It makes a plan for each length, which takes 0.04 s or more. So a cache that grows with every query is not for it.
    """
    if not is_library_used(query) or query.dtype not in HALVES or not keeps_order(scale):
        return False
    if key.dtype != query.dtype or value.dtype != query.dtype or (mask is not None and is_causal):
        return False
    if query.shape[0] != key.shape[0] or key.shape[:3] != value.shape[:3]:
        return False
    if static(query.shape[2]) == 1 and static(key.shape[2]) is None:
        return False
    sizes = (static(query.shape[3]), static(value.shape[3]))
    return all(size is not None and size % STEP == 0 and 0 < size <= LARGEST for size in sizes)


def attend_by_library(
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    mask: TensorValue | None,
    is_causal: bool,
    scale: Operand | None,
    wants_logarithms: bool,
) -> tuple[TensorValue, TensorValue | None]:
    """``[B, H, S, F]`` of what ``suits_library``; if wanted, also the logarithms of the rows' sums, ``[B, H, S]``.

    The latter are float32. Both are 0 for a row that attends to nothing.
    """
    call = _Call(query, key, value, mask, is_causal, scale)
    batch, heads, length, _ = query.shape
    order = OUTSIDE if promise().order == OUTSIDE else INSIDE
    shape = [batch, heads, length, value.shape[3]]
    shapes = [(query.dtype, [shape[d] for d in order]), (DType.float32, [batch, heads, length])]
    name = "tmb_library_attention_with_logarithms" if wants_logarithms else "tmb_library_attention"
    parameters = call.parameters | {"result_inside": order == INSIDE, "groups": call.groups}
    found = mojo_op(name, [*call.sources, call.bias, call.factor], shapes[: 1 + wants_logarithms], parameters)
    rows, logarithms = permute(found[0], order), found[1] if wants_logarithms else None
    if mask is None:
        return rows, logarithms
    attends = _attends(mask)
    rows = permute(_only(permute(attends, order), found[0]), order)
    return rows, None if logarithms is None else _only(ops.squeeze(attends, -1), logarithms)


def suits_library_gradients(
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    mask: TensorValue | None,
    is_causal: bool,
    scale: Operand | None,
) -> bool:
    """Whether the library computes the gradients of this on every such GPU."""
    sizes = (static(query.shape[3]), static(value.shape[3]))
    lengths = (static(query.shape[2]), static(key.shape[2]))
    return (
        suits_library(query, key, value, mask, is_causal, scale)
        and all(size is not None and size <= LARGEST_OF_GRADIENTS for size in sizes)
        and 1 not in lengths
    )


def gradients_by_library(
    grad: TensorValue,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    out: TensorValue,
    logarithms: TensorValue,
    mask: TensorValue | None,
    is_causal: bool,
    scale: Operand | None,
) -> tuple[TensorValue, TensorValue, TensorValue]:
    """Gradients of query, key and value, each where heads are in memory as in what it belongs to.

    The sums of the query's gradient are not taken in the same order every time.
    """
    call = _Call(query, key, value, mask, is_causal, scale, every_row=True)
    places = [_Place(x, may_be_slice=False) for x in (grad, out)]
    parameters = call.parameters | {"grad_inside": places[0].is_inside, "result_inside": places[1].is_inside}
    insides = [place.is_inside for place in call.places]
    shapes = []
    for x, is_inside in zip((query, key, value), insides, strict=True):
        shapes.append((x.dtype, [x.shape[d] for d in INSIDE] if is_inside else list(x.shape)))
    operands = [places[0].source, *call.sources, places[1].source, logarithms, call.bias, call.factor]
    found = mojo_op("tmb_library_attention_gradients", operands, shapes, parameters)
    q, k, v = (permute(x, INSIDE) if is_inside else x for x, is_inside in zip(found, insides, strict=True))
    return q, k, v


class _Call:
    """What is handed over for attention and for its gradients.

    The library's kernels of gradients give 0 for the query's where rows share a bias, so it is there for ``every_row``.
    """

    def __init__(
        self,
        query: TensorValue,
        key: TensorValue,
        value: TensorValue,
        mask: TensorValue | None,
        is_causal: bool,
        scale: Operand | None,
        every_row: bool = False,
    ) -> None:
        number = 1.0 / math.sqrt(int(query.shape[3])) if scale is None else scale
        self.factor = tensor(number, DType.float32, DeviceRef.CPU())
        self.places = [_Place(x) for x in (query, key, value)]
        self.sources = [place.source for place in self.places]
        self.bias = self.sources[0] if mask is None else _bias(mask, query, key, every_row)
        self.groups = int(key.shape[1]) if any(place.is_slice for place in self.places) else 0
        self.parameters: dict[str, bool | int] = {"is_causal": is_causal, "has_bias": mask is not None}
        for name, place in zip(("query", "key", "value"), self.places, strict=True):
            self.parameters |= {f"{name}_inside": place.is_inside, f"{name}_at": place.first}


class _Place:
    """Where ``x [B, heads, length, size]`` is: in ``source``, which has as many heads or more, from ``first`` on."""

    def __init__(self, x: TensorValue, may_be_slice: bool = True) -> None:
        inside, size = permute(x, INSIDE), int(x.shape[3])
        columns = columns_of(inside) if may_be_slice else None
        self.is_slice, self.first = False, 0
        self.is_inside = memory_order(x) != (0, 1, 2, 3)
        self.source = inside if self.is_inside else x
        if columns is not None and static(x.shape[1]) is not None:
            source, start = columns
            width = math.prod(int(d) for d in source.shape[2:])
            if width % size == 0 and start % size == 0:
                self.is_slice, self.is_inside, self.first = True, True, start // size
                self.source = reshape(source, [*source.shape[:2], width // size, size])


# -- masks -----------------------------------------------------------------------------------------------------------
def _bias(mask: TensorValue, query: TensorValue, key: TensorValue, every_row: bool) -> TensorValue:
    """What a mask adds to the scores, ``[B, H, S, T]``; what it repeats along B, H or S is there once.

    With ``every_row`` it is there for all of S.
    """
    source = _four(narrow(mask))
    zero, never = (constant(x, query.dtype, mask.device) for x in (0, -INF))
    if mask.dtype == DType.bool:
        bias = ops.where(source, zero, never)
    else:
        bias = cast(source, query.dtype)
        if query.dtype == DType.bfloat16:
            lowest = constant(LOWEST, query.dtype, mask.device)
            low = ops.where(ops.equal(bias, never), never, lowest)
            bias = ops.where(ops.greater(lowest, bias), low, bias)
    return broadcast_to(bias, [*bias.shape[:2], query.shape[2] if every_row else bias.shape[2], key.shape[2]])


def _attends(mask: TensorValue) -> TensorValue:
    """Which rows of a mask let anything through, ``[B, H, S, 1]`` or less."""
    source = _four(narrow(mask))
    seen = source if mask.dtype == DType.bool else ops.not_equal(source, constant(-INF, mask.dtype, mask.device))
    return ops.greater(largest(cast(seen, DType.float32), -1), constant(0, DType.float32, mask.device))


def _four(mask: TensorValue) -> TensorValue:
    return reshape(mask, [*[1] * (4 - mask.rank), *mask.shape])


def _only(attends: TensorValue, x: TensorValue) -> TensorValue:
    """``x`` in rows that attend to something, 0 in others."""
    return ops.where(broadcast_to(attends, x.shape), x, constant(0, x.dtype, x.device))
