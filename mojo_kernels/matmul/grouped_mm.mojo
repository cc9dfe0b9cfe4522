"""Products of matrices that come in groups: rows with a matrix each, or sums over pieces of the inner dimension.

How long the groups are is known only at run time. Results are in the type in which products are summed. On a CPU,
groups of few rows and transposed matrices are multiplied here, where they are; the rest is left to `cpu/gemm.mojo`.
"""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.algorithm import sync_parallelize
from max.gpu.host import DeviceContext
from std.math import ceildiv
from std.memory import bitcast, stack_allocation
from std.sys.info import CompilationTarget, simd_width_of
from std.utils.coord import Coord

from ..cpu.gemm import TASK, AsTheyAre, Matrices, has_pairs, multiply_block, plus_pairs, plus_product, sum_type

comptime WIDE = 64
"""Columns of a block."""
comptime HIGH = 48
"""Rows of a block of dot products, which read its part of both matrices out of the cache."""
comptime DEEP = 1024
"""How much of the inner dimension such a block takes at a time."""
comptime FEW = 12
"""Up to so many rows, copying a matrix into panels does not pay."""
comptime TASKS = 128
"""The largest number of tasks."""
comptime LATENCY = 6
"""As many rows of a product take about as long as reading the matrix."""


@always_inline
def place(end: Scalar, size: Int) -> Int:
    """Where a slice that is asked to end at `end` does so: negative numbers count from the end."""
    var at = Int(end)
    return max(at + size, 0) if at < 0 else min(at, size)


