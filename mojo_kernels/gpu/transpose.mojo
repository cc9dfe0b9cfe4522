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
comptime LANES = 8
"""Threads that write 128 bytes of the result together."""
comptime BAND = 8
"""Tiles of the same columns that follow one another, so that what is written together lies together, too."""


def bits_of(bytes: Int) -> DType:
    """The unsigned integer of that width, in which elements are moved."""
    if bytes == 1:
        return DType.uint8
    if bytes == 2:
        return DType.uint16
    return DType.uint32 if bytes == 4 else DType.uint64


struct Tile[width: Int]:
    """What a block transposes, for elements of which `width` are 16 bytes; 16 KiB."""

    comptime tall = LANES * Self.width * (1 if Self.width > 4 else 2)
    comptime wide = 128 if Self.width > 4 else 64
    comptime size = Self.tall * Self.wide


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def transpose_tile[
    T: DType, width: Int
](
    result: MutPointer[Scalar[T], MutAnyOrigin],
    x: ImmPointer[Scalar[T], ImmutAnyOrigin],
    rows_: Int32,
    columns_: Int32,
    is_aligned: Int32,
):
    """One tile of `x` [batch, rows, columns] to `result` [batch, columns, rows].

    Where rows start at multiples of 16 bytes on both sides, vectors of `width` elements are moved. In shared memory the
    vectors of a row are permuted then, in another way every `width` rows: the elements of `width` rows that threads
    collect for a vector of the result are in distinct banks. Else elements are moved one by one, and rows in shared
    memory are an odd number of banks apart.
    """
    comptime tall = Tile[width].tall
    comptime wide = Tile[width].wide
    comptime apart = wide + max(width // 4, 1)
    var rows = Int(rows_)
    var columns = Int(columns_)
    var tiles_across = ceildiv(columns, wide)
    var tiles_down = ceildiv(rows, tall)
    var tiles = tiles_across * tiles_down
    var at = Int(block_idx.x) % tiles
    var band = at // (BAND * tiles_across)
    var height = min(BAND, tiles_down - band * BAND)
    var within = at - band * BAND * tiles_across
    var first_row = (band * BAND + within % height) * tall
    var first_column = within // height * wide
    var start = Int(block_idx.x) // tiles * rows * columns
    var source = x.unsafe_offset(start)
    var target = result.unsafe_offset(start)
    var thread = Int(thread_idx.x)
    var tile = unsafe_stack_allocation[tall * apart, Scalar[T], address_space=AddressSpace.SHARED, alignment=16]()
    # What is read beyond the end is the last element again, and is not written.
    if is_aligned != 0:
        comptime vectors = wide // width
        comptime loads = tall * vectors // THREADS
        comptime groups = tall // width
        var held = unsafe_stack_allocation[loads, SIMD[T, width]]()
        comptime for i in range(loads):
            var row = min(first_row + (thread + i * THREADS) // vectors, rows - 1)
            var column = min(first_column + (thread + i * THREADS) % vectors * width, columns - width)
            held[unsafe_offset=i] = source.unsafe_load[width=width, alignment=16](row * columns + column)
        comptime for i in range(loads):
            var row = (thread + i * THREADS) // vectors
            var place = ((thread + i * THREADS) % vectors) ^ (row // width)
            tile.unsafe_store[alignment=16](row * wide + place * width, held[unsafe_offset=i])
        barrier()
        comptime for i in range(loads):
            var unit = thread + i * THREADS
            var group = unit % LANES + unit // 32 % (groups // LANES) * LANES
            var column = unit // (4 * groups) * 4 + unit // LANES % 4
            var place = (column // width) ^ group
            var row = first_row + group * width
            if row < rows and first_column + column < columns:
                var values = SIMD[T, width]()
                comptime for j in range(width):
                    values[j] = tile[unsafe_offset=(group * width + j) * wide + place * width + column % width]
                target.unsafe_store[alignment=16]((first_column + column) * rows + row, values)
    else:
        comptime at_once = 8
        comptime for part in range(tall * wide // THREADS // at_once):
            var held = unsafe_stack_allocation[at_once, Scalar[T]]()
            comptime for i in range(at_once):
                var unit = thread + (part * at_once + i) * THREADS
                var row = min(first_row + unit // wide, rows - 1)
                var column = min(first_column + unit % wide, columns - 1)
                held[unsafe_offset=i] = source[unsafe_offset=row * columns + column]
            comptime for i in range(at_once):
                var unit = thread + (part * at_once + i) * THREADS
                tile[unsafe_offset=unit // wide * apart + unit % wide] = held[unsafe_offset=i]
        barrier()
        comptime for i in range(tall * wide // THREADS):
            var unit = thread + i * THREADS
            var row = first_row + unit % tall
            var column = first_column + unit // tall
            if row < rows and column < columns:
                target[unsafe_offset=column * rows + row] = tile[unsafe_offset=unit % tall * apart + unit // tall]


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
        var tiles = x.dim_size(0) * ceildiv(rows, Tile[width].tall) * ceildiv(columns, Tile[width].wide)
        if tiles == 0:
            return
        var is_aligned = (columns | rows) % width == 0 and (Int(source) | Int(destination)) % 16 == 0
        ctx.enqueue_function[transpose_tile[T, width]](
            destination,
            source.as_imm(),
            Int32(rows),
            Int32(columns),
            Int32(1 if is_aligned else 0),
            grid_dim=tiles,
            block_dim=THREADS,
        )
