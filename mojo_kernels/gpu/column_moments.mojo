"""Means and variances of the columns of matrices, and what their gradients sum up, by kernels that read once, for GPUs.

The statistics of batch norms whose images lie channels last. Rows are read as by `tmb_column_sums`.
"""

import extensibility
from extensibility import InputTensor, OutputTensor, _FusedInputTensor
from max.algorithm.functional import elementwise
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.host import DeviceContext
from max.gpu.primitives import warp
from std.bit import log2_floor
from std.math import ceildiv
from std.memory import unsafe_stack_allocation
from std.utils.coord import Coord
from std.utils.static_tuple import StaticTuple

from .column_sums import (
    COLUMNS,
    TOGETHER,
    across_lines,
    groups_of,
    my_line,
    share_of_piece,
    total_of_block,
    vector,
)
from .row_threads import GROUP, Results, Values

comptime AT_ONCE = 8
"""Rows that a thread reads before it needs the first of them."""
comptime PAIRS_AT_ONCE = 4
"""The same of two matrices."""


@fieldwise_init
struct Moments[lanes: Int](TrivialRegisterPassable):
    """The mean of `count` rows of `lanes` columns, and the sums of the squares of distances to it."""

    var count: Int32
    var mean: SIMD[DType.float32, Self.lanes]
    var squares: SIMD[DType.float32, Self.lanes]

    @always_inline
    def joined(self, other: Self) -> Self:
        """Those of the rows of both, by Chan, Golub and LeVeque."""
        var count = self.count + other.count
        var away = other.mean - self.mean
        var share = Float32(other.count) / Float32(max(count, 1))
        var squares = self.squares + (other.squares + away * away * (Float32(self.count) * share))
        return Self(count, self.mean + away * share, squares)

    @always_inline
    def across_lines[lines: Int](self) -> Self:
        """Those of the rows of all threads of a warp that read the lines of the same columns."""
        var all = self
        comptime for step in range(log2_floor(lines)):
            comptime distance = UInt32(GROUP // lines << step)
            var other = Self(warp.shuffle_xor(all.count, distance), 0, 0)
            comptime for i in range(Self.lanes):
                other.mean[i] = warp.shuffle_xor(all.mean[i], distance)
                other.squares[i] = warp.shuffle_xor(all.squares[i], distance)
            all = all.joined(other)
        return all


@extensibility.register("tmb_column_moments")
struct ColumnMoments[each: Int, lines: Int, width: Int]:
    """`result` [pieces, 2, columns]: the moments of every `each * lines` rows of `x`, shared out as `share_of_piece` says.

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
        comptime assert target != "cpu", "tmb_column_moments runs on GPUs"
        comptime lines = Self.lines
        var columns = result.dim_size(2)
        var rows = 1
        comptime for i in range(x.rank - 1):
            rows *= x.dim_size(i)

        def describe[lanes: Int, alignment: Int = 1](at: Coord) {var result, var x, var rows, var columns}:
            comptime V = SIMD[DType.float32, lanes]
            var piece = Int(at[0].value())
            var mine = share_of_piece[lines, lanes](Int(at[1].value()), Int(at[2].value()))
            var column = mine.column
            var first = piece * Self.each * lines
            var end = min(first + Self.each * lines, rows)
            var row = first + mine.line
            var all = Moments[lanes](0, 0, 0)
            while row + (AT_ONCE - 1) * lines < end:
                var held = unsafe_stack_allocation[AT_ONCE, SIMD[x.dtype, lanes]]()
                comptime for i in range(AT_ONCE):
                    held[unsafe_offset=i] = vector[lanes, alignment, False](x, 0, row + i * lines, column)
                var sums = V(0)
                comptime for i in range(AT_ONCE):
                    sums += held[unsafe_offset=i].cast[DType.float32]()
                var mean = sums * (1.0 / AT_ONCE)
                var squares = V(0)
                comptime for i in range(AT_ONCE):
                    var away = held[unsafe_offset=i].cast[DType.float32]() - mean
                    squares += away * away
                all = all.joined(Moments[lanes](AT_ONCE, mean, squares))
                row += AT_ONCE * lines
            while row < end:
                var value = vector[lanes, alignment, False](x, 0, row, column).cast[DType.float32]()
                all = all.joined(Moments[lanes](1, value, 0))
                row += lines
            all = all.across_lines[lines]()
            if mine.line == 0:
                var into = result.unsafe_ptr().unsafe_offset(2 * piece * columns + column)
                into.unsafe_store[width=lanes](all.mean)
                into.unsafe_offset(columns).unsafe_store[width=lanes](all.squares)

        var groups = groups_of[lines, Self.width](columns)
        comptime size = GROUP * Self.width
        elementwise[simd_width=Self.width, target=target](
            describe, Coord(result.dim_size(0), groups, columns if lines == 1 else size), ctx
        )


comptime Pieces = SIMD[DType.int32, 4]
"""How many pieces a matrix has of which moments are known, its columns, rows of every piece but the last, and all rows."""


@always_inline
def my_column() -> Int:
    """The column that a thread adds up, with others of its block; it may be behind the last one."""
    return Int(block_idx.x) * COLUMNS + Int(thread_idx.x) % COLUMNS


@always_inline
def moments_of_block[threads: Int](x: Values[DType.float32], of: Pieces) -> Moments[1]:
    """The moments of `my_column`, for the threads of the first warp. Once a kernel.

    Pieces that are read together are joined as one, and these by the sums of values and of squares, in float64: no
    thread waits for another one's mean.
    """
    comptime lines = threads // COLUMNS
    comptime W = DType.float64
    var pieces, columns, each, rows = Int(of[0]), Int(of[1]), Int(of[2]), Int(of[3])
    var source = x.unsafe_offset(min(my_column(), columns - 1))
    var whole, rest = Float32(each), Float32(rows - (pieces - 1) * each)
    var line = SIMD[W, 2](0)
    for first in range(my_line(), pieces, AT_ONCE * lines):
        var means = unsafe_stack_allocation[AT_ONCE, Float32]()
        var squares = unsafe_stack_allocation[AT_ONCE, Float32]()
        comptime for i in range(AT_ONCE):
            var place = 2 * min(first + i * lines, pieces - 1) * columns
            means[unsafe_offset=i] = source[unsafe_offset=place]
            squares[unsafe_offset=i] = source[unsafe_offset = place + columns]
        var sizes = unsafe_stack_allocation[AT_ONCE, Float32]()
        var size, sums = Float32(0), Float32(0)
        comptime for i in range(AT_ONCE):
            var piece = first + i * lines
            sizes[unsafe_offset=i] = whole if piece < pieces - 1 else (rest if piece == pieces - 1 else Float32(0))
            size += sizes[unsafe_offset=i]
            if piece < pieces:
                sums += means[unsafe_offset=i] * sizes[unsafe_offset=i]
        var mean = sums / size
        var total = Float32(0)
        comptime for i in range(AT_ONCE):
            var away = means[unsafe_offset=i] - mean
            if first + i * lines < pieces:
                total += squares[unsafe_offset=i] + away * away * sizes[unsafe_offset=i]
        var sum_of_all = mean.cast[W]() * size.cast[W]()
        line[0] += sum_of_all
        line[1] += total.cast[W]() + sum_of_all * mean.cast[W]()
    var all = total_of_block[threads, n=2](line)
    var mean = all[0] / Float64(rows)
    var squares = all[1] - all[0] * mean
    if squares < 0:  # rounding; a NaN stays
        squares = 0
    return Moments[1](of[3], mean.cast[DType.float32](), squares.cast[DType.float32]())


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(threads)))
def join_pieces[threads: Int](result: Results[DType.float32], x: Values[DType.float32], of: Pieces):
    """The moments of `COLUMNS` columns a block."""
    var all = moments_of_block[threads](x, of)
    var column = my_column()
    if Int(thread_idx.x) < COLUMNS and column < Int(of[1]):
        result[unsafe_offset=column] = all.mean
        result[unsafe_offset=Int(of[1]) + column] = all.squares


@extensibility.register("tmb_piece_moments")
struct PieceMoments[each: Int, rows: Int, threads: Int]:
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
        ctx.enqueue_function[join_pieces[Self.threads]](
            result.unsafe_ptr(),
            x.unsafe_ptr().as_imm(),
            Pieces(Int32(x.dim_size(0)), Int32(columns), Int32(Self.each), Int32(Self.rows)),
            grid_dim=ceildiv(columns, COLUMNS),
            block_dim=Self.threads,
        )


@extensibility.register("tmb_column_products")
struct ColumnProducts[each: Int, lines: Int, width: Int, keeps: Bool]:
    """`result` [1, pieces, 2 * columns]: sums of every `each * lines` rows of `g`, and of `g * (x - mean)`.

    `g` and `x` are as `x` of `tmb_column_moments`, and of one shape; `mean` is [columns]. If it `keeps` `g`, which is
    computed as it is read, that is written to `kept`, of its shape; else `kept` has no elements.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[dtype=DType.float32, rank=3, ...],
        kept: OutputTensor,
        g: _FusedInputTensor[dtype=kept.dtype, rank=kept.rank, ...],
        x: _FusedInputTensor,
        mean: InputTensor[dtype=DType.float32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_column_products runs on GPUs"
        comptime assert g.rank == x.rank, "they have one shape"
        comptime lines = Self.lines
        var columns = mean.dim_size(0)
        var rows = 1
        comptime for i in range(x.rank - 1):
            rows *= x.dim_size(i)

        def add[
            lanes: Int, alignment: Int = 1
        ](at: Coord) {var result, var kept, var g, var x, var mean, var rows, var columns}:
            comptime V = SIMD[DType.float32, lanes]
            var piece = Int(at[1].value())
            var mine = share_of_piece[lines, lanes](Int(at[2].value()), Int(at[3].value()))
            var column = mine.column
            var row = piece * Self.each * lines + mine.line
            var end = min((piece + 1) * Self.each * lines, rows)
            var centre = mean.unsafe_ptr().unsafe_offset(column).unsafe_load[width=lanes]()
            var some_plain, some_along = V(0), V(0)
            var plain, along = V(0), V(0)
            var until = row + TOGETHER * lines
            while row + (PAIRS_AT_ONCE - 1) * lines < end:
                var grads = unsafe_stack_allocation[PAIRS_AT_ONCE, SIMD[g.dtype, lanes]]()
                var held = unsafe_stack_allocation[PAIRS_AT_ONCE, SIMD[x.dtype, lanes]]()
                comptime for i in range(PAIRS_AT_ONCE):
                    grads[unsafe_offset=i] = vector[lanes, alignment, False](g, 0, row + i * lines, column)
                    held[unsafe_offset=i] = vector[lanes, alignment, False](x, 0, row + i * lines, column)
                comptime if Self.keeps:
                    comptime for i in range(PAIRS_AT_ONCE):
                        var place = (row + i * lines) * columns + column
                        kept.unsafe_ptr().unsafe_offset(place).unsafe_store[width=lanes](grads[unsafe_offset=i])
                comptime for i in range(PAIRS_AT_ONCE):
                    var of = grads[unsafe_offset=i].cast[DType.float32]()
                    some_plain += of
                    some_along += of * (held[unsafe_offset=i].cast[DType.float32]() - centre)
                row += PAIRS_AT_ONCE * lines
                if row == until:
                    plain += some_plain
                    along += some_along
                    some_plain, some_along = V(0), V(0)
                    until = row + TOGETHER * lines
            while row < end:
                var grad = vector[lanes, alignment, False](g, 0, row, column)
                comptime if Self.keeps:
                    kept.unsafe_ptr().unsafe_offset(row * columns + column).unsafe_store[width=lanes](grad)
                var of = grad.cast[DType.float32]()
                some_plain += of
                some_along += of * (vector[lanes, alignment, False](x, 0, row, column).cast[DType.float32]() - centre)
                row += lines
            plain = across_lines[lines](plain + some_plain)
            along = across_lines[lines](along + some_along)
            if mine.line == 0:
                var into = result.unsafe_ptr().unsafe_offset(2 * piece * columns + column)
                into.unsafe_store[width=lanes](plain)
                into.unsafe_offset(columns).unsafe_store[width=lanes](along)

        var groups = groups_of[lines, Self.width](columns)
        comptime size = GROUP * Self.width
        elementwise[simd_width=Self.width, target=target](
            add, Coord(1, result.dim_size(1), groups, columns if lines == 1 else size), ctx
        )
