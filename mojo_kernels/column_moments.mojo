"""Means and variances of the columns of matrices, and what their gradients sum up, by kernels that read once, for GPUs.

The statistics of batch norms whose images lie channels last. Rows are read as by `tmb_column_sums`.
"""

import extensibility
from extensibility import InputTensor, OutputTensor, _FusedInputTensor
from max.algorithm.functional import elementwise
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.host import DeviceContext
from max.gpu.memory import AddressSpace
from max.gpu.sync import barrier
from std.bit import log2_floor
from std.math import ceildiv
from std.memory import unsafe_stack_allocation
from std.utils.coord import Coord
from std.utils.static_tuple import StaticTuple

from .column_sums import COLUMNS, THREADS, TOGETHER, vector
from .rows import Results, Values

comptime AT_ONCE = 8
"""Rows that a thread reads before it needs the first of them."""
comptime PAIRS_AT_ONCE = 4
"""The same of two matrices."""


@fieldwise_init
struct Moments[lanes: Int](TrivialRegisterPassable):
    """The mean of `lanes` columns, and the sums of the squares of distances to it."""

    var mean: SIMD[DType.float32, Self.lanes]
    var squares: SIMD[DType.float32, Self.lanes]

    @always_inline
    def joined(self, size: Int, other: Self, others: Int) -> Self:
        """Those of `size` rows and `others` more, by Chan, Golub and LeVeque."""
        var away = other.mean - self.mean
        var share = Float32(others) / Float32(size + others)
        return Self(self.mean + away * share, self.squares + (other.squares + away * away * (Float32(size) * share)))


@extensibility.register("tmb_column_moments")
struct ColumnMoments[each: Int, width: Int]:
    """`result` [pieces, 2, columns]: the moments of every `each` rows of `x`, by a thread for `width` columns.

    `x` is of rank 2 to 5, its last dimension the columns, all others the rows. The last piece may have fewer.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[dtype=DType.float32, rank=3, ...],
        x: _FusedInputTensor,
        ctx: DeviceContext,
    ) raises:
        var columns = result.dim_size(2)
        var rows = 1
        comptime for i in range(x.rank - 1):
            rows *= x.dim_size(i)

        def describe[lanes: Int, alignment: Int = 1](at: Coord) {var result, var x, var rows, var columns}:
            comptime V = SIMD[DType.float32, lanes]
            var piece = Int(at[0].value())
            var column = Int(at[2].value())
            var first = piece * Self.each
            var end = min(first + Self.each, rows)
            var row = first
            var all = Moments[lanes](0, 0)
            while row + AT_ONCE <= end:
                var held = unsafe_stack_allocation[AT_ONCE, SIMD[x.dtype, lanes]]()
                comptime for i in range(AT_ONCE):
                    held[unsafe_offset=i] = vector[lanes, alignment, False](x, 0, row + i, column)
                var sums = V(0)
                comptime for i in range(AT_ONCE):
                    sums += held[unsafe_offset=i].cast[DType.float32]()
                var mean = sums * (1.0 / AT_ONCE)
                var squares = V(0)
                comptime for i in range(AT_ONCE):
                    var away = held[unsafe_offset=i].cast[DType.float32]() - mean
                    squares += away * away
                all = all.joined(row - first, Moments[lanes](mean, squares), AT_ONCE)
                row += AT_ONCE
            while row < end:
                var value = vector[lanes, alignment, False](x, 0, row, column).cast[DType.float32]()
                all = all.joined(row - first, Moments[lanes](value, 0), 1)
                row += 1
            var into = result.unsafe_ptr().unsafe_offset(2 * piece * columns + column)
            into.unsafe_store[width=lanes](all.mean)
            into.unsafe_offset(columns).unsafe_store[width=lanes](all.squares)

        elementwise[simd_width=Self.width, target=target](
            describe, Coord(result.dim_size(0), 1, columns), ctx
        )


@always_inline
def summed(value: Float32) -> Float32:
    """The sum of a column's values, for each of its threads."""
    comptime lines = THREADS // COLUMNS
    var shared = unsafe_stack_allocation[THREADS, Float32, address_space=AddressSpace.SHARED]()
    var thread = Int(thread_idx.x)
    barrier()  # an earlier sum, in the same memory, may still be read
    shared[unsafe_offset=thread] = value
    comptime for level in range(log2_floor(lines)):
        comptime half = lines >> (level + 1)
        barrier()
        if thread // COLUMNS < half:
            shared[unsafe_offset=thread] += shared[unsafe_offset=thread + half * COLUMNS]
    barrier()
    return shared[unsafe_offset=thread % COLUMNS]


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def join_pieces(
    result: Results[DType.float32],
    x: Values[DType.float32],
    pieces_: Int32,
    columns_: Int32,
    each_: Int32,
    rows_: Int32,
):
    """The moments of `COLUMNS` columns a block."""
    comptime lines = THREADS // COLUMNS
    var pieces, columns, each, rows = Int(pieces_), Int(columns_), Int(each_), Int(rows_)
    var line = Int(thread_idx.x) // COLUMNS
    var column = Int(block_idx.x) * COLUMNS + Int(thread_idx.x) % COLUMNS
    var source = x.unsafe_offset(min(column, columns - 1))
    var sums = Float32(0)
    for piece in range(line, pieces, lines):
        sums += source[unsafe_offset=2 * piece * columns] * Float32(min(each, rows - piece * each))
    var mean = summed(sums) / Float32(rows)
    var squares = Float32(0)
    for piece in range(line, pieces, lines):
        var away = source[unsafe_offset=2 * piece * columns] - mean
        squares += source[unsafe_offset = (2 * piece + 1) * columns] + away * away * Float32(min(each, rows - piece * each))
    squares = summed(squares)
    if line == 0 and column < columns:
        result[unsafe_offset=column] = mean
        result[unsafe_offset=columns + column] = squares


