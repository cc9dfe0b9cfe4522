"""Sums over the rows of matrices in float32, for GPUs: MAX's read one element of a row at a time."""

import extensibility
from extensibility import OutputTensor, _FusedInputTensor
from max.algorithm.functional import elementwise
from max.gpu.host import DeviceContext
from std.bit import log2_floor
from std.memory import unsafe_stack_allocation
from std.utils.coord import Coord

comptime AT_ONCE = 8
"""Rows that a thread reads before it needs the first of them."""


@extensibility.register("tmb_column_sums")
struct ColumnSums[each: Int, width: Int, is_batched: Bool]:
    """`result` [outer, pieces, columns]: the sums of every `each` rows of `x`, by a thread for `width` columns.

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
        comptime assert x.rank == 3 or not Self.is_batched, "a batch of matrices has three dimensions"
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
            var column = Int(at[2].value())
            var row = piece * Self.each
            var end = min(row + Self.each, rows)
            var sums = V(0)
            while row + AT_ONCE <= end:
                var held = unsafe_stack_allocation[AT_ONCE, SIMD[x.dtype, lanes]]()
                comptime for i in range(AT_ONCE):
                    held[unsafe_offset=i] = vector[lanes, alignment, Self.is_batched](x, outer, row + i, column)
                var some = unsafe_stack_allocation[AT_ONCE, V]()
                comptime for i in range(AT_ONCE):
                    some[unsafe_offset=i] = held[unsafe_offset=i].cast[DType.float32]()
                comptime for level in range(log2_floor(AT_ONCE)):  # in pairs: fewer roundings follow each other
                    comptime for i in range(0, AT_ONCE, 2 << level):
                        some[unsafe_offset=i] += some[unsafe_offset=i + (1 << level)]
                sums += some[unsafe_offset=0]
                row += AT_ONCE
            while row < end:
                sums += vector[lanes, alignment, Self.is_batched](x, outer, row, column).cast[DType.float32]()
                row += 1
            var place = (outer * pieces + piece) * columns + column
            result.unsafe_ptr().unsafe_offset(place).unsafe_store[width=lanes](sums)

        elementwise[simd_width=Self.width, target=target](add, result.shape_coord(), ctx)


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
