"""Log-probabilities of chosen classes, from rows of logits that are read once, on a GPU."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.host import DeviceContext
from std.math import ceildiv, exp, log
from std.memory import unsafe_stack_allocation
from std.sys import align_of
from std.utils.static_tuple import StaticTuple

from .rows import Exponentials, Partial, above_negative_infinity, across

comptime AT_ONCE = 4
"""Vectors that a thread reads before it needs the first of them."""


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(threads)))
def choose_log_probability[
    T: DType, R: DType, width: Int, lanes: Int, threads: Int
](
    result: MutPointer[Scalar[R], MutAnyOrigin],
    x: ImmPointer[Scalar[T], ImmutAnyOrigin],
    chosen: ImmPointer[Int64, ImmutAnyOrigin],
    rows: Int32,
    columns_: Int32,
):
    """`x[row, chosen[row]] - log(sum(exp(x[row])))` for `threads / lanes` rows a block, a vector of `width` at a time.

    The sum is kept relative to the largest number so far, and scaled whenever that grows.
    """
    comptime aligned = align_of[SIMD[T, width]]()
    comptime step = lanes * width
    var columns = Int(columns_)
    var row = Int(block_idx.x) * (threads // lanes) + Int(thread_idx.x) // lanes
    var is_inside = row < Int(rows)
    var end = columns if is_inside else 0
    var start = row * columns
    var mine = Partial(Float32.MIN, 0, 0, 0)
    for first in range(Int(thread_idx.x) % lanes * width, end, AT_ONCE * step):
        var held = unsafe_stack_allocation[AT_ONCE, SIMD[T, width]]()
        comptime for i in range(AT_ONCE):
            held[unsafe_offset=i] = SIMD[T, width](Scalar[T].MIN)
            if first + i * step < end:
                held[unsafe_offset=i] = x.unsafe_load[width=width, alignment=aligned](start + first + i * step)
        var most = held[unsafe_offset=0].cast[DType.float32]()
        comptime for i in range(1, AT_ONCE):
            most = max(most, held[unsafe_offset=i].cast[DType.float32]())
        var largest = max(mine[0], most.reduce_max())
        var base = above_negative_infinity(largest)
        var sums = SIMD[DType.float32, width](0)
        comptime for i in range(AT_ONCE):
            sums += exp(held[unsafe_offset=i].cast[DType.float32]() - base)
        mine = Partial(largest, mine[1] * exp(mine[0] - base) + sums.reduce_add(), 0, 0)
    var all = across[Exponentials, lanes, threads](mine)
    if is_inside and Int(thread_idx.x) % lanes == 0:
        var place = Int(chosen[unsafe_offset=row])
        var logit = Float32(0)
        if place >= 0 and place < columns:
            logit = x[unsafe_offset=start + place].cast[DType.float32]()
        result[unsafe_offset=row] = (logit - all[0] - log(all[1])).cast[R]()


@extensibility.register("tmb_chosen_log_probability")
struct ChosenLogProbability[width: Int, lanes: Int]:
    """`log_softmax(x)[row, chosen[row]]` for each row of `x` [rows, classes], on a GPU."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=1, ...],
        x: InputTensor[rank=2, ...],
        chosen: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_chosen_log_probability runs on GPUs"
        comptime T = x.dtype
        var rows = x.dim_size(0)
        var columns = x.dim_size(1)
        if rows == 0:
            return
        comptime threads = max(Self.lanes, 128)
        var are_aligned = columns % Self.width == 0 and Int(x.unsafe_ptr()) % align_of[SIMD[T, Self.width]]() == 0
        if are_aligned:
            ctx.enqueue_function[choose_log_probability[T, result.dtype, Self.width, Self.lanes, threads]](
                result.unsafe_ptr(),
                x.unsafe_ptr().as_imm(),
                chosen.unsafe_ptr().as_imm(),
                Int32(rows),
                Int32(columns),
                grid_dim=ceildiv(rows, threads // Self.lanes),
                block_dim=threads,
            )
        else:
            comptime if Self.width > 1:
                ctx.enqueue_function[choose_log_probability[T, result.dtype, 1, Self.lanes, threads]](
                    result.unsafe_ptr(),
                    x.unsafe_ptr().as_imm(),
                    chosen.unsafe_ptr().as_imm(),
                    Int32(rows),
                    Int32(columns),
                    grid_dim=ceildiv(rows, threads // Self.lanes),
                    block_dim=threads,
                )
