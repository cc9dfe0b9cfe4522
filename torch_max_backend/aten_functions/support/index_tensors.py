"""Index tensors: range checks, flat positions, and reads and writes at positions.

MAX checks the range of ``gather`` on the CPU and of nothing else: ``gather_nd`` and every ``scatter`` read and write
wherever an index points. So all indices that reach those ops pass through :func:`checked` first. On a GPU, where
nothing can raise, ``index_checks.py`` checks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.support.index_checks import in_range
from torch_max_backend.aten_functions.support.tensor_ops import (
    broadcast_to,
    cast,
    constant,
    full,
    iota,
    numel,
    reshape,
    static,
    tensor,
)

Reduce = Literal["set", "sum", "prod", "mean", "amax", "amin"]

_SCATTER = {
    "set": ops.scatter_nd,
    "sum": ops.scatter_nd_add,
    "prod": ops.scatter_nd_mul,
    "amax": ops.scatter_nd_max,
    "amin": ops.scatter_nd_min,
}


# -- range ---------------------------------------------------------------------------------------------------------
def readable(indices: TensorValue, size: Dim, *, wraps: bool, check: int = 0) -> TensorValue:
    """int64 indices for ``ops.gather``, which raises on the CPU if one is out of range and accepts negative ones.

    A GPU kernel cannot raise: there, an index out of range is reported, and moved into range.

    Args:
        size: The size of the indexed dim.
        wraps: Whether negative indices count from the end; where they do not, they are out of range.
        check: The number of this check among those that the op declares.
    """
    at = cast(indices, DType.int64)
    if not at.device.is_cpu():
        return in_range(at, size, wraps=wraps, check=check)
    return at if wraps else ops.where(at < 0, at - tensor(size, DType.int64, at.device), at)


def checked(indices: TensorValue, size: Dim, *, wraps: bool, check: int = 0) -> TensorValue:
    """int64 indices in [0, size): the run fails on the CPU if one is out of range; on a GPU it is reported.

    The check on the CPU is a gather from ``[0, 1, …, size-1]``, which also resolves negative indices.
    """
    at = readable(indices, size, wraps=wraps, check=check)
    return at if not at.device.is_cpu() else take_rows(iota(size, DType.int64, at.device), at, 0)


def take_rows(x: TensorValue, indices: TensorValue, axis: int) -> TensorValue:
    """``ops.gather`` for indices of any rank: MAX cannot compile 0-d ones."""
    if indices.rank:
        return ops.gather(x, indices, axis)
    return reshape(ops.gather(x, reshape(indices, [1]), axis), [*x.shape[:axis], *x.shape[axis + 1 :]])


# -- positions -----------------------------------------------------------------------------------------------------
def coordinate(size: Dim | int, axis: int, rank: int, like: TensorValue) -> TensorValue:
    """``[0, …, size-1]`` along ``axis`` of a tensor of ``rank`` dims, all others of size 1."""
    return reshape(iota(size, DType.int64, like.device), [size if i == axis else 1 for i in range(rank)])


def linear(coordinates: Sequence[TensorValue], sizes: Sequence[Dim]) -> TensorValue:
    """The row-major position of broadcast coordinates."""
    position = coordinates[0]
    for at, size in zip(coordinates[1:], sizes[1:], strict=True):
        position = position * tensor(size, DType.int64, position.device) + at
    return position


def positions_along(x: TensorValue, axis: int, indices: TensorValue) -> TensorValue:
    """Positions in the flattened ``x`` of ``x.gather(axis, indices)``; ``indices`` must be in range."""
    coordinates = [
        indices if d == axis else coordinate(indices.shape[d], d, indices.rank, indices) for d in range(x.rank)
    ]
    return broadcast_to(linear(coordinates, x.shape), indices.shape)


def positions_of_rows(x: TensorValue, axis: int, indices: TensorValue) -> TensorValue:
    """Positions in ``x`` with its dims up to ``axis`` flattened, for one-dimensional ``indices`` along ``axis``."""
    shape = [*x.shape[:axis], indices.shape[0]]
    coordinates = [coordinate(x.shape[d], d, axis + 1, indices) for d in range(axis)]
    coordinates.append(reshape(indices, [*[1] * axis, indices.shape[0]]))
    return broadcast_to(linear(coordinates, x.shape[: axis + 1]), shape)


def rows_of(x: TensorValue, depth: int) -> TensorValue:
    """``x`` with its first ``depth`` dims flattened."""
    return reshape(x, [numel(x.shape[:depth]), *x.shape[depth:]])


# -- writes --------------------------------------------------------------------------------------------------------
def write_rows(
    x: TensorValue, depth: int, positions: TensorValue, updates: TensorValue, reduce: Reduce, include_self: bool = True
) -> TensorValue:
    """``x`` with ``updates`` written or reduced into rows.

    Args:
        x: Its first ``depth`` dims, flattened, number the rows.
        positions: In range; any shape.
        updates: Shape ``[*positions.shape, *x.shape[depth:]]``.
        include_self: Whether what stands in a written row takes part in the reduction.
    """
    if any(static(d) == 0 for d in [*updates.shape, *x.shape]):
        return x
    wide = _wide(x.dtype) if reduce != "set" else x.dtype
    rows, values = cast(rows_of(x, depth), wide), cast(updates, wide)
    count = numel(positions.shape)
    at = reshape(positions, [count, 1])
    values = reshape(values, [count, *rows.shape[1:]])
    result = cast(_reduced(rows, at, values, reduce, include_self), x.dtype)
    return reshape(result, x.shape)


def _wide(dtype: DType) -> DType:
    """Where to accumulate: 16-bit floats in float32, small integers and bool (by C's wrap-around) in int32."""
    if dtype in (DType.float16, DType.bfloat16):
        return DType.float32
    return DType.int32 if dtype.size_in_bytes < 4 else dtype


def _reduced(
    rows: TensorValue, at: TensorValue, values: TensorValue, reduce: Reduce, include_self: bool
) -> TensorValue:
    if reduce == "set":
        return ops.scatter_nd(rows, values, at)
    if not include_self:
        identity = constant(_identity(reduce, rows.dtype), rows.dtype, rows.device)
        rows = ops.scatter_nd(rows, broadcast_to(identity, values.shape), at)
    if reduce == "mean":
        return _mean(rows, at, values, include_self)
    result = _SCATTER[reduce](rows, values, at)
    if reduce in ("amax", "amin") and rows.dtype.is_float():
        # MAX's maximum and minimum drop NaN.
        seen = ops.scatter_nd_add(cast(ops.is_nan(rows), DType.int32), cast(ops.is_nan(values), DType.int32), at)
        result = ops.where(seen > 0, full(float("nan"), result.shape, result.dtype, result.device), result)
    return result


def _mean(rows: TensorValue, at: TensorValue, values: TensorValue, include_self: bool) -> TensorValue:
    """Rows that nothing is written to keep their value; integers divide by rounding down."""
    ones, zeros = (full(v, values.shape, rows.dtype, rows.device) for v in (1, 0))
    counts = full(1, rows.shape, rows.dtype, rows.device)
    counts = counts if include_self else ops.scatter_nd(counts, zeros, at)
    counts = ops.scatter_nd_add(counts, ones, at)
    total = ops.scatter_nd_add(rows, values, at)
    return ops.div(total, counts) if rows.dtype.is_float() else ops.floor_div(total, ops.max(counts, 1))


def _identity(reduce: Reduce, dtype: DType) -> float | int:
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    low = reduce == "amax"
    if dtype.is_float():
        return float("-inf") if low else float("inf")
    bits = dtype.size_in_bytes * 8
    if dtype.is_unsigned_integral():
        return 0 if low else (1 << bits) - 1
    return -(1 << (bits - 1)) if low else (1 << (bits - 1)) - 1
