"""Means and variances of the columns of matrices, and what their gradients sum up, by kernels that read once, for GPUs.

The statistics of batch norms whose images lie channels last. Rows are read as by `tmb_column_sums`.
"""

import extensibility
from extensibility import InputTensor, OutputTensor, _FusedInputTensor
from max.algorithm.functional import elementwise
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.host import DeviceContext
from max.gpu.memory import AddressSpace
from max.gpu.primitives import warp
from max.gpu.sync import barrier
from std.bit import log2_floor
from std.math import ceildiv
from std.memory import unsafe_stack_allocation
from std.utils.coord import Coord
from std.utils.static_tuple import StaticTuple

from .column_sums import COLUMNS, THREADS, TOGETHER, across_lines, groups_of, share_of_piece, vector
from .rows import GROUP, Results, Values

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
        var share = Float32(others) / Float32(max(size + others, 1))
        return Self(self.mean + away * share, self.squares + (other.squares + away * away * (Float32(size) * share)))

    @always_inline
    def exchanged(self, distance: Int) -> Self:
        """Those of the thread whose number in the warp differs in the bit `distance`."""
        var other = Self(0, 0)
        comptime for i in range(Self.lanes):
            other.mean[i] = warp.shuffle_xor(self.mean[i], UInt32(distance))
            other.squares[i] = warp.shuffle_xor(self.squares[i], UInt32(distance))
        return other


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
            var count = 0
            var all = Moments[lanes](0, 0)
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
                all = all.joined(count, Moments[lanes](mean, squares), AT_ONCE)
                count += AT_ONCE
                row += AT_ONCE * lines
            while row < end:
                var value = vector[lanes, alignment, False](x, 0, row, column).cast[DType.float32]()
                all = all.joined(count, Moments[lanes](value, 0), 1)
                count += 1
                row += lines
            comptime for step in range(log2_floor(lines)):
                comptime distance = GROUP // lines << step
                var others = Int(warp.shuffle_xor(Int32(count), UInt32(distance)))
                all = all.joined(count, all.exchanged(distance), others)
                count += others
            if mine.line == 0:
                var into = result.unsafe_ptr().unsafe_offset(2 * piece * columns + column)
                into.unsafe_store[width=lanes](all.mean)
                into.unsafe_offset(columns).unsafe_store[width=lanes](all.squares)

        var groups = groups_of[lines, Self.width](columns)
        comptime size = GROUP * Self.width
        elementwise[simd_width=Self.width, target=target](
            describe, Coord(result.dim_size(0), groups, columns if lines == 1 else size), ctx
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


comptime Pieces = SIMD[DType.int32, 4]
"""How many pieces a matrix has of which moments are known, its columns, rows of every piece but the last, and all rows."""


@always_inline
def my_column() -> Int:
    """The column that a thread adds up, with others of its block; it may be behind the last one."""
    return Int(block_idx.x) * COLUMNS + Int(thread_idx.x) % COLUMNS


@always_inline
def joined_pieces(x: Values[DType.float32], of: Pieces) -> Moments[1]:
    """The moments of `my_column`, for each of its threads."""
    comptime lines = THREADS // COLUMNS
    var pieces, columns, each, rows = Int(of[0]), Int(of[1]), Int(of[2]), Int(of[3])
    var line = Int(thread_idx.x) // COLUMNS
    var source = x.unsafe_offset(min(my_column(), columns - 1))
    var sums = Float32(0)
    for piece in range(line, pieces, lines):
        sums += source[unsafe_offset=2 * piece * columns] * Float32(min(each, rows - piece * each))
    var mean = summed(sums) / Float32(rows)
    var squares = Float32(0)
    for piece in range(line, pieces, lines):
        var away = source[unsafe_offset=2 * piece * columns] - mean
        squares += source[unsafe_offset = (2 * piece + 1) * columns] + away * away * Float32(min(each, rows - piece * each))
    return Moments[1](mean, summed(squares))


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def join_pieces(result: Results[DType.float32], x: Values[DType.float32], of: Pieces):
    """The moments of `COLUMNS` columns a block."""
    var all = joined_pieces(x, of)
    var column = my_column()
    if Int(thread_idx.x) < COLUMNS and column < Int(of[1]):
        result[unsafe_offset=column] = all.mean[0]
        result[unsafe_offset=Int(of[1]) + column] = all.squares[0]


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
            Pieces(Int32(x.dim_size(0)), Int32(columns), Int32(Self.each), Int32(Self.rows)),
            grid_dim=ceildiv(columns, COLUMNS),
            block_dim=THREADS,
        )


@extensibility.register("tmb_column_products")
struct ColumnProducts[each: Int, lines: Int, width: Int]:
    """`result` [1, pieces, 2 * columns]: sums of every `each * lines` rows of `g`, and of `g * (x - mean)`.

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
        comptime assert target != "cpu", "tmb_column_products runs on GPUs"
        comptime assert g.rank == x.rank, "they have one shape"
        comptime lines = Self.lines
        var columns = mean.dim_size(0)
        var rows = 1
        comptime for i in range(x.rank - 1):
            rows *= x.dim_size(i)

        def add[
            lanes: Int, alignment: Int = 1
        ](at: Coord) {var result, var g, var x, var mean, var rows, var columns}:
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
                var of = vector[lanes, alignment, False](g, 0, row, column).cast[DType.float32]()
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
