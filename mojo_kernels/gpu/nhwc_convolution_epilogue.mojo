"""What follows a convolution on a GPU: a batch norm, a sum and bounds, of images that have their channels last."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.host import DeviceContext
from std.math import ceildiv, rsqrt
from std.memory import unsafe_stack_allocation
from std.sys import align_of
from std.utils.static_tuple import StaticTuple

from .norms import part
from .row_threads import Results, Values

comptime THREADS = 256
comptime ROWS_EACH = 4
"""Rows of a thread, which keeps the numbers of its channels in registers."""


@fieldwise_init
struct Finish(TrivialRegisterPassable):
    """What is computed, in this order."""

    var has_bias: Bool
    """Whether each channel has a number that is added to it."""
    var has_norm: Bool
    """Whether each channel's mean is subtracted, and the rest divided by the root of its variance."""
    var is_scaled: Bool
    """Whether that is multiplied by a weight."""
    var is_shifted: Bool
    """Whether a number is added to that."""
    var is_added: Bool
    """Whether other images are added."""


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def finish_channels[
    T: DType, finish: Finish, width: Int
](
    y: Results[T],
    x: Values[T],
    bias: Values[T],
    mean: Values[T],
    variance: Values[T],
    weight: Values[T],
    shift: Values[T],
    addend: Values[T],
    rows: Int32,
    channels: Int32,
    low: Float32,
    high: Float32,
    epsilon: Float32,
):
    """`ROWS_EACH` rows a thread, of `width` channels each; a block has as many whole rows as it has threads for.

    Every step is rounded to `T`, as if it were an op of its own. NaN stays NaN.
    """
    comptime F = DType.float32
    comptime aligned = align_of[SIMD[T, width]]()
    var vectors = Int(channels) // width
    var across = min(vectors, THREADS)
    var at_once = THREADS // across
    var column = (Int(block_idx.y) * THREADS + Int(thread_idx.x) % across) * width
    var row = Int(block_idx.x) * at_once * ROWS_EACH + Int(thread_idx.x) // across
    if column >= Int(channels) or Int(thread_idx.x) >= at_once * across:
        return
    var added = part[T, width, finish.has_bias](bias, column).cast[F]()
    var middle = part[T, width, finish.has_norm](mean, column).cast[F]()
    var scale = SIMD[F, width](1)
    comptime if finish.has_norm:
        scale = rsqrt(part[T, width, True](variance, column).cast[F]() + epsilon)
    comptime if finish.is_scaled:
        scale *= part[T, width, True](weight, column).cast[F]()
    var shifted = part[T, width, finish.is_shifted](shift, column).cast[F]()
    var held = unsafe_stack_allocation[ROWS_EACH, SIMD[T, width]]()
    var others = unsafe_stack_allocation[ROWS_EACH, SIMD[T, width]]()
    comptime for i in range(ROWS_EACH):
        var at = min(row + i * at_once, Int(rows) - 1) * Int(channels) + column
        held[unsafe_offset=i] = x.unsafe_load[width=width, alignment=aligned](at)
        comptime if finish.is_added:
            others[unsafe_offset=i] = addend.unsafe_load[width=width, alignment=aligned](at)
    comptime for i in range(ROWS_EACH):
        var value = held[unsafe_offset=i].cast[F]()
        comptime if finish.has_bias:
            value = (value + added).cast[T]().cast[F]()
        comptime if finish.has_norm:
            value = ((value - middle) * scale + shifted).cast[T]().cast[F]()
        comptime if finish.is_added:
            value = (value + others[unsafe_offset=i].cast[F]()).cast[T]().cast[F]()
        value = value.lt(low).select(low, value)
        value = value.gt(high).select(high, value)
        var place = row + i * at_once
        if place < Int(rows):
            y.unsafe_store[alignment=aligned](place * Int(channels) + column, value.cast[T]())


@extensibility.register("tmb_finish_channels")
struct FinishChannels[
    width: Int, has_bias: Bool, has_norm: Bool, is_scaled: Bool, is_shifted: Bool, is_added: Bool
]:  # fmt: skip
    """`clamp(norm(x + bias) + addend, low, high)` of images `x` [..., channels]; absent operands are not looked at.

    `mean`, `variance`, `weight` and `shift` are the norm's: like the bias, a number for each channel.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor,
        x: InputTensor[dtype=y.dtype, rank=y.rank, ...],
        bias: InputTensor[dtype=y.dtype, ...],
        mean: InputTensor[dtype=y.dtype, ...],
        variance: InputTensor[dtype=y.dtype, ...],
        weight: InputTensor[dtype=y.dtype, ...],
        shift: InputTensor[dtype=y.dtype, ...],
        addend: InputTensor[dtype=y.dtype, ...],
        low: Float32,
        high: Float32,
        epsilon: Float32,
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_finish_channels runs on GPUs"
        comptime finish = Finish(Self.has_bias, Self.has_norm, Self.is_scaled, Self.is_shifted, Self.is_added)
        var rows = 1
        comptime for d in range(y.rank - 1):
            rows *= y.dim_size(d)
        var channels = y.dim_size(y.rank - 1)
        if rows == 0 or channels == 0:
            return
        var vectors = channels // Self.width
        var at_once = THREADS // min(vectors, THREADS)
        ctx.enqueue_function[finish_channels[y.dtype, finish, Self.width]](
            y.unsafe_ptr(),
            x.unsafe_ptr().as_imm(),
            bias.unsafe_ptr().as_imm(),
            mean.unsafe_ptr().as_imm(),
            variance.unsafe_ptr().as_imm(),
            weight.unsafe_ptr().as_imm(),
            shift.unsafe_ptr().as_imm(),
            addend.unsafe_ptr().as_imm(),
            Int32(rows),
            Int32(channels),
            low,
            high,
            epsilon,
            grid_dim=(ceildiv(rows, at_once * ROWS_EACH), ceildiv(vectors, THREADS)),
            block_dim=THREADS,
        )
