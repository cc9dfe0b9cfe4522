"""Attention on a GPU that never stores its scores: MAX's flash kernels (`mojo_kernels/gpu/flash_attention.mojo`).

They take ``[B, S, H, E]``, so that a model's ``[B, S, H * E]`` needs no transpose, sum in float32, and round the
weights to 16 bits before the second product, as torch's kernels do. They have no logarithms of the rows' sums to give
away: where those are read, scores are stored.
"""

from __future__ import annotations

import math
from copy import copy

from max.dtype import DType
from max.graph import DeviceRef, Dim, TensorValue, ops

from torch_max_backend.aten_functions.support.axis_reductions import largest
from torch_max_backend.aten_functions.support.dtypes import Operand
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.tensor_ops import (
    broadcast_to,
    cast,
    columns_of,
    constant,
    full,
    memory_order,
    narrow,
    permute,
    rebind,
    reshape,
    static,
    tensor,
)

SIZES = (64, 72, 80, 96, 128, 256)
"""Sizes of a head that the kernels have tiles for."""
WIDENED = (64, 128, 256)
"""Sizes that others are widened to, with zeros: they change no score, and the columns they make are cut off."""
LARGEST_GROUP = 16
"""Heads of the query that may share one head of the keys where there is one query: they are rows of one tile."""
NEVER, LOWEST = -(2.0**101), -(2.0**100)
"""What minus infinity and what is next to it become in a bias: exact in 16 bits, and with finite differences."""
INF = float("inf")
INSIDE = [0, 2, 1, 3]
"""The permutation between ``[B, H, S, E]`` and ``[B, S, H, E]``."""


def keeps_order(scale: Operand | None) -> bool:
    """Whether a scale is known to be positive. Fused kernels take the largest score of a row before they scale it."""
    return scale is None or (not isinstance(scale, TensorValue) and scale > 0)


def suits_flash(
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    mask: TensorValue | None,
    is_causal: bool,
    scale: Operand | None,
) -> bool:
    """Whether the kernels compute this.

    They count a query's position from the end of the keys, torch from their beginning. So the causal order needs as
    many keys as queries, or more, which are cut off. A mask is read at the right place for at least as many keys.
    """
    if not query.device.is_gpu() or query.dtype not in (DType.float16, DType.bfloat16) or not keeps_order(scale):
        return False
    heads, groups, size = static(query.shape[1]), static(key.shape[1]), static(query.shape[3])
    if not heads or not groups or not size or size > WIDENED[-1] or query.shape[3] != value.shape[3]:
        return False
    if query.shape[0] != key.shape[0] or key.shape[:3] != value.shape[:3]:
        return False
    queries, keys = static(query.shape[2]), static(key.shape[2])
    if heads // groups > LARGEST_GROUP and (queries is None or queries == 1):
        return False
    if not is_causal and mask is None:
        return True
    if is_causal and mask is not None:
        return False
    return query.shape[2] == key.shape[2] or (queries is not None and keys is not None and queries <= keys)


def flash(
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    mask: TensorValue | None,
    is_causal: bool,
    scale: Operand | None,
) -> TensorValue:
    """``[B, H, S, E]`` of what ``suits_flash``, rounded once; 0 for a row that attends to nothing."""
    factor = tensor(1.0 / math.sqrt(int(query.shape[3])) if scale is None else scale, DType.float32, DeviceRef.CPU())
    if is_causal and key.shape[2] != query.shape[2]:
        key, value = (permute(permute(x, INSIDE)[:, : int(query.shape[2])], INSIDE) for x in (key, value))
    q, k, v = (_widened(x) for x in (query, key, value))
    masks = None if mask is None else _Masks(mask, k)
    if _heads_are_outside(q, k, v, masks):
        batch, groups, keys, size = k.shape
        shared = q.shape[1] // groups
        flat = [reshape(q, [batch * groups, q.shape[2], shared, size])]
        flat += [reshape(x, [batch * groups, keys, 1, size]) for x in (k, v)]
        rows = reshape(_attended(flat, masks and masks.flattened(batch, groups, shared), is_causal, factor), q.shape)
        return _narrowed(rows, query)
    inside = [permute(x, INSIDE) for x in (q, k, v)]
    rows = _attended_slices(inside, is_causal, factor) if masks is None else None
    if rows is None:
        rows = _attended(inside, masks, is_causal, factor)
    return _narrowed(permute(rows, INSIDE), query)


def _attended(tensors: list[TensorValue], masks: _Masks | None, is_causal: bool, factor: TensorValue) -> TensorValue:
    """Attention of tensors ``[B, S, H, E]``."""
    out = [(tensors[0].dtype, tensors[0].shape)]
    if masks is None:
        return mojo_op("tmb_flash_attention", [*tensors, factor], out, {"is_causal": is_causal})[0]
    rows = mojo_op("tmb_biased_attention", [*tensors, masks.bias, factor], out)[0]
    attends = broadcast_to(permute(masks.attends, INSIDE), rows.shape)
    return ops.where(attends, rows, constant(0, rows.dtype, rows.device))