@extensibility.register("tmb_group_of_rows")
struct GroupOfRows:
    """The group that every row belongs to, or -1. Groups end at `ends` and start where the one before ends.

    Where `ends` do not ascend, groups are empty or overlap: the last one has the row.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        groups: OutputTensor[dtype=DType.int64, rank=1, ...],
        ends: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var rows = groups.dim_size(0)

        def group_of[lanes: Int](at: Coord[...]) {var ends, var rows} -> SIMD[DType.int64, lanes]:
            var row = Int(at[0].value())
            for group in range(ends.dim_size(0) - 1, -1, -1):
                if row < place(ends[group], rows):
                    if group == 0 or row >= place(ends[group - 1], rows):
                        return SIMD[DType.int64, lanes](group)
            return SIMD[DType.int64, lanes](-1)

        foreach[target=target, simd_width=1](group_of, groups, ctx)


# -- tiles -------------------------------------------------------------------------------------------------------------
@fieldwise_init
struct Matrix[T: DType](TrivialRegisterPassable):
    """Where a row-major matrix, or a part of one, begins in memory, and how far apart its rows are."""

    var start: Pointer[Scalar[Self.T], MutUntrackedOrigin]
    var step: Int

    @always_inline
    def part(self, row: Int, column: Int) -> Self:
        return Self(self.start.unsafe_offset(row * self.step + column), self.step)

    @always_inline
    def load[width: Int](self, row: Int, column: Int) -> SIMD[Self.T, width]:
        return self.start.unsafe_load[width=width](row * self.step + column)

    @always_inline
    def store(self, row: Int, column: Int, values: SIMD[Self.T, _]):
        self.start.unsafe_store(row * self.step + column, values)


@always_inline
def untracked[T: DType](start: Pointer[Scalar[T], _]) -> Pointer[Scalar[T], MutUntrackedOrigin]:
    """The same pointer, for use while its tensor is there."""
    return start.unsafe_mut_cast[True]().unsafe_origin_cast[MutUntrackedOrigin]()


@no_inline
def add_dots[
    T: DType, W: DType, //, rows: Int, columns: Int
](result: Matrix[W], a: Matrix[T], b: Matrix[T], depth: Int):
    """Add the dot products of rows of `a` and rows of `b`."""
    comptime lanes = simd_width_of[W]()
    comptime step = 2 * lanes if has_pairs[T]() else lanes
    var totals = stack_allocation[rows * columns, SIMD[W, lanes]]()
    comptime for i in range(rows * columns):
        totals[unsafe_offset=i] = SIMD[W, lanes](0)
    var whole = depth // step * step
    for k in range(0, whole, step):
        comptime for i in range(rows):
            comptime for j in range(columns):
                comptime at = i * columns + j
                comptime if has_pairs[T]():
                    var x = a.load[2 * lanes](i, k)
                    totals[unsafe_offset=at] = plus_pairs(totals[unsafe_offset=at], x, b.load[2 * lanes](j, k))
                else:
                    var x = a.load[lanes](i, k).cast[W]()
                    totals[unsafe_offset=at] = plus_product(totals[unsafe_offset=at], x, b.load[lanes](j, k).cast[W]())
    comptime for i in range(rows):
        comptime for j in range(columns):
            var total = result.load[1](i, j) + totals[unsafe_offset=i * columns + j].reduce_add()
            for k in range(whole, depth):
                total += a.load[1](i, k).cast[W]() * b.load[1](j, k).cast[W]()
            result.store(i, j, total)


@no_inline
def add_rows[
    T: DType, W: DType, //, rows: Int, columns: Int, lanes: Int
](result: Matrix[W], a: Matrix[T], b: Matrix[T], depth: Int):
    """Add rows of `b` times elements of `a`, for `columns` times `lanes` columns."""
    comptime is_paired = has_pairs[T]() and lanes > 1
    var totals = stack_allocation[rows * columns, SIMD[W, lanes]]()
    comptime for i in range(rows):
        comptime for j in range(columns):
            totals[unsafe_offset=i * columns + j] = result.load[lanes](i, j * lanes)
    var paired = depth // 2 * 2 if is_paired else 0
    comptime if is_paired:
        for k in range(0, paired, 2):
            comptime for i in range(rows):
                var pair = bitcast[DType.uint32, 1](a.load[2](i, k))
                var x = bitcast[T, 2 * lanes](SIMD[DType.uint32, lanes](pair))
                comptime for j in range(columns):
                    var y = b.load[lanes](k, j * lanes).interleave(b.load[lanes](k + 1, j * lanes))
                    comptime at = i * columns + j
                    totals[unsafe_offset=at] = plus_pairs(totals[unsafe_offset=at], x, y)
    for k in range(paired, depth):
        comptime for i in range(rows):
            var x = SIMD[W, lanes](a.load[1](i, k).cast[W]())
            comptime for j in range(columns):
                comptime at = i * columns + j
                var y = b.load[lanes](k, j * lanes).cast[W]()
                totals[unsafe_offset=at] = plus_product(totals[unsafe_offset=at], x, y)
    comptime for i in range(rows):
        comptime for j in range(columns):
            result.store(i, j * lanes, totals[unsafe_offset=i * columns + j])


@always_inline
def add_strip[
    T: DType, W: DType, //, transposed: Bool, columns: Int, lanes: Int
](result: Matrix[W], a: Matrix[T], b: Matrix[T], rows: Int, depth: Int):
    """All rows of a block, in tiles of as many as the processor has registers for, for some columns."""
    comptime many_registers = CompilationTarget.has_avx512f() or CompilationTarget.has_neon()
    var row = 0
    comptime for height in [6, 4, 3, 2, 1]:
        comptime if height <= 2 or (height == 3) != many_registers:
            while row + height <= rows:
                comptime if transposed:
                    add_dots[height, columns](result.part(row, 0), a.part(row, 0), b, depth)
                else:
                    add_rows[height, columns, lanes](result.part(row, 0), a.part(row, 0), b, depth)
                row += height


@no_inline
def multiply_in_place[
    T: DType, W: DType, //, transposed: Bool
](result: Matrix[W], a: Matrix[T], b: Matrix[T], rows: Int, depth: Int, first: Int, last: Int):
    """Columns [first, last) of `a` times `b`, which is `[columns, depth]` if transposed, without a copy of either."""
    comptime lanes = simd_width_of[W]()
    for row in range(rows):
        for column in range(first, last):
            result.store(row, column, Scalar[W](0))
    for block in range(first, last, WIDE):
        var end = min(block + WIDE, last)
        comptime if transposed:
            for row in range(0, rows, HIGH):
                for k in range(0, depth, DEEP):
                    var column = block
                    comptime for width in [4, 1]:
                        while column + width <= end:
                            add_strip[True, width, 1](
                                result.part(row, column),
                                a.part(row, k),
                                b.part(column, k),
                                min(HIGH, rows - row),
                                min(DEEP, depth - k),
                            )
                            column += width
        else:
            var column = block
            comptime for width in [4 * lanes, lanes, 1]:
                while column + width <= end:
                    add_strip[False, ceildiv(width, lanes), min(width, lanes)](
                        result.part(0, column), a, b.part(0, column), rows, depth
                    )
                    column += width


# -- rows with a matrix each -------------------------------------------------------------------------------------------
@extensibility.register("tmb_grouped_rows")
struct GroupedRows[transposed: Bool]:
    """Rows of `a` `[rows, depth]`, each times the matrix of its group; zeros for a row without one.

    The matrices are `b`: `[groups, depth, columns]`, or `[groups, columns, depth]` if transposed.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=2, ...],
        a: InputTensor[rank=2, ...],
        b: InputTensor[dtype=a.dtype, rank=3, ...],
        groups: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime W = sum_type[a.dtype]()
        comptime assert result.dtype == W, "the result has the type of sums"
        var rows = result.dim_size(0)
        var columns = result.dim_size(1)
        var depth = a.dim_size(1)

        comptime if target == "cpu":
            multiply_runs[Self.transposed](
                result.unsafe_ptr(), a.unsafe_ptr(), b.unsafe_ptr(), groups.unsafe_ptr(), rows, columns, depth
            )
        else:

            def element[lanes: Int](at: Coord[...]) {var a, var b, var groups, var depth} -> SIMD[result.dtype, lanes]:
                var row = Int(at[0].value())
                var column = Int(at[1].value())
                var group = Int(groups[row])
                var total = Scalar[W](0)
                if group >= 0:
                    for k in range(depth):
                        comptime if Self.transposed:
                            total += a[row, k].cast[W]() * b[group, column, k].cast[W]()
                        else:
                            total += a[row, k].cast[W]() * b[group, k, column].cast[W]()
                return SIMD[result.dtype, lanes](total.cast[result.dtype]())

            foreach[target=target, simd_width=1](element, result, ctx)


