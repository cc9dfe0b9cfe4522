"""Norms and likelihoods of rows on a GPU, by kernels that read every row once.

A row belongs to some of a block's threads. How many, and how much of it each of them keeps, is decided here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from max.dtype import DType
from max.graph import DeviceRef, Dim, TensorValue, ops

from torch_max_backend.aten_functions.support.index_checks import report_operands
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.tensor_ops import full, is_in_memory, reshape, static

_FLOATS = (DType.bfloat16, DType.float16, DType.float32)
_VECTOR, _KEPT, _MOST_KEPT = 16, 32, 128
"""Bytes of an access, and of a row that a thread keeps: as a rule, and where a row has 1024 threads."""
_FEWEST, _MOST, _READ = 32, 1024, 64
"""Threads of a row; elements that each of them reads at least, where a row is only read."""
_SHORT, _KEPT_OF_LONG = 2**14, 64
_LONG = ((512, 4), (512, 8), (1024, 8))
_SHAPES_OF_NORMS, _SHAPES_OF_SOFTMAX = ((512, 1), (1024, 1), *_LONG), ((512, 1), (512, 2), *_LONG)
"""Bytes of a row up to which a thread keeps half as much; what it keeps of a longer one; and which threads and blocks
such a row may have. They were chosen by measuring rows of powers of two (docs/gpu-measurements.md)."""
_FEW_PIECES = 512
"""Up to so many pieces are added up by a quarter of the most threads. The number is chosen, and not measured."""
_FEW_ROWS = 64
"""Rows that leave most of a GPU idle."""

_ROWS_IN_TURN, _SUMMED = 16, 16
"""Rows whose gradients a thread computes, and the most elements of each: it keeps sums for as many columns."""

_LEAST_PIECE, _MOST_EACH, _THREADS, _COLUMNS_AT_ONCE = 64, 512, 2**16, 8
"""Least rows of a piece, most rows that a thread adds up, threads that there should be, and columns of each."""


@dataclass(frozen=True)
class Spread:
    """How a row is spread over ``lanes`` threads of each of ``blocks``, each with ``vectors`` times ``width`` elements.

    ``vectors`` is 0 where a row is too long to be kept.
    """

    width: int
    vectors: int
    lanes: int
    blocks: int = 1


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


def spread_kept(columns: int, dtype: DType, shapes: Sequence[tuple[int, int]]) -> Spread:
    """The spread of a row that is kept from its reading to its writing, which takes several blocks if it is long.

    Every block gets some of the row, and a block has all threads that its row has there.
    """
    how, size = spread(columns, dtype), dtype.size_in_bytes
    if columns * size <= _SHORT:
        return how
    units = -(-columns // how.width)
    for lanes, blocks in shapes:
        vectors = -(-units // (lanes * blocks))
        if vectors * how.width * size <= _KEPT_OF_LONG:
            return Spread(how.width, vectors, lanes, blocks)
    return how


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
    total: DType | None = None,
    out: DType | None = None,
) -> Normed:
    """The layer norm of the rows of ``x`` [rows, columns], or their RMS norm if it is not centred.

    Args:
        addend: Added to ``x`` first. That sum is rounded.
        is_rounded: Round the normalized rows before they are multiplied by ``weight``.
        total: The sum's dtype, and that of what is normalized, by default that of ``x``. Both operands have it, or a
            shorter one.
        out: The dtype of the normalized rows, by default ``total``.
    """
    columns, total = static(x.shape[1]), total or x.dtype
    assert columns is not None, "the kernel is chosen by the length of a row"
    how = spread_kept(columns, total, _SHAPES_OF_NORMS)
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
        "blocks": how.blocks,
    }
    scale, shift = weight if weight is not None else x, bias if bias is not None else x
    rows, numbers = (out or total, x.shape), (DType.float32, x.shape[:1])
    if addend is None:
        y, mean, rstd = mojo_op("tmb_norm", [x, scale, shift], [rows, numbers, numbers], parameters)
        return Normed(y, x, mean, rstd)
    outputs = [rows, (total, x.shape), numbers, numbers]
    y, summed, mean, rstd = mojo_op("tmb_add_norm", [x, addend, scale, shift], outputs, parameters)
    return Normed(y, summed, mean, rstd)


@dataclass(frozen=True)
class NormGradients:
    """Gradients of ``x`` and its copy [rows, columns], and of weight and bias [columns] in float32."""

    x: TensorValue
    copy: TensorValue
    weight: TensorValue
    bias: TensorValue


def keeps_gradient(rows: int, columns: int, dtype: DType) -> bool:
    """Whether threads can keep rows of this length and dtype, and sums for their weight."""
    how = spread(columns, dtype) if columns else Spread(1, 0, 1)
    return rows > 0 and 0 < how.vectors * how.width <= _SUMMED


def layer_norm_gradients(
    grad: TensorValue,
    x: TensorValue,
    mean: TensorValue,
    rstd: TensorValue,
    weight: TensorValue | None,
    out: DType,
    addend: TensorValue | None = None,
    copy: DType | None = None,
) -> NormGradients:
    """The gradients of a layer norm of the rows of ``x``, all of static sizes.

    Args:
        grad: Of the normalized rows, [rows, columns].
        mean: [rows], as ``rstd``.
        out: The dtype of the gradient of ``x``.
        addend: Added to that gradient when it has been rounded.
        copy: A dtype in which the gradient is wanted as well.
    """
    rows, columns = (int(d) for d in x.shape)
    how, pieces = spread(columns, x.dtype), -(-rows // _ROWS_IN_TURN)
    parameters = {
        "is_centred": True,
        "is_scaled": weight is not None,
        "is_added": addend is not None,
        "is_copied": copy is not None,
        "each": _ROWS_IN_TURN,
        "width": how.width,
        "vectors": how.vectors,
        "lanes": how.lanes,
        "columns": columns,
    }
    small = [Dim(1), Dim(1)]
    sums_shape = [Dim(1), Dim(pieces), Dim(2 * columns)]
    outputs = [(out, x.shape), (copy or out, x.shape if copy else small), (DType.float32, sums_shape)]
    operands = [grad, x, mean, rstd, weight if weight is not None else x, addend if addend is not None else x]
    dx, short, sums = mojo_op("tmb_norm_gradient", operands, outputs, parameters)
    both = reshape(piece_sums(sums), [Dim(2), Dim(columns)])
    return NormGradients(dx, short, both[0], both[1])


@dataclass(frozen=True)
class RowLosses:
    """Numbers a row of logits, all [rows]; the last two in float32.

    ``loss`` is the negative log-probability of the chosen class, 0 where it is ignored, ``largest`` the row's maximum,
    and ``logarithm`` that of the sum of the exponentials of what is less it.
    """

    loss: TensorValue
    largest: TensorValue
    logarithm: TensorValue


def row_losses(x: TensorValue, chosen: TensorValue, ignored: int, out: DType) -> RowLosses:
    """``-log_softmax(x)[row, chosen[row]]`` in ``out``, and what it is made of.

    Args:
        x: Logits, [rows, classes].
        chosen: A class a row, int64, or ``ignored``. Any other is reported, and moved into range.
    """
    numbers = [(dtype, x.shape[:1]) for dtype in (out, DType.float32, DType.float32)]
    report, checks = report_operands(x.device)
    operands = [x, chosen, ops.constant(ignored, DType.int64, DeviceRef.CPU()), *report]
    return RowLosses(*mojo_op("tmb_losses", operands, numbers, {**_reading(x), "checks": checks}))


def likelihood_gradient(
    x: TensorValue,
    opposite: TensorValue,
    logarithm: TensorValue,
    chosen: TensorValue,
    of_row: TensorValue,
    out: DType,
    width: Dim,
) -> TensorValue:
    """``of_row`` where ``chosen`` is, less ``of_row * exp(x + opposite - logarithm)``, for ``x`` [rows, classes].

    Args:
        opposite: As ``logarithm`` and ``of_row``, float32 [rows].
        chosen: A class a row, int64.
        out: The result's dtype.
        width: Columns of the result, which has zeros behind the classes.
    """
    operands = [x, opposite, logarithm, chosen, of_row]
    return mojo_op("tmb_likelihood_gradient", operands, [(out, [x.shape[0], width])], _reading(x))[0]


def row_sum(x: TensorValue, out: DType) -> TensorValue:
    """The sums of the rows of ``x`` [rows, columns], computed in float32 and rounded to ``out``."""
    return mojo_op("tmb_row_sum", [x], [(out, x.shape[:1])], _reading(x))[0]


def row_extreme(x: TensorValue, is_largest: bool) -> tuple[TensorValue, TensorValue]:
    """The largest or smallest element of each row of ``x`` [rows, columns], and its first place in int64: [rows] each.

    A NaN is beyond all numbers.
    """
    rows, parameters = static(x.shape[0]), {**_reading(x), "is_largest": is_largest}
    if rows is not None and rows <= _FEW_ROWS:
        parameters["lanes"] = _MOST
    values, places = mojo_op("tmb_row_extreme", [x], [(x.dtype, x.shape[:1]), (DType.int64, x.shape[:1])], parameters)
    return values, places


def column_sums(x: TensorValue, is_batched: bool) -> TensorValue:
    """The sums over the rows of ``x``, of static sizes, as [outer, 1, columns] in float32.

    ``x`` is [outer, rows, columns], or, as one matrix, [*rows, columns]. A thread adds some rows up, as many as leave
    enough threads to a GPU; what threads found is added up by another kernel.
    """
    sizes = [int(d) for d in x.shape]
    outer, columns = sizes[0] if is_batched else 1, sizes[-1]
    cut = _cut(outer, sizes[1] if is_batched else math.prod(sizes[:-1]), columns)
    out = [(DType.float32, [Dim(outer), Dim(cut.pieces), Dim(columns)])]
    (sums,) = mojo_op("tmb_column_sums", [x], out, {**cut.parameters, "is_batched": is_batched})
    return sums if cut.pieces == 1 else piece_sums(sums)


@dataclass(frozen=True)
class _Cut:
    """The pieces of a matrix: ``lines`` threads have ``each`` rows of ``width`` columns of one.

    A warp reads the lines of a piece side by side, and adds up what its threads have found.
    """

    each: int
    lines: int
    width: int
    pieces: int

    @property
    def parameters(self) -> dict[str, int]:
        """The kernels' parameters."""
        return {"each": self.each, "lines": self.lines, "width": self.width}

    @property
    def rows(self) -> int:
        """The rows of every piece but the last."""
        return self.each * self.lines


