"""Norms and likelihoods of rows on a GPU, by kernels that read every row once.

A row belongs to some of a block's threads. How many, and how much of it each of them keeps, is decided here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from max.dtype import DType
from max.graph import Dim, TensorValue

from torch_max_backend.aten_functions.common import mojo_op, static

_FLOATS = (DType.bfloat16, DType.float16, DType.float32)
_VECTOR, _KEPT, _MOST_KEPT = 16, 32, 128
"""Bytes of an access, and of a row that a thread keeps: as a rule, and where a row has 1024 threads."""
_FEWEST, _MOST, _READ = 32, 1024, 64
"""Threads of a row; elements that each of them reads at least, where a row is only read."""

_EACH, _COLUMNS_AT_ONCE = 64, 8
"""Rows that a thread adds up, and columns."""


@dataclass(frozen=True)
class Spread:
    """How a row is spread over ``lanes`` threads, each with ``vectors`` times ``width`` elements.

    ``vectors`` is 0 where a row is too long to be kept.
    """

    width: int
    vectors: int
    lanes: int


def spread(columns: int, dtype: DType) -> Spread:
    """The spread of a row of ``columns`` elements."""
    size = dtype.size_in_bytes
    width = _VECTOR // size
    while columns % width:
        width //= 2
    units = -(-columns // width)
    lanes = _FEWEST
    while lanes < _MOST and -(-units // lanes) * width * size > _KEPT:
        lanes *= 2
    vectors = -(-units // lanes)
    return Spread(width, vectors if vectors * width * size <= _MOST_KEPT else 0, lanes)


def serves(x: TensorValue) -> bool:
    """Whether the kernels take the rows of ``x`` [rows, columns]: on a GPU, of a known length, in up to 32 bits."""
    return x.device.is_gpu() and x.dtype in _FLOATS and bool(static(x.shape[1]))


@dataclass(frozen=True)
class Normed:
    """``y`` and ``total`` (what was normalized) [rows, columns]; ``mean`` and ``rstd`` [rows], in float32."""

    y: TensorValue
    total: TensorValue
    mean: TensorValue
    rstd: TensorValue


def row_norm(
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    eps: float,
    is_centred: bool,
    addend: TensorValue | None = None,
    is_rounded: bool = False,
) -> Normed:
    """The layer norm of the rows of ``x`` [rows, columns], or their RMS norm if it is not centred.

    Args:
        addend: Added to ``x`` first. That sum is rounded to the dtype.
        is_rounded: Round the normalized rows before they are multiplied by ``weight``.
    """
    columns = static(x.shape[1])
    assert columns is not None, "the kernel is chosen by the length of a row"
    how = spread(columns, x.dtype)
    parameters = {
        "is_centred": is_centred,
        "is_scaled": weight is not None,
        "is_shifted": bias is not None,
        "is_rounded": is_rounded,
        "epsilon": struct.unpack("<I", struct.pack("<f", eps))[0],
        "width": how.width,
        "vectors": how.vectors,
        "lanes": how.lanes,
        "columns": columns,
    }
    scale, shift = weight if weight is not None else x, bias if bias is not None else x
    rows, numbers = (x.dtype, x.shape), (DType.float32, x.shape[:1])
    if addend is None:
        y, mean, rstd = mojo_op("tmb_norm", [x, scale, shift], [rows, numbers, numbers], parameters)
        return Normed(y, x, mean, rstd)
    outputs = [rows, rows, numbers, numbers]
    y, total, mean, rstd = mojo_op("tmb_add_norm", [x, addend, scale, shift], outputs, parameters)
    return Normed(y, total, mean, rstd)


@dataclass(frozen=True)
class Chosen:
    """Numbers a row of logits, all [rows] in float32.

    ``log_probability`` is that of the chosen class, ``largest`` the row's maximum, and ``logarithm`` that of the sum of
    the exponentials of what is less it.
    """

    log_probability: TensorValue
    largest: TensorValue
    logarithm: TensorValue


def chosen_log_probability(x: TensorValue, chosen: TensorValue) -> Chosen:
    """``log_softmax(x)[row, chosen[row]]`` for ``x`` [rows, classes] and ``chosen`` [rows], and what it is made of."""
    numbers = [(DType.float32, x.shape[:1])] * 3
    return Chosen(*mojo_op("tmb_chosen_log_probability", [x, chosen], numbers, _reading(x)))


def row_sum(x: TensorValue) -> TensorValue:
    """The sums of the rows of ``x`` [rows, columns], in float32."""
    return mojo_op("tmb_row_sum", [x], [(DType.float32, x.shape[:1])], _reading(x))[0]


def column_sums(x: TensorValue, is_batched: bool) -> TensorValue:
    """The sums over the rows of ``x``, of static sizes, as [outer, 1, columns] in float32.

    ``x`` is [outer, rows, columns], or, as one matrix, [*rows, columns]. A thread adds `_EACH` rows up, and what
    threads found is added up likewise, until there is one row.
    """
    sizes = [int(d) for d in x.shape]
    outer, columns = sizes[0] if is_batched else 1, sizes[-1]
    rows = sizes[1] if is_batched else math.prod(sizes[:-1])
    width = _COLUMNS_AT_ONCE
    while columns % width:
        width //= 2
    while True:
        rows = -(-rows // _EACH)
        out = [(DType.float32, [Dim(outer), Dim(rows), Dim(columns)])]
        (x,) = mojo_op("tmb_column_sums", [x], out, {"each": _EACH, "width": width, "is_batched": is_batched})
        if rows == 1:
            return x
        is_batched = True


def serves_columns(x: TensorValue, shape: Sequence[Dim]) -> bool:
    """Whether :func:`column_sums` takes ``x`` as [outer, rows, columns], and there are rows enough."""
    sizes = [static(d) or 0 for d in shape]
    return x.device.is_gpu() and x.dtype in _FLOATS and min(sizes) > 0 and sizes[1] > _EACH and sizes[2] > 1


def _reading(x: TensorValue) -> dict[str, int]:
    """How the rows of ``x`` are spread where they are only read, and so need not be kept: over fewer threads."""
    columns = static(x.shape[1])
    assert columns is not None, "the kernel is chosen by the length of a row"
    lanes = _FEWEST
    while lanes < _MOST // 4 and lanes * _READ < columns:
        lanes *= 2
    return {"width": spread(columns, x.dtype).width, "lanes": lanes if columns <= 2**16 else _MOST // 2}


def row_softmax(x: TensorValue, out: DType, is_log: bool) -> TensorValue:
    """The softmax of the rows of ``x`` [rows, columns], or its logarithm, in dtype ``out``."""
    columns = static(x.shape[1])
    assert columns is not None, "the kernel is chosen by the length of a row"
    how = spread(columns, x.dtype)
    parameters = {"is_log": is_log, "width": how.width, "vectors": how.vectors, "lanes": how.lanes, "columns": columns}
    return mojo_op("tmb_softmax", [x], [(out, x.shape)], parameters)[0]
