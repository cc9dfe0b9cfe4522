"""Sums over the rows of matrices in float32, for GPUs: MAX's read one element of a row at a time."""

import extensibility
from extensibility import OutputTensor, _FusedInputTensor
from max.algorithm.functional import elementwise
from max.gpu.host import DeviceContext
from std.memory import unsafe_stack_allocation
from std.utils.coord import Coord

comptime AT_ONCE = 8
"""Rows that a thread reads before it needs the first of them."""


@extensibility.register("tmb_column_sums")
struct ColumnSums[each: Int, width: Int]:
    """`result` [outer, pieces, columns]: the sums of every `each` rows of `x` [outer, rows, columns], by a thread for
    `width` columns. The last piece may have fewer rows. What is summed is computed as it is read, if it is elementwise.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[dtype=DType.float32, rank=3, ...],
        x: _FusedInputTensor[rank=3, ...],
        ctx: DeviceContext,
    ) raises:
        var rows = x.dim_size(1)
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
                    held[unsafe_offset=i] = x._lambda_load[width=lanes, element_alignment=alignment](
                        Coord(outer, row + i, column)
                    )
                comptime for i in range(AT_ONCE):
                    sums += held[unsafe_offset=i].cast[DType.float32]()
                row += AT_ONCE
            while row < end:
                var last = x._lambda_load[width=lanes, element_alignment=alignment](Coord(outer, row, column))
                sums += last.cast[DType.float32]()
                row += 1
            var place = (outer * pieces + piece) * columns + column
            result.unsafe_ptr().unsafe_offset(place).unsafe_store[width=lanes](sums)

        elementwise[simd_width=Self.width, target=target](add, result.shape_coord(), ctx)
