"""Transposes of many matrices on a GPU, at the speed of a copy.

Bytes of a transposed tensor that lie together are apart in its source. Each block takes one tile through shared memory,
so that both sides are read and written in whole 128-byte lines, 16 bytes a thread.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.host import DeviceContext
from max.gpu.memory import AddressSpace
from max.gpu.sync import barrier
from std.math import ceildiv
from std.memory import unsafe_stack_allocation
from std.sys import size_of
from std.utils.static_tuple import StaticTuple

comptime THREADS = 256


def bits_of(bytes: Int) -> DType:
    """The unsigned integer of that width, in which elements are moved."""
    if bytes == 1:
        return DType.uint8
    if bytes == 2:
        return DType.uint16
    return DType.uint32 if bytes == 4 else DType.uint64


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def transpose_tile[
    T: DType, width: Int
](
    result: MutPointer[Scalar[T], MutAnyOrigin],
    x: ImmPointer[Scalar[T], ImmutAnyOrigin],
    rows_: Int32,
    columns_: Int32,
    are_rows_aligned: Int32,
    are_columns_aligned: Int32,
):
    """One tile of `x` [batch, rows, columns] to `result` [batch, columns, rows]; `width` elements are 16 bytes.

    In shared memory the vectors of a row are permuted, by a number that changes every `width` rows: the elements of
    `width` rows and 4 columns, which a warp collects for 8 vectors of the result each, are then in distinct banks.
    """
    comptime tall = 8 * width
    comptime wide = max(8 * width, 64) if width > 8 else max(64, 16 * width)
    comptime vectors = wide // width
    comptime loads = tall * vectors // THREADS
    var rows = Int(rows_)
    var columns = Int(columns_)
    var tiles_across = ceildiv(columns, wide)
    var tiles_down = ceildiv(rows, tall)
    var at = Int(block_idx.x)
    var across = at % tiles_across
    var down = at // tiles_across % tiles_down
    var batch = at // (tiles_across * tiles_down)
    var source = x.unsafe_offset(batch * rows * columns)
    var target = result.unsafe_offset(batch * rows * columns)
    var first_row = down * tall
    var first_column = across * wide
    var thread = Int(thread_idx.x)
    var tile = unsafe_stack_allocation[tall * wide, Scalar[T], address_space=AddressSpace.SHARED, alignment=16]()

    if are_rows_aligned != 0:
        var held = unsafe_stack_allocation[loads, SIMD[T, width]]()
        comptime for i in range(loads):
            var row = (thread + i * THREADS) // vectors
            var column = first_column + (thread + i * THREADS) % vectors * width
            if first_row + row < rows and column < columns:
                held[unsafe_offset=i] = source.unsafe_load[width=width, alignment=16](
                    (first_row + row) * columns + column
                )
        comptime for i in range(loads):
            var row = (thread + i * THREADS) // vectors
            var place = ((thread + i * THREADS) % vectors) ^ (row // width)
            tile.unsafe_store[alignment=16](row * wide + place * width, held[unsafe_offset=i])
    else:
        for i in range(thread, tall * wide, THREADS):
            var row = i // wide
            var column = i % wide
            if first_row + row < rows and first_column + column < columns:
                var place = (column // width) ^ (row // width)
                tile[unsafe_offset=row * wide + place * width + column % width] = source[
                    unsafe_offset=(first_row + row) * columns + first_column + column
                ]
    barrier()
    if are_columns_aligned != 0:
        comptime for i in range(loads):
            var group = (thread + i * THREADS) % 8
            var column = (thread + i * THREADS) // 8
            var place = (column // width) ^ group
            var row = first_row + group * width
            if row < rows and first_column + column < columns:
                var values = SIMD[T, width]()
                comptime for j in range(width):
                    values[j] = tile[unsafe_offset=(group * width + j) * wide + place * width + column % width]
                target.unsafe_store[alignment=16]((first_column + column) * rows + row, values)
    else:
        for i in range(thread, tall * wide, THREADS):
            var row = i % tall
            var column = i // tall
            if first_row + row < rows and first_column + column < columns:
                var place = (column // width) ^ (row // width)
                target[unsafe_offset=(first_column + column) * rows + first_row + row] = tile[
                    unsafe_offset=row * wide + place * width + column % width
                ]


@extensibility.register("tmb_transpose")
struct Transpose:
    """`x` [batch, rows, columns] to `result` [batch, columns, rows], on a GPU."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=3, ...],
        x: InputTensor[dtype=result.dtype, rank=3, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_transpose runs on GPUs"
        comptime T = bits_of(size_of[result.dtype]())
        comptime width = 16 // size_of[result.dtype]()
        var rows = x.dim_size(1)
        var columns = x.dim_size(2)
        var source = x.unsafe_ptr().unsafe_bitcast[Scalar[T]]()
        var destination = result.unsafe_ptr().unsafe_bitcast[Scalar[T]]()
        comptime tall = 8 * width
        comptime wide = max(8 * width, 64) if width > 8 else max(64, 16 * width)
        var tiles = x.dim_size(0) * ceildiv(rows, tall) * ceildiv(columns, wide)
        if tiles == 0:
            return
        var are_rows_aligned = columns % width == 0 and Int(source) % 16 == 0
        var are_columns_aligned = rows % width == 0 and Int(destination) % 16 == 0
        ctx.enqueue_function[transpose_tile[T, width]](
            destination,
            source.as_imm(),
            Int32(rows),
            Int32(columns),
            Int32(1 if are_rows_aligned else 0),
            Int32(1 if are_columns_aligned else 0),
            grid_dim=tiles,
            block_dim=THREADS,
        )