@extensibility.register("tmb_piece_moments")
struct PieceMoments[each: Int, rows: Int]:
    """`result` [2, columns]: the moments of `rows` rows, of those of pieces `x` [pieces, 2, columns] of `each` rows."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[dtype=DType.float32, rank=2, ...],
        x: InputTensor[dtype=DType.float32, rank=3, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_piece_moments runs on GPUs"
        var columns = x.dim_size(2)
        ctx.enqueue_function[join_pieces](
            result.unsafe_ptr(),
            x.unsafe_ptr().as_imm(),
            Int32(x.dim_size(0)),
            Int32(columns),
            Int32(Self.each),
            Int32(Self.rows),
            grid_dim=ceildiv(columns, COLUMNS),
            block_dim=THREADS,
        )


@extensibility.register("tmb_column_products")
struct ColumnProducts[each: Int, width: Int]:
    """`result` [1, pieces, 2 * columns]: sums of every `each` rows of `g`, and of `g * (x - mean)`.

    `g` and `x` are as `x` of `tmb_column_moments`, and of one shape; `mean` is [columns].
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[dtype=DType.float32, rank=3, ...],
        g: _FusedInputTensor,
        x: _FusedInputTensor,
        mean: InputTensor[dtype=DType.float32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert g.rank == x.rank, "they have one shape"
        var columns = mean.dim_size(0)
        var rows = 1
        comptime for i in range(x.rank - 1):
            rows *= x.dim_size(i)

        def add[
            lanes: Int, alignment: Int = 1
        ](at: Coord) {var result, var g, var x, var mean, var rows, var columns}:
            comptime V = SIMD[DType.float32, lanes]
            var piece = Int(at[1].value())
            var column = Int(at[2].value())
            var row = piece * Self.each
            var end = min(row + Self.each, rows)
            var centre = mean.unsafe_ptr().unsafe_offset(column).unsafe_load[width=lanes]()
            var some_plain, some_along = V(0), V(0)
            var plain, along = V(0), V(0)
            var until = row + TOGETHER
            while row + PAIRS_AT_ONCE <= end:
                var grads = unsafe_stack_allocation[PAIRS_AT_ONCE, SIMD[g.dtype, lanes]]()
                var held = unsafe_stack_allocation[PAIRS_AT_ONCE, SIMD[x.dtype, lanes]]()
                comptime for i in range(PAIRS_AT_ONCE):
                    grads[unsafe_offset=i] = vector[lanes, alignment, False](g, 0, row + i, column)
                    held[unsafe_offset=i] = vector[lanes, alignment, False](x, 0, row + i, column)
                comptime for i in range(PAIRS_AT_ONCE):
                    var of = grads[unsafe_offset=i].cast[DType.float32]()
                    some_plain += of
                    some_along += of * (held[unsafe_offset=i].cast[DType.float32]() - centre)
                row += PAIRS_AT_ONCE
                if row == until:
                    plain += some_plain
                    along += some_along
                    some_plain, some_along = V(0), V(0)
                    until = row + TOGETHER
            while row < end:
                var of = vector[lanes, alignment, False](g, 0, row, column).cast[DType.float32]()
                some_plain += of
                some_along += of * (vector[lanes, alignment, False](x, 0, row, column).cast[DType.float32]() - centre)
                row += 1
            var into = result.unsafe_ptr().unsafe_offset(2 * piece * columns + column)
            into.unsafe_store[width=lanes](plain + some_plain)
            into.unsafe_offset(columns).unsafe_store[width=lanes](along + some_along)

        elementwise[simd_width=Self.width, target=target](add, Coord(1, result.dim_size(1), columns), ctx)
