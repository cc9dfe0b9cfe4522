"""Sums over the rows of matrices in float32, for GPUs: MAX's read one element of a row at a time."""

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
from std.memory import bitcast, unsafe_stack_allocation
from std.utils.coord import Coord
from std.utils.static_tuple import StaticTuple

from .row_threads import GROUP, Results, Values

comptime AT_ONCE = 8
"""Rows that a thread reads before it needs the first of them."""
comptime TOGETHER = 64
"""Rows whose sum is added to the others' as one: so few roundings follow each other."""
comptime COLUMNS = 8
"""Columns of a block that adds up pieces."""
comptime LINES_OF_WARP = GROUP // COLUMNS
"""Lines of a warp, of whose threads each has every so manieth piece of one column."""


@fieldwise_init
struct Share(TrivialRegisterPassable):
    """What a thread reads of a piece: every so manieth row from the `line`-th on, in some columns from `column` on."""

    var column: Int
    var line: Int


@always_inline
def share_of_piece[lines: Int, lanes: Int](group: Int, at: Int) -> Share:
    """The share of a thread of `elementwise`, whose index ends in `group` and `at`, of `lanes` columns.

    With several lines the last dimension has `lanes` elements for each of `GROUP` threads, which are neighbours then and
    read the lines side by side.
    """
    comptime if lines == 1:
        return Share(at, 0)
    else:
        comptime across = GROUP // lines
        var thread = at // lanes
        return Share((group * across + thread % across) * lanes, thread // across)


@always_inline
def groups_of[lines: Int, width: Int](columns: Int) -> Int:
    """The groups of threads that a row of a piece has."""
    return 1 if lines == 1 else columns // (GROUP // lines * width)


@always_inline
def across_lines[lines: Int, T: DType, lanes: Int](mine: SIMD[T, lanes]) -> SIMD[T, lanes]:
    """The sum of what the threads have that read the lines of the same columns."""
    var value = mine
    comptime for step in range(log2_floor(lines)):
        comptime distance = UInt32(GROUP // lines << step)
        var other = SIMD[T, lanes](0)
        comptime for i in range(lanes):
            comptime if T == DType.float64:
                other[i] = bitcast[T](warp.shuffle_xor(bitcast[DType.uint64](value[i]), distance))
            else:
                other[i] = warp.shuffle_xor(value[i], distance)
        value += other
    return value


@extensibility.register("tmb_column_sums")
struct ColumnSums[each: Int, lines: Int, width: Int, is_batched: Bool]:
    """`result` [outer, pieces, columns]: the sums of every `each * lines` rows of `x`, `width` columns a thread.

    As many threads as there are `lines` share a piece, if those of a warp divide the columns: else there is one line.
    `x` is [outer, rows, columns] if it is batched, and else of rank 2 to 5, its last dimension the columns, all others
    the rows of the only matrix. The last piece may have fewer rows. What is summed is computed as it is read, if it is
    elementwise, and in its own shape: behind a reshape it would be computed, and stored, before.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[dtype=DType.float32, rank=3, ...],
        x: _FusedInputTensor,
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_column_sums runs on GPUs"
        comptime assert x.rank == 3 or not Self.is_batched, "a batch of matrices has three dimensions"
        comptime lines = Self.lines
        var rows = x.dim_size(x.rank - 2)
        comptime if not Self.is_batched:
            comptime for i in range(x.rank - 2):
                rows *= x.dim_size(i)
        var pieces = result.dim_size(1)
        var columns = result.dim_size(2)

        def add[
            lanes: Int, alignment: Int = 1
        ](at: Coord) {var result, var x, var rows, var pieces, var columns}:
            comptime V = SIMD[DType.float32, lanes]
            var outer = Int(at[0].value())
            var piece = Int(at[1].value())
            var mine = share_of_piece[lines, lanes](Int(at[2].value()), Int(at[3].value()))
            var column = mine.column
            var row = piece * Self.each * lines + mine.line
            var end = min((piece + 1) * Self.each * lines, rows)
            var sums = V(0)
            var total = V(0)
            var until = row + TOGETHER * lines
            while row + (AT_ONCE - 1) * lines < end:
                var held = unsafe_stack_allocation[AT_ONCE, SIMD[x.dtype, lanes]]()
                comptime for i in range(AT_ONCE):
                    held[unsafe_offset=i] = vector[lanes, alignment, Self.is_batched](x, outer, row + i * lines, column)
                var some = unsafe_stack_allocation[AT_ONCE, V]()
                comptime for i in range(AT_ONCE):
                    some[unsafe_offset=i] = held[unsafe_offset=i].cast[DType.float32]()
                comptime for level in range(log2_floor(AT_ONCE)):  # in pairs: fewer roundings follow each other
                    comptime for i in range(0, AT_ONCE, 2 << level):
                        some[unsafe_offset=i] += some[unsafe_offset=i + (1 << level)]
                sums += some[unsafe_offset=0]
                row += AT_ONCE * lines
                if row == until:
                    total += sums
                    sums = V(0)
                    until = row + TOGETHER * lines
            while row < end:
                sums += vector[lanes, alignment, Self.is_batched](x, outer, row, column).cast[DType.float32]()
                row += lines
            total = across_lines[lines](total + sums)
            if mine.line == 0:
                var place = (outer * pieces + piece) * columns + column
                result.unsafe_ptr().unsafe_offset(place).unsafe_store[width=lanes](total)

        var groups = groups_of[lines, Self.width](columns)
        comptime size = GROUP * Self.width
        elementwise[simd_width=Self.width, target=target](
            add, Coord(result.dim_size(0), pieces, groups, columns if lines == 1 else size), ctx
        )


@always_inline
def my_line() -> Int:
    """The line of a thread of a block that adds up pieces."""
    return Int(thread_idx.x) // COLUMNS


@always_inline
def total_of_line[
    n: Int, threads: Int
](x: Values[DType.float32], pieces: Int, stride: Int, apart: Int) -> SIMD[DType.float32, n]:
    """The sums of `n` numbers of each piece of `my_line`: `x` begins with the first piece's, others are `stride` away.

    The numbers of a piece are `apart` from each other.
    """
    comptime lines = threads // COLUMNS
    var sums = SIMD[DType.float32, n](0)
    for first in range(my_line(), pieces, AT_ONCE * lines):
        var some = unsafe_stack_allocation[AT_ONCE, SIMD[DType.float32, n]]()
        comptime for i in range(AT_ONCE):
            var place = min(first + i * lines, pieces - 1) * stride
            var held = SIMD[DType.float32, n](0)
            comptime for k in range(n):
                held[k] = x[unsafe_offset = place + k * apart]
            some[unsafe_offset=i] = held
        comptime for i in range(AT_ONCE):
            if first + i * lines >= pieces:
                some[unsafe_offset=i] = 0
        comptime for level in range(log2_floor(AT_ONCE)):
            comptime for i in range(0, AT_ONCE, 2 << level):
                some[unsafe_offset=i] += some[unsafe_offset=i + (1 << level)]
        sums += some[unsafe_offset=0]
    return sums


@always_inline
def total_of_block[threads: Int, T: DType, n: Int](line: SIMD[T, n]) -> SIMD[T, n]:
    """The sums of what the lines of a column have, for the threads of the first warp. Once a kernel."""
    comptime warps = threads // GROUP
    var shared = unsafe_stack_allocation[warps * COLUMNS, SIMD[T, n], address_space=AddressSpace.SHARED]()
    var thread = Int(thread_idx.x)
    var value = across_lines[LINES_OF_WARP](line)
    if thread % GROUP < COLUMNS:
        shared[unsafe_offset = thread // GROUP * COLUMNS + thread % GROUP] = value
    barrier()
    var total = SIMD[T, n](0)
    if thread < GROUP:
        comptime for i in range(warps // LINES_OF_WARP):
            total += shared[unsafe_offset = thread + i * GROUP]
        total = across_lines[LINES_OF_WARP](total)
    return total


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(threads)))
def add_pieces[
    threads: Int
](result: Results[DType.float32], x: Values[DType.float32], pieces_: Int32, columns_: Int32):
    """The sums of `COLUMNS` columns a block, the blocks of a matrix one after the other."""
    var pieces, columns = Int(pieces_), Int(columns_)
    var thread = Int(thread_idx.x)
    var blocks = ceildiv(columns, COLUMNS)
    var matrix = Int(block_idx.x) // blocks
    var column = Int(block_idx.x) % blocks * COLUMNS + thread % COLUMNS
    var source = x.unsafe_offset(matrix * pieces * columns + min(column, columns - 1))
    var total = total_of_block[threads, n=1](total_of_line[1, threads](source, pieces, columns, 0))
    if thread < COLUMNS and column < columns:
        result[unsafe_offset = matrix * columns + column] = total[0]


@extensibility.register("tmb_piece_sums")
struct PieceSums[threads: Int]:
    """`result` [outer, 1, columns]: the sums over the pieces of `x` [outer, pieces, columns]."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[dtype=DType.float32, rank=3, ...],
        x: InputTensor[dtype=DType.float32, rank=3, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_piece_sums runs on GPUs"
        var outer, columns = x.dim_size(0), x.dim_size(2)
        if outer == 0 or columns == 0:
            return
        ctx.enqueue_function[add_pieces[Self.threads]](
            result.unsafe_ptr(),
            x.unsafe_ptr().as_imm(),
            Int32(x.dim_size(1)),
            Int32(columns),
            grid_dim=ceildiv(columns, COLUMNS) * outer,
            block_dim=Self.threads,
        )


@always_inline
def vector[
    lanes: Int, alignment: Int, is_batched: Bool
](x: _FusedInputTensor, outer: Int, row: Int, column: Int) -> SIMD[x.dtype, lanes]:
    """Elements of a row of matrix `outer`, or of the only one."""
    comptime if is_batched:
        return x._lambda_load[width=lanes, element_alignment=alignment](Coord(outer, row, column))
    elif x.rank == 2:
        return x._lambda_load[width=lanes, element_alignment=alignment](Coord(row, column))
    elif x.rank == 3:
        var a = x.dim_size(1)
        return x._lambda_load[width=lanes, element_alignment=alignment](Coord(row // a, row % a, column))
    elif x.rank == 4:
        var a = x.dim_size(1)
        var b = x.dim_size(2)
        var line = row // b
        return x._lambda_load[width=lanes, element_alignment=alignment](Coord(line // a, line % a, row % b, column))
    else:
        comptime assert x.rank == 5, "tmb_column_sums takes up to 5 dimensions"
        var a = x.dim_size(1)
        var b = x.dim_size(2)
        var c = x.dim_size(3)
        var line = row // c
        var plane = line // b
        return x._lambda_load[width=lanes, element_alignment=alignment](
            Coord(plane // a, plane % a, line % b, row % c, column)
        )
