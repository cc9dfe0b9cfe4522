"""The first of the largest or smallest elements of each row of a matrix, and its place, read once, on a GPU."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.host import DeviceContext
from std.math import ceildiv
from std.memory import bitcast, unsafe_stack_allocation
from std.sys import align_of
from std.utils.numerics import isnan
from std.utils.static_tuple import StaticTuple

from .row_threads import Partial, Reduction, Results, Values, across

comptime NOWHERE = Int32.MAX
comptime BYTES_AT_ONCE = 64
"""What a thread reads, of vectors, before it needs the first of them."""
comptime SINGLE_AT_ONCE = 16
"""The same in elements that are read one by one."""


struct First(Reduction):
    """The largest number, or NaN if there is one, and the first place where it is, as the bits of an integer."""

    comptime used = 2

    @staticmethod
    @always_inline
    def joined(a: Partial, b: Partial) -> Partial:
        var is_same = a[0] == b[0] or (isnan(a[0]) and isnan(b[0]))
        var is_larger = b[0] > a[0] or (isnan(b[0]) and not isnan(a[0]))
        var is_first = bitcast[DType.int32](b[1]) < bitcast[DType.int32](a[1])
        return b if is_larger or (is_same and is_first) else a


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(threads)))
def find_extreme[
    T: DType, width: Int, lanes: Int, threads: Int, is_largest: Bool
](values: Results[T], places: Results[DType.int64], x: Values[T], rows: Int32, columns_: Int32):
    """`RowExtreme` for `threads / lanes` rows a block, a vector of `width` at a time."""
    comptime at_once = SINGLE_AT_ONCE if width == 1 else BYTES_AT_ONCE // align_of[SIMD[T, width]]()
    comptime step = lanes * width
    var columns = Int(columns_)
    var row = Int(block_idx.x) * (threads // lanes) + Int(thread_idx.x) // lanes
    var source = x.unsafe_offset(min(row, Int(rows) - 1) * columns)
    var best = SIMD[DType.float32, width](Float32.MIN)
    var found = SIMD[DType.int32, width](NOWHERE)
    for group in range(Int(thread_idx.x) % lanes * width, columns, at_once * step):
        var held = unsafe_stack_allocation[at_once, SIMD[T, width]]()
        comptime for i in range(at_once):
            held[unsafe_offset=i] = source.unsafe_load[width=width, alignment=align_of[SIMD[T, width]]()](
                min(group + i * step, columns - width)
            )
        comptime for i in range(at_once):
            var number = held[unsafe_offset=i].cast[DType.float32]()
            comptime if not is_largest:
                number = -number
            var wins = number.gt(best) | (isnan(number) & ~isnan(best))
            best = wins.select(number, best)
            found = wins.select(SIMD[DType.int32, width](min(group + i * step, columns - width)), found)
    var mine = Partial(best[0], bitcast[DType.float32](found[0]), 0, 0)
    comptime for i in range(1, width):
        var place = found[i] if found[i] == NOWHERE else found[i] + Int32(i)
        mine = First.joined(mine, Partial(best[i], bitcast[DType.float32](place), 0, 0))
    var all = across[First, lanes, threads](mine)
    if row < Int(rows) and Int(thread_idx.x) % lanes == 0:
        var place = Int(bitcast[DType.int32](all[1]))
        if place == Int(NOWHERE):  # nothing is beyond the number that everything was compared with
            place = 0
        places[unsafe_offset=row] = Int64(place)
        values[unsafe_offset=row] = source[unsafe_offset=place]


@extensibility.register("tmb_row_extreme")
struct RowExtreme[width: Int, lanes: Int, is_largest: Bool]:
    """The largest or smallest element of each row of `x` [rows, columns], and where it is first: [rows] each.

    As in torch, a NaN is beyond all numbers. `lanes` threads share a row, and read `width` elements at a time if rows
    begin where vectors may.
    """

    @staticmethod
    def launch[
        T: DType, at_once: Int
    ](
        values: Results[T], places: Results[DType.int64], x: Values[T], rows: Int, columns: Int, ctx: DeviceContext
    ) raises:
        """Start the kernel, which reads `at_once` elements at a time."""
        comptime threads = max(Self.lanes, 128)
        ctx.enqueue_function[find_extreme[T, at_once, Self.lanes, threads, Self.is_largest]](
            values,
            places,
            x,
            Int32(rows),
            Int32(columns),
            grid_dim=ceildiv(rows, threads // Self.lanes),
            block_dim=threads,
        )

    @staticmethod
    def execute[
        target: StaticString
    ](
        values: OutputTensor[rank=1, ...],
        places: OutputTensor[dtype=DType.int64, rank=1, ...],
        x: InputTensor[dtype=values.dtype, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_row_extreme runs on GPUs"
        comptime T = values.dtype
        var rows, columns = x.dim_size(0), x.dim_size(1)
        if rows == 0:
            return
        var source = x.unsafe_ptr().as_imm()
        var are_aligned = columns % Self.width == 0 and Int(source) % align_of[SIMD[T, Self.width]]() == 0
        if are_aligned:
            Self.launch[T, Self.width](values.unsafe_ptr(), places.unsafe_ptr(), source, rows, columns, ctx)
        else:
            comptime if Self.width > 1:
                Self.launch[T, 1](values.unsafe_ptr(), places.unsafe_ptr(), source, rows, columns, ctx)
