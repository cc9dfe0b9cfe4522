"""Sums of the rows of a matrix on a GPU, in float32."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.host import DeviceContext
from std.math import ceildiv
from std.memory import unsafe_stack_allocation
from std.sys import align_of
from std.utils.static_tuple import StaticTuple

from .row_threads import AT_ONCE, Partial, Results, Sum, Values, across


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(threads)))
def sum_rows[
    T: DType, R: DType, width: Int, lanes: Int, threads: Int
](result: Results[R], x: Values[T], rows: Int32, columns_: Int32):
    """`threads / lanes` rows a block, a vector of `width` at a time."""
    comptime aligned = align_of[SIMD[T, width]]()
    comptime step = lanes * width
    var columns = Int(columns_)
    var row = Int(block_idx.x) * (threads // lanes) + Int(thread_idx.x) // lanes
    var start = min(row, Int(rows) - 1) * columns
    var sums = SIMD[DType.float32, width](0)
    for group in range(Int(thread_idx.x) % lanes * width, columns, AT_ONCE * step):
        var held = unsafe_stack_allocation[AT_ONCE, SIMD[T, width]]()
        comptime for i in range(AT_ONCE):
            held[unsafe_offset=i] = x.unsafe_load[width=width, alignment=aligned](
                start + min(group + i * step, columns - width)
            )
        comptime for i in range(AT_ONCE):
            if group + i * step < columns:
                sums += held[unsafe_offset=i].cast[DType.float32]()
    var total = across[Sum, lanes, threads](Partial(sums.reduce_add(), 0, 0, 0))[0]
    if row < Int(rows) and Int(thread_idx.x) % lanes == 0:
        result[unsafe_offset=row] = total.cast[R]()


@extensibility.register("tmb_row_sum")
struct RowSum[width: Int, lanes: Int]:
    """The sums of the rows of `x` [rows, columns], by `lanes` threads a row."""

    @staticmethod
    def execute[
        target: StaticString
    ](result: OutputTensor[rank=1, ...], x: InputTensor[rank=2, ...], ctx: DeviceContext,) raises:
        comptime assert target != "cpu", "tmb_row_sum runs on GPUs"
        comptime threads = max(Self.lanes, 128)
        var rows = x.dim_size(0)
        var columns = x.dim_size(1)
        if rows == 0:
            return
        var source = x.unsafe_ptr().as_imm()
        var blocks = ceildiv(rows, threads // Self.lanes)
        if columns % Self.width == 0 and Int(source) % align_of[SIMD[x.dtype, Self.width]]() == 0:
            ctx.enqueue_function[sum_rows[x.dtype, result.dtype, Self.width, Self.lanes, threads]](
                result.unsafe_ptr(), source, Int32(rows), Int32(columns), grid_dim=blocks, block_dim=threads
            )
        else:
            comptime if Self.width > 1:
                ctx.enqueue_function[sum_rows[x.dtype, result.dtype, 1, Self.lanes, threads]](
                    result.unsafe_ptr(), source, Int32(rows), Int32(columns), grid_dim=blocks, block_dim=threads
                )