def _cut(outer: int, rows: int, columns: int) -> _Cut:
    """How ``outer`` matrices are cut.

    A warp reads a stretch of one row as long as it can, since that is faster, or else whole rows; but of as many lines
    as there must be for its piece not to be small.
    """
    width = _width(columns)
    wanted = max(outer * rows * columns // (width * _THREADS), 1)
    power = 2 ** (wanted.bit_length() - 1)  # since each number is compiled by itself
    least = max(_FEWEST * width / columns, _LEAST_PIECE / power)
    possible = [n for n in (1, 2, 4, 8) if n == 1 or columns % (_FEWEST // n * width) == 0]
    lines = next((n for n in possible if n >= least), possible[-1])
    each = min(max(power, _LEAST_PIECE // lines), _MOST_EACH)
    return _Cut(each, lines, width, -(-rows // (each * lines)))


def _width(columns: int) -> int:
    """The columns that a thread takes at once: a power of two that divides them."""
    return math.gcd(columns, _COLUMNS_AT_ONCE)


def piece_sums(x: TensorValue) -> TensorValue:
    """The sums over the pieces of ``x`` [outer, pieces, columns], which is float32, as [outer, 1, columns]."""
    parameters = {"threads": _joining(int(x.shape[1]))}
    return mojo_op("tmb_piece_sums", [x], [(x.dtype, [x.shape[0], Dim(1), x.shape[2]])], parameters)[0]


def _joining(pieces: int) -> int:
    """The threads of a block that adds up pieces: few where there are few, so that a GPU holds many blocks."""
    return _MOST if pieces > _FEW_PIECES else _MOST // 4


def column_moments(x: TensorValue) -> tuple[TensorValue, TensorValue]:
    """The means over the rows of ``x`` [*rows, columns], of static sizes, and the sums of squares of distances to them.

    Both are [columns], in float32.
    """
    cut, pieces = _piece_moments(x)
    out = [(DType.float32, [Dim(2), x.shape[-1]])]
    parameters = {"each": cut.rows, "rows": _rows(x), "threads": _joining(cut.pieces)}
    (both,) = mojo_op("tmb_piece_moments", [pieces], out, parameters)
    return both[0], both[1]


def _rows(x: TensorValue) -> int:
    return math.prod(int(d) for d in x.shape[:-1])


def _piece_moments(x: TensorValue) -> tuple[_Cut, TensorValue]:
    """How ``x`` [*rows, columns] is cut, and the moments of the pieces, [pieces, 2, columns]."""
    cut = _cut(1, _rows(x), int(x.shape[-1]))
    out = [(DType.float32, [Dim(cut.pieces), Dim(2), x.shape[-1]])]
    return cut, mojo_op("tmb_column_moments", [x], out, cut.parameters)[0]


@dataclass(frozen=True)
class BatchStatistics:
    """What a batch norm computes for each column: all [columns] in float32.

    The norm is ``x * scale + shift``; ``moved_mean`` and ``moved_variance`` are the running statistics after the batch.
    """

    mean: TensorValue
    rstd: TensorValue
    scale: TensorValue
    shift: TensorValue
    moved_mean: TensorValue
    moved_variance: TensorValue


def batch_statistics(
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running: tuple[TensorValue, TensorValue] | None,
    momentum: float,
    epsilon: float,
) -> BatchStatistics:
    """The statistics of a batch ``x`` [*rows, columns], of static sizes; vectors are [columns] in float32.

    Args:
        running: Mean and variance; without them the moved ones mean nothing.
        momentum: The batch's share of the moved ones.
    """
    cut, pieces = _piece_moments(x)
    present = next((v for v in (weight, bias, *(running or ())) if v is not None), None)
    if present is None:
        present = full(0, [x.shape[-1]], DType.float32, x.device)
    vectors = [present if v is None else v for v in (weight, bias, *(running or (None, None)))]
    numbers = [ops.constant(v, DType.float32, DeviceRef.CPU()) for v in (momentum, epsilon)]
    parameters = {
        "each": cut.rows,
        "rows": _rows(x),
        "is_scaled": weight is not None,
        "is_shifted": bias is not None,
        "threads": _joining(cut.pieces),
    }
    out = [(DType.float32, [x.shape[-1]])] * 6
    return BatchStatistics(*mojo_op("tmb_batch_statistics", [pieces, *vectors, *numbers], out, parameters))


def scaled_columns(x: TensorValue, scale: TensorValue, shift: TensorValue) -> TensorValue:
    """``x * scale + shift`` in the dtype of ``x`` [*rows, columns], of static sizes; the others are float32 [columns].

    Elementwise ops that follow are computed by the same kernel.
    """
    parameters = {"width": _width(int(x.shape[-1]))}
    return mojo_op("tmb_scaled_columns", [x, scale, shift], [(x.dtype, x.shape)], parameters)[0]


@dataclass(frozen=True)
class BatchGradients:
    """The gradients of a batch norm's weight and bias, and numbers for its input's: all [columns] in float32.

    The gradient of the input is ``(grad - offset + (mean - x) * factor) * scale``, where ``grad`` is what came out.
    """

    grad: TensorValue
    weight: TensorValue
    bias: TensorValue
    offset: TensorValue
    factor: TensorValue
    scale: TensorValue


def batch_gradients(
    grad: TensorValue, x: TensorValue, mean: TensorValue, rstd: TensorValue, weight: TensorValue | None, keeps: bool
) -> BatchGradients:
    """The gradients of a batch norm of ``x``, which is [*rows, columns] as ``grad``, of static sizes.

    ``mean``, ``rstd`` and ``weight`` are [columns] in float32. With ``keeps`` a ``grad`` that is not in memory is
    computed and stored by the kernel that sums it up; MAX would store it before, which is as fast for one reader.
    """
    columns, keeps = int(x.shape[-1]), keeps and not is_in_memory(grad)
    cut = _cut(1, _rows(x), columns)
    sums_shape = [Dim(1), Dim(cut.pieces), Dim(2 * columns)]
    out = [(DType.float32, sums_shape), (grad.dtype, grad.shape if keeps else [Dim(0)] * grad.rank)]
    sums, kept = mojo_op("tmb_column_products", [grad, x, mean], out, {**cut.parameters, "keeps": keeps})
    operands = [sums, rstd, rstd if weight is None else weight]
    numbers = [(DType.float32, [Dim(columns)])] * 5
    parameters = {"rows": _rows(x), "is_scaled": weight is not None, "threads": _joining(cut.pieces)}
    found = mojo_op("tmb_batch_gradients", operands, numbers, parameters)
    return BatchGradients(kept if keeps else grad, *found)


def serves_columns(x: TensorValue, shape: Sequence[Dim]) -> bool:
    """Whether :func:`column_sums` takes ``x`` as [outer, rows, columns], and there are rows enough."""
    sizes = [static(d) or 0 for d in shape]
    return x.device.is_gpu() and x.dtype in _FLOATS and min(sizes) > 0 and sizes[1] > _LEAST_PIECE and sizes[2] > 1


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
    how = spread_kept(columns, x.dtype, _SHAPES_OF_SOFTMAX)
    parameters = {"is_log": is_log, **asdict(how), "columns": columns}
    return mojo_op("tmb_softmax", [x], [(out, x.shape)], parameters)[0]
