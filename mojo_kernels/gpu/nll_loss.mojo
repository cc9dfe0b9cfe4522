"""Negative log-likelihoods of chosen classes and their gradients, from rows of logits that are read once, on a GPU."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.host import DeviceContext
from std.math import ceildiv, exp, log
from std.memory import unsafe_stack_allocation
from std.sys import align_of
from std.utils.static_tuple import StaticTuple

from ..elementwise.index_checks import report
from .row_threads import AT_ONCE, Exponentials, Results, Values, across, exponentials


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(threads)))
def losses_of_rows[
    T: DType, R: DType, width: Int, lanes: Int, threads: Int, checks: Bool
](
    loss: Results[R],
    largest: Results[DType.float32],
    logarithm: Results[DType.float32],
    x: Values[T],
    chosen: Values[DType.int64],
    rows: Int32,
    columns_: Int32,
    ignored: Int64,
    address: Values[DType.int64],
    site: Int64,
):
    """`log(sum(exp(x[row]))) - x[row, chosen[row]]` for `threads / lanes` rows a block, a vector of `width` at a time."""
    var columns = Int(columns_)
    var row = Int(block_idx.x) * (threads // lanes) + Int(thread_idx.x) // lanes
    var is_inside = row < Int(rows)
    var is_first = is_inside and Int(thread_idx.x) % lanes == 0
    var start = min(row, Int(rows) - 1) * columns
    var place, logit = ignored, Float32(0)
    if is_first:  # it is on its way while the row is read
        place = chosen[unsafe_offset=row]
        if place != ignored:
            var inside = max(min(place, Int64(columns) - 1), 0)
            comptime if checks:
                if inside != place:
                    report(address[], site, place, Int64(columns))
            logit = x[unsafe_offset=start + Int(inside)].cast[DType.float32]()
    var mine = exponentials[T, width, lanes](x.unsafe_offset(start), Int(thread_idx.x) % lanes * width, columns)
    var all = across[Exponentials, lanes, threads](mine)
    if is_first:
        var of_sum = log(all[1])
        loss[unsafe_offset=row] = (Float32(0) if place == ignored else -(logit - all[0] - of_sum)).cast[R]()
        largest[unsafe_offset=row] = all[0]
        logarithm[unsafe_offset=row] = of_sum


@extensibility.register("tmb_losses")
struct Losses[width: Int, lanes: Int, checks: Bool]:
    """`-log_softmax(x)[row, chosen[row]]` for each row of `x` [rows, classes], on a GPU; 0 where the class is `ignored`.

    With it come the row's maximum, and the logarithm of the sum of the exponentials of what is less it. Any other class
    that there is not is moved into range, and reported if the kernel `checks`; only then are `address` and `site`, as
    `elementwise/index_checks.mojo` has them, looked at.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        loss: OutputTensor[rank=1, ...],
        largest: OutputTensor[dtype=DType.float32, rank=1, ...],
        logarithm: OutputTensor[dtype=DType.float32, rank=1, ...],
        x: InputTensor[rank=2, ...],
        chosen: InputTensor[dtype=DType.int64, rank=1, ...],
        ignored: Int64,
        address: InputTensor[dtype=DType.int64, ...],
        site: Int64,
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_losses runs on GPUs"
        comptime T = x.dtype
        var rows, columns = x.dim_size(0), x.dim_size(1)
        if rows == 0:
            return
        comptime threads = max(Self.lanes, 128)
        var are_aligned = columns % Self.width == 0 and Int(x.unsafe_ptr()) % align_of[SIMD[T, Self.width]]() == 0

        @__parameter
        def enqueue[width: Int]() raises:
            ctx.enqueue_function[losses_of_rows[T, loss.dtype, width, Self.lanes, threads, Self.checks]](
                loss.unsafe_ptr(),
                largest.unsafe_ptr(),
                logarithm.unsafe_ptr(),
                x.unsafe_ptr().as_imm(),
                chosen.unsafe_ptr().as_imm(),
                Int32(rows),
                Int32(columns),
                ignored,
                address.unsafe_ptr().as_imm(),
                site,
                grid_dim=ceildiv(rows, threads // Self.lanes),
                block_dim=threads,
            )

        if are_aligned:
            enqueue[Self.width]()
        else:
            comptime if Self.width > 1:
                enqueue[1]()


comptime READ_SINGLY = 8
"""Elements that a thread reads before it needs the first of them, where it reads no vectors."""


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(threads)))
def gradient_of_likelihood[
    T: DType, R: DType, width: Int, lanes: Int, threads: Int
](
    result: Results[R],
    x: Values[T],
    opposite: Values[DType.float32],
    logarithm: Values[DType.float32],
    chosen: Values[DType.int64],
    of_row: Values[DType.float32],
    rows_: Int32,
    columns_: Int32,
    pitch_: Int32,
):
    """A row of the gradient for every `lanes` threads of a block, a vector of `width` at a time."""
    comptime step = lanes * width
    comptime at_once = READ_SINGLY if width == 1 else AT_ONCE
    comptime aligned = align_of[SIMD[T, width]]()
    var columns, pitch = Int(columns_), Int(pitch_)
    var row = Int(block_idx.x) * (threads // lanes) + Int(thread_idx.x) // lanes
    if row >= Int(rows_):
        return
    var source = x.unsafe_offset(row * columns)
    var target = result.unsafe_offset(row * pitch)
    var plus, minus = opposite[unsafe_offset=row], logarithm[unsafe_offset=row]
    var scale, at = of_row[unsafe_offset=row], Int(chosen[unsafe_offset=row])
    for group in range(Int(thread_idx.x) % lanes * width, pitch, at_once * step):
        var held = unsafe_stack_allocation[at_once, SIMD[T, width]]()
        comptime for i in range(at_once):
            held[unsafe_offset=i] = source.unsafe_load[width=width, alignment=aligned](
                min(group + i * step, columns - width)
            )
        comptime for i in range(at_once):
            var place = group + i * step
            if place < pitch:
                var logits = held[unsafe_offset=i].cast[DType.float32]()
                var y = exp(logits + plus - minus) * -scale
                comptime for k in range(width):
                    if place + k == at:
                        y[k] += scale
                if place >= columns:
                    y = 0
                target.unsafe_store[alignment=align_of[SIMD[R, width]]()](place, y.cast[R]())


@extensibility.register("tmb_likelihood_gradient")
struct LikelihoodGradient[width: Int, lanes: Int]:
    """What is in front of the logits of a likelihood: `of_row` at the chosen class, less `of_row` times probabilities.

    `x` is [rows, classes]; a probability is `exp(x + opposite - logarithm)`. Behind the classes the result has zeros.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=2, ...],
        x: InputTensor[rank=2, ...],
        opposite: InputTensor[dtype=DType.float32, rank=1, ...],
        logarithm: InputTensor[dtype=DType.float32, rank=1, ...],
        chosen: InputTensor[dtype=DType.int64, rank=1, ...],
        of_row: InputTensor[dtype=DType.float32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_likelihood_gradient runs on GPUs"
        comptime T = x.dtype
        var rows, columns, pitch = x.dim_size(0), x.dim_size(1), result.dim_size(1)
        if rows == 0:
            return
        comptime threads = max(Self.lanes, 128)
        var are_aligned = columns % Self.width == 0 and Int(x.unsafe_ptr()) % align_of[SIMD[T, Self.width]]() == 0

        @__parameter
        def enqueue[width: Int]() raises:
            ctx.enqueue_function[gradient_of_likelihood[T, result.dtype, width, Self.lanes, threads]](
                result.unsafe_ptr(),
                x.unsafe_ptr().as_imm(),
                opposite.unsafe_ptr().as_imm(),
                logarithm.unsafe_ptr().as_imm(),
                chosen.unsafe_ptr().as_imm(),
                of_row.unsafe_ptr().as_imm(),
                Int32(rows),
                Int32(columns),
                Int32(pitch),
                grid_dim=ceildiv(rows, threads // Self.lanes),
                block_dim=threads,
            )

        if are_aligned:
            enqueue[Self.width]()
        else:
            comptime if Self.width > 1:
                enqueue[1]()
