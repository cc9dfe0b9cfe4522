"""Softmax and log-softmax of the rows of a matrix on a GPU, each row read once and written once.

NaN and infinities come out as torch has them. The threads of a long row are in several blocks, where a GPU lets blocks
exchange numbers. A row that is too long for registers is read twice.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.host import DeviceContext
from std.math import ceildiv, exp, log
from std.memory import unsafe_stack_allocation
from std.sys import align_of, size_of
from std.utils.static_tuple import StaticTuple

from .thread_block_clusters import HAS_CLUSTERS, announce, cluster, joined, rank
from .row_threads import (
    Exponentials,
    Kept,
    Largest,
    Partial,
    Results,
    Row,
    Sum,
    Values,
    above_negative_infinity,
    across,
    exponentials,
)

comptime AT_ONCE = 4
"""Vectors that a thread reads before it needs the first of them, where a row is read twice."""

comptime MOST_POWERS = 16
"""Elements of a thread up to which it keeps their exponentials. Those of more are computed twice, for want of registers."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(threads)),
    `nvvm.minctasm`=SIMDLength(Kept[T, width, vectors, threads, blocks].resident()),
)
def softmax_of_kept_rows[
    T: DType, R: DType, is_log: Bool, width: Int, vectors: Int, lanes: Int, columns: Int, blocks: Int, threads: Int
](result: Results[R], x: Values[T], rows: Int32):
    """`threads / lanes` rows a block, or a row in `blocks` of them; each thread keeps `vectors` times `width` elements."""
    comptime Mine = Row[width, vectors, lanes, columns, blocks]
    comptime are_kept = not is_log and vectors * width <= MOST_POWERS
    announce[blocks]()
    var row = Int(block_idx.x) // blocks * (threads // lanes) + Int(thread_idx.x) // lanes
    var first = Mine.first(rank[blocks]())
    var start = min(row, Int(rows) - 1) * columns
    var held = Kept[T, width, vectors, threads, blocks]()
    comptime for i in range(vectors):
        held.put[i](x.unsafe_load[width=width, alignment=align_of[SIMD[T, width]]()](start + Mine.place[i](first)))
    # What stands in for a vector that this thread lacks is one of the row: it changes no maximum.
    var most = held.get[0]().cast[DType.float32]()
    comptime for i in range(1, vectors):
        most = max(most, held.get[i]().cast[DType.float32]())
    var largest = across[Largest, lanes, threads](Partial(most.reduce_max(), 0, 0, 0))[0]
    # A block may have none but -inf of a row that has other numbers, too.
    var base = above_negative_infinity(largest) if blocks > 1 else largest
    var powers = unsafe_stack_allocation[vectors, SIMD[DType.float32, width]]()
    var sums = SIMD[DType.float32, width](0)
    comptime for i in range(vectors):
        var power = exp(held.get[i]().cast[DType.float32]() - base)
        comptime if are_kept:
            powers[unsafe_offset=i] = power
        if Mine.has[i](first):
            sums += power
    var total = across[Sum, lanes, threads](Partial(sums.reduce_add(), 0, 0, 0))[0]
    var factor = 1 / total
    comptime if blocks > 1:
        var all = joined[Exponentials, blocks](Partial(largest, total, 0, 0))
        total = all[1]
        factor = (exp(largest - all[0]) if are_kept else 1) / total
        largest = all[0]
    if row >= Int(rows):
        return
    var shift = log(total)
    comptime for i in range(vectors):
        if Mine.has[i](first):
            var y: SIMD[DType.float32, width]
            comptime if are_kept:
                y = powers[unsafe_offset=i] * factor
            else:
                y = held.get[i]().cast[DType.float32]() - largest
                comptime if is_log:
                    y -= shift
                else:
                    y = exp(y) * factor
            result.unsafe_store[alignment=align_of[SIMD[R, width]]()](start + Mine.place[i](first), y.cast[R]())


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(threads)))
def softmax_in_passes[
    T: DType, R: DType, is_log: Bool, width: Int, threads: Int
](result: Results[R], x: Values[T], columns_: Int32):
    """A row a block, of any length: read once for the sum, and once more."""
    comptime step = threads * width
    var columns = Int(columns_)
    var start = Int(block_idx.x) * columns
    var first = Int(thread_idx.x) * width
    var mine = exponentials[T, width, threads](x.unsafe_offset(start), first, columns)
    var all = across[Exponentials, threads, threads](mine)
    # Of a row of -inf alone all is NaN, as exp(-inf - -inf) is.
    var largest = all[0]
    var factor = 1 / all[1]
    var shift = log(all[1])
    for group in range(first, columns, AT_ONCE * step):
        var held = unsafe_stack_allocation[AT_ONCE, SIMD[T, width]]()
        comptime for i in range(AT_ONCE):
            held[unsafe_offset=i] = x.unsafe_load[width=width, alignment=align_of[SIMD[T, width]]()](
                start + min(group + i * step, columns - width)
            )
        comptime for i in range(AT_ONCE):
            if group + i * step < columns:
                var y = held[unsafe_offset=i].cast[DType.float32]() - largest
                comptime if is_log:
                    y -= shift
                else:
                    y = exp(y) * factor
                result.unsafe_store[alignment=align_of[SIMD[R, width]]()](start + group + i * step, y.cast[R]())


@extensibility.register("tmb_softmax")
struct Softmax[is_log: Bool, width: Int, vectors: Int, lanes: Int, columns: Int, blocks: Int]:
    """The softmax, or its logarithm, along the rows of `x` [rows, columns]; computed in float32.

    `width`, `vectors`, `lanes` and `blocks` say how a row is spread over threads; `vectors` is 0 if a row does not fit
    into registers.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](result: OutputTensor[rank=2, ...], x: InputTensor[rank=2, ...], ctx: DeviceContext,) raises:
        comptime assert target != "cpu", "tmb_softmax runs on GPUs"
        comptime T = x.dtype
        comptime R = result.dtype
        var rows = x.dim_size(0)
        if rows == 0:
            return
        var source = x.unsafe_ptr().as_imm()
        var destination = result.unsafe_ptr()
        var are_aligned = True
        comptime if Self.width > 1:
            are_aligned = (
                Int(source) % (Self.width * size_of[T]()) == 0
                and Int(destination) % min(Self.width * size_of[R](), 16) == 0
            )
        comptime if Self.vectors > 0 and (Self.blocks == 1 or HAS_CLUSTERS):
            if are_aligned:
                comptime threads = max(Self.lanes, 128)
                ctx.enqueue_function[
                    softmax_of_kept_rows[
                        T, R, Self.is_log, Self.width, Self.vectors, Self.lanes, Self.columns, Self.blocks, threads
                    ]
                ](
                    destination,
                    source,
                    Int32(rows),
                    grid_dim=ceildiv(rows, threads // Self.lanes) * Self.blocks,
                    block_dim=threads,
                    cluster_dim=cluster[Self.blocks](),
                )
                return
        else:
            if are_aligned:
                ctx.enqueue_function[softmax_in_passes[T, R, Self.is_log, Self.width, 1024]](
                    destination, source, Int32(Self.columns), grid_dim=rows, block_dim=1024
                )
                return
        comptime if Self.width > 1:
            ctx.enqueue_function[softmax_in_passes[T, R, Self.is_log, 1, 1024]](
                destination, source, Int32(Self.columns), grid_dim=rows, block_dim=1024
            )