# -- where heads are in memory ---------------------------------------------------------------------------------------
def _heads_are_outside(q: TensorValue, k: TensorValue, v: TensorValue, masks: _Masks | None) -> bool:
    """Whether keys are in memory as ``[B, G, T, E]``, as in a cache, and can stay so: as items with one head each.

    A group's queries have to be in one row of memory then: there is one query, or one head in a group.
    """
    outside = not any(memory_order(x) == tuple(INSIDE) for x in (k, v))
    if not outside or static(k.shape[1]) == 1:
        return False
    if static(q.shape[2]) == 1:
        return True
    return q.shape[1] == k.shape[1] and (masks is None or masks.is_shared)


def _attended_slices(tensors: list[TensorValue], is_causal: bool, factor: TensorValue) -> TensorValue | None:
    """Attention of ``[B, S, H, E]`` that are slices of larger tensors, read where they are; None if none is one."""
    q, k, _ = tensors
    size = int(q.shape[3])
    found = [columns_of(x) for x in tensors]
    if not any(found) or size not in WIDENED or q.shape[1] != k.shape[1] or static(q.shape[1]) == 1:
        return None
    parameters: dict[str, bool | int] = {"is_causal": is_causal, "groups": int(k.shape[2])}
    sources = []
    for name, x, columns in zip(("query", "key", "value"), tensors, found, strict=True):
        source, start = columns or (x, 0)
        width = math.prod(int(d) for d in source.shape[2:])
        if width % size or start % size:
            return None
        sources.append(reshape(source, [*source.shape[:2], width // size, size]))
        parameters[f"{name}_at"] = start // size
    return mojo_op("tmb_sliced_attention", [*sources, factor], [(q.dtype, q.shape)], parameters)[0]


# -- sizes of a head -------------------------------------------------------------------------------------------------
def _widened(x: TensorValue) -> TensorValue:
    size = int(x.shape[3])
    if size in SIZES:
        return x
    target = next(s for s in WIDENED if s > size)
    x = permute(x, INSIDE)
    zeros = full(0, [*x.shape[:3], target - size], x.dtype, x.device)
    return permute(rebind(ops.concat([x, zeros], axis=-1), [*x.shape[:3], target]), INSIDE)


def _narrowed(x: TensorValue, like: TensorValue) -> TensorValue:
    if x.shape[3] == like.shape[3]:
        return x
    return rebind(x[..., : int(like.shape[3])], like.shape)


# -- masks -----------------------------------------------------------------------------------------------------------
class _Masks:
    """What becomes of a mask: ``bias [B, H, S, T]`` and ``attends [B, H, S, 1]``; B, H and S may be 1 instead."""

    def __init__(self, mask: TensorValue, key: TensorValue) -> None:
        source = narrow(mask)
        source = reshape(source, [*[1] * (4 - source.rank), *source.shape])
        self.bias = broadcast_to(_finite(source), [*source.shape[:3], key.shape[2]])
        self.attends = _attends(source)

    @property
    def is_shared(self) -> bool:
        """Whether all items and heads have one mask."""
        return static(self.bias.shape[0]) == 1 and static(self.bias.shape[1]) == 1

    def flattened(self, batch: Dim, groups: Dim, shared: Dim) -> _Masks:
        """The same for ``batch * groups`` items of ``shared`` heads."""
        if self.is_shared:
            return self
        result = copy(self)
        result.bias, result.attends = (_flattened(x, batch, groups, shared) for x in (self.bias, self.attends))
        return result


def _flattened(x: TensorValue, batch: Dim, groups: Dim, shared: Dim) -> TensorValue:
    heads = groups if static(x.shape[1]) == 1 else groups * shared
    wide = broadcast_to(x, [batch, heads, *x.shape[2:]])
    return reshape(wide, [batch * groups, 1 if static(x.shape[1]) == 1 else shared, *x.shape[2:]])


def _finite(mask: TensorValue) -> TensorValue:
    """What a mask adds to the scores. The kernels subtract a row's largest score, which must not be infinite."""
    dtype = {DType.bool: DType.bfloat16, DType.float16: DType.float32}.get(mask.dtype, mask.dtype)
    never, lowest = (constant(x, dtype, mask.device) for x in (NEVER, LOWEST))
    if mask.dtype == DType.bool:
        return ops.where(mask, constant(0, dtype, mask.device), never)
    bias = cast(mask, dtype)
    low = ops.where(ops.equal(bias, constant(-INF, dtype, mask.device)), never, lowest)
    return ops.where(ops.greater(lowest, bias), low, bias)


def _attends(mask: TensorValue) -> TensorValue:
    """Which rows of a mask let anything through."""
    seen = mask if mask.dtype == DType.bool else ops.not_equal(mask, constant(-INF, mask.dtype, mask.device))
    return ops.greater(largest(cast(seen, DType.float32), -1), constant(0, DType.float32, mask.device))