@no_inline
def multiply_runs[
    T: DType, W: DType, of_result: Origin[mut=True], of_a: Origin, of_b: Origin, of_g: Origin, //, transposed: Bool
](
    result: Pointer[Scalar[W], of_result],
    a: Pointer[Scalar[T], of_a],
    b: Pointer[Scalar[T], of_b],
    groups: Pointer[Int64, of_g],
    rows: Int,
    columns: Int,
    depth: Int,
):
    """Runs of rows that share a matrix, in blocks of columns.

    This is no part of the kernel, which is compiled anew for every shape.
    """
    if rows == 0 or columns == 0:
        return
    var starts = List[Int]()  # of the runs, and where the last one ends
    for row in range(rows):
        if row == 0 or groups[unsafe_offset=row] != groups[unsafe_offset=row - 1]:
            starts.append(row)
    var runs = len(starts)
    starts.append(rows)
    var bounds = starts.unsafe_ptr()
    var blocks = ceildiv(columns, WIDE)
    var work = (rows + LATENCY * runs) * blocks
    var tasks = min(max(work * WIDE * depth // TASK, 1), TASKS)
    var b_step = depth if transposed else columns
    var matrices = Matrices[T, False](b, columns * depth, columns)

    def multiply(task: Int) {
        var result,
        var a,
        var b,
        var groups,
        var bounds,
        var runs,
        var blocks,
        var work,
        var tasks,
        var matrices,
        var b_step,
        var columns,
        var depth,
    }:
        # A task has the blocks that begin in its share of the work.
        var low = work * task // tasks
        var high = work * (task + 1) // tasks
        var before = 0
        for run in range(runs):
            var start = bounds[unsafe_offset=run]
            var end = bounds[unsafe_offset=run + 1]
            var each = end - start + LATENCY
            var first = max(ceildiv(low - before, each), 0) * WIDE
            var last = min(min(ceildiv(high - before, each), blocks) * WIDE, columns)
            before += each * blocks
            if first >= last:
                continue
            var group = Int(groups[unsafe_offset=start])
            var to = result.unsafe_offset(start * columns)
            var left = a.unsafe_offset(start * depth)
            if transposed or group < 0 or end - start <= FEW:
                multiply_in_place[transposed](
                    Matrix(untracked(to), columns),
                    Matrix(untracked(left), depth),
                    Matrix(untracked(b.unsafe_offset(max(group, 0) * columns * depth)), b_step),
                    end - start,
                    depth if group >= 0 else 0,
                    first,
                    last,
                )
            else:
                multiply_block[False](
                    to, columns, left, depth, depth, matrices, AsTheyAre(), group, 0, end - start, first, last
                )

    sync_parallelize(multiply, tasks)
    _ = len(starts)


# -- sums over pieces --------------------------------------------------------------------------------------------------
@extensibility.register("tmb_grouped_sums")
struct GroupedSums:
    """The product of `a` `[rows, depth]` and `b` `[depth, columns]` over each group's piece of the inner dimension.

    Groups are as in `tmb_group_of_rows`.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=3, ...],
        a: InputTensor[rank=2, ...],
        b: InputTensor[dtype=a.dtype, rank=2, ...],
        ends: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime W = sum_type[a.dtype]()
        comptime assert result.dtype == W, "the result has the type of sums"

        comptime if target == "cpu":
            multiply_pieces(
                result.unsafe_ptr(),
                a.unsafe_ptr(),
                b.unsafe_ptr(),
                ends.unsafe_ptr(),
                result.dim_size(0),
                result.dim_size(1),
                result.dim_size(2),
                a.dim_size(1),
            )
        else:

            def element[lanes: Int](at: Coord[...]) {var a, var b, var ends} -> SIMD[result.dtype, lanes]:
                var group = Int(at[0].value())
                var row = Int(at[1].value())
                var column = Int(at[2].value())
                var start = place(ends[group - 1], a.dim_size(1)) if group > 0 else 0
                var total = Scalar[W](0)
                for k in range(start, place(ends[group], a.dim_size(1))):
                    total += a[row, k].cast[W]() * b[k, column].cast[W]()
                return SIMD[result.dtype, lanes](total.cast[result.dtype]())

            foreach[target=target, simd_width=1](element, result, ctx)


@no_inline
def multiply_pieces[
    T: DType, W: DType, of_result: Origin[mut=True], of_a: Origin, of_b: Origin, of_ends: Origin, //
](
    result: Pointer[Scalar[W], of_result],
    a: Pointer[Scalar[T], of_a],
    b: Pointer[Scalar[T], of_b],
    ends: Pointer[Int64, of_ends],
    groups: Int,
    rows: Int,
    columns: Int,
    depth: Int,
):
    """The products of all groups, in blocks of columns."""
    var across = ceildiv(columns, WIDE)
    var blocks = groups * across
    if blocks * rows == 0:
        return
    var tasks = min(max(rows * columns * (depth + groups) // TASK, 1), min(blocks, TASKS))

    var q = Matrices[T, False](b, columns, columns)

    def multiply(task: Int) {
        var result, var a, var q, var ends, var blocks, var across, var tasks, var rows, var columns, var depth
    }:
        for block in range(blocks * task // tasks, blocks * (task + 1) // tasks):
            var group = block // across
            var first = block % across * WIDE
            var start = place(ends[unsafe_offset=group - 1], depth) if group > 0 else 0
            multiply_block[False](
                result.unsafe_offset(group * rows * columns),
                columns,
                a.unsafe_offset(start),
                depth,
                max(place(ends[unsafe_offset=group], depth) - start, 0),
                q,
                AsTheyAre(),
                start,
                0,
                rows,
                first,
                min(first + WIDE, columns),
            )

    sync_parallelize(multiply, tasks)
