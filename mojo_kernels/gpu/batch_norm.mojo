"""What a batch norm in training computes for each channel, and what it does with it, by few kernels, for GPUs.

Images have their channels last, so that channels are the columns of `gpu/column_moments.mojo`. Numbers of channels are float32.
"""

import extensibility
from extensibility import InputTensor, OutputTensor, _FusedInputTensor, _FusedOutputTensor
from max.algorithm.functional import elementwise
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, thread_idx
from max.gpu.host import DeviceContext
from std.math import ceildiv, rsqrt
from std.utils.coord import Coord
from std.utils.static_tuple import StaticTuple

from .column_moments import Pieces, moments_of_block, my_column
from .column_sums import COLUMNS, total_of_block, total_of_line, vector
from .row_threads import Results, Values

comptime F = DType.float32
comptime ROWS_EACH = 4
"""Rows of a thread that scales columns, and keeps their numbers in registers."""


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(threads)))
def describe_batch[
    is_scaled: Bool, is_shifted: Bool, threads: Int
](
    mean: Results[F],
    rstd: Results[F],
    scale: Results[F],
    shift: Results[F],
    moved_mean: Results[F],
    moved_variance: Results[F],
    x: Values[F],
    weight: Values[F],
    bias: Values[F],
    running_mean: Values[F],
    running_variance: Values[F],
    of: Pieces,
    momentum: Float32,
    epsilon: Float32,
):
    """What `BatchStatistics` gives, for `COLUMNS` columns a block.

    What it needs at the end is read first, since a store may keep the compiler from beginning later loads early.
    """
    var column = my_column()
    var place = min(column, Int(of[1]) - 1)
    var of_weight, of_bias = Float32(1), Float32(0)
    comptime if is_scaled:
        of_weight = weight[unsafe_offset=place]
    comptime if is_shifted:
        of_bias = bias[unsafe_offset=place]
    var old_mean, old_variance = running_mean[unsafe_offset=place], running_variance[unsafe_offset=place]
    var all = moments_of_block[threads](x, of)
    if Int(thread_idx.x) >= COLUMNS or column >= Int(of[1]):
        return
    var size = Float32(of[3])
    var variance = all.squares / size
    var root = rsqrt(variance + epsilon)
    var factor = root * of_weight
    var kept = 1 - momentum
    mean[unsafe_offset=column] = all.mean
    rstd[unsafe_offset=column] = root
    scale[unsafe_offset=column] = factor
    shift[unsafe_offset=column] = of_bias - all.mean * factor
    moved_mean[unsafe_offset=column] = old_mean * kept + all.mean * momentum
    var unbiased = variance * (size / (size - 1))
    moved_variance[unsafe_offset=column] = old_variance * kept + unbiased * momentum


@extensibility.register("tmb_batch_statistics")
struct BatchStatistics[each: Int, rows: Int, is_scaled: Bool, is_shifted: Bool, threads: Int]:
    """The mean of each column, 1 / the root of its variance, what to multiply it by, what to add then, and statistics.

    `x` [pieces, 2, columns] has the moments of pieces of `each` of the `rows` rows, of which there is more than one. The
    last two results are the running mean and (unbiased) variance, moved by `momentum` towards the batch's. A weight or bias
    that is not there is not looked at.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        mean: OutputTensor[dtype=F, rank=1, ...],
        rstd: OutputTensor[dtype=F, rank=1, ...],
        scale: OutputTensor[dtype=F, rank=1, ...],
        shift: OutputTensor[dtype=F, rank=1, ...],
        moved_mean: OutputTensor[dtype=F, rank=1, ...],
        moved_variance: OutputTensor[dtype=F, rank=1, ...],
        x: InputTensor[dtype=F, rank=3, ...],
        weight: InputTensor[dtype=F, rank=1, ...],
        bias: InputTensor[dtype=F, rank=1, ...],
        running_mean: InputTensor[dtype=F, rank=1, ...],
        running_variance: InputTensor[dtype=F, rank=1, ...],
        momentum: Float32,
        epsilon: Float32,
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_batch_statistics runs on GPUs"
        var columns = x.dim_size(2)
        ctx.enqueue_function[describe_batch[Self.is_scaled, Self.is_shifted, Self.threads]](
            mean.unsafe_ptr(),
            rstd.unsafe_ptr(),
            scale.unsafe_ptr(),
            shift.unsafe_ptr(),
            moved_mean.unsafe_ptr(),
            moved_variance.unsafe_ptr(),
            x.unsafe_ptr().as_imm(),
            weight.unsafe_ptr().as_imm(),
            bias.unsafe_ptr().as_imm(),
            running_mean.unsafe_ptr().as_imm(),
            running_variance.unsafe_ptr().as_imm(),
            Pieces(Int32(x.dim_size(0)), Int32(columns), Int32(Self.each), Int32(Self.rows)),
            momentum,
            epsilon,
            grid_dim=ceildiv(columns, COLUMNS),
            block_dim=Self.threads,
        )


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(threads)))
def describe_gradients[
    is_scaled: Bool, threads: Int
](
    of_weight: Results[F],
    of_bias: Results[F],
    offset: Results[F],
    factor: Results[F],
    scale: Results[F],
    x: Values[F],
    rstd: Values[F],
    weight: Values[F],
    pieces: Int32,
    columns_: Int32,
    rows: Int32,
):
    """What `BatchGradients` gives, for `COLUMNS` columns a block; see `describe_batch`."""
    var columns, column = Int(columns_), my_column()
    var place = min(column, columns - 1)
    var root, of_scale = rstd[unsafe_offset=place], Float32(1)
    comptime if is_scaled:
        of_scale = weight[unsafe_offset=place]
    var line = total_of_line[2, threads](x.unsafe_offset(place), Int(pieces), 2 * columns, columns)
    var sums = total_of_block[threads, n=2](line)
    var total, along = sums[0], sums[1]
    if Int(thread_idx.x) >= COLUMNS or column >= columns:
        return
    var size = Float32(rows)
    of_weight[unsafe_offset=column] = along * root
    of_bias[unsafe_offset=column] = total
    offset[unsafe_offset=column] = total / size
    factor[unsafe_offset=column] = along * root * root / size
    scale[unsafe_offset=column] = root * of_scale


@extensibility.register("tmb_batch_gradients")
struct BatchGradients[rows: Int, is_scaled: Bool, threads: Int]:
    """A batch norm's gradients for its weight and bias, and three numbers for each column.

    The gradient of its input is `(g - offset + (mean - input) * factor) * scale`. `x` [1, pieces, 2 * columns] is what
    `tmb_column_products` gives, for pieces of a matrix of `rows` rows. A weight that is not there is not looked at.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        of_weight: OutputTensor[dtype=F, rank=1, ...],
        of_bias: OutputTensor[dtype=F, rank=1, ...],
        offset: OutputTensor[dtype=F, rank=1, ...],
        factor: OutputTensor[dtype=F, rank=1, ...],
        scale: OutputTensor[dtype=F, rank=1, ...],
        x: InputTensor[dtype=F, rank=3, ...],
        rstd: InputTensor[dtype=F, rank=1, ...],
        weight: InputTensor[dtype=F, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_batch_gradients runs on GPUs"
        var columns = rstd.dim_size(0)
        ctx.enqueue_function[describe_gradients[Self.is_scaled, Self.threads]](
            of_weight.unsafe_ptr(),
            of_bias.unsafe_ptr(),
            offset.unsafe_ptr(),
            factor.unsafe_ptr(),
            scale.unsafe_ptr(),
            x.unsafe_ptr().as_imm(),
            rstd.unsafe_ptr().as_imm(),
            weight.unsafe_ptr().as_imm(),
            Int32(x.dim_size(1)),
            Int32(columns),
            Int32(Self.rows),
            grid_dim=ceildiv(columns, COLUMNS),
            block_dim=Self.threads,
        )


@always_inline
def store[
    lanes: Int, alignment: Int
](y: _FusedOutputTensor, row: Int, column: Int, value: SIMD[y.dtype, lanes]):
    """The inverse of `vector` of one matrix: elements of a row are given on."""
    comptime if y.rank == 2:
        y._lambda_store[width=lanes, element_alignment=alignment](Coord(row, column), value)
    elif y.rank == 3:
        var a = y.dim_size(1)
        y._lambda_store[width=lanes, element_alignment=alignment](Coord(row // a, row % a, column), value)
    elif y.rank == 4:
        var a, b = y.dim_size(1), y.dim_size(2)
        var line = row // b
        y._lambda_store[width=lanes, element_alignment=alignment](Coord(line // a, line % a, row % b, column), value)
    else:
        comptime assert y.rank == 5, "tmb_scaled_columns takes up to 5 dimensions"
        var a, b, c = y.dim_size(1), y.dim_size(2), y.dim_size(3)
        var line = row // c
        var plane = line // b
        y._lambda_store[width=lanes, element_alignment=alignment](
            Coord(plane // a, plane % a, line % b, row % c, column), value
        )


@extensibility.register("tmb_scaled_columns")
struct ScaledColumns[width: Int]:
    """`x * scale + shift`, rounded once; `x` [*rows, columns] is of rank 2 to 5. What follows is computed as it is stored."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: _FusedOutputTensor,
        x: _FusedInputTensor[dtype=y.dtype, rank=y.rank, ...],
        scale: InputTensor[dtype=F, rank=1, ...],
        shift: InputTensor[dtype=F, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_scaled_columns runs on GPUs"
        var columns = scale.dim_size(0)
        var rows = 1
        comptime for i in range(x.rank - 1):
            rows *= x.dim_size(i)

        def apply[lanes: Int, alignment: Int = 1](at: Coord) {var y, var x, var scale, var shift, var rows}:
            var column = Int(at[1].value())
            var first = Int(at[0].value()) * ROWS_EACH
            var factor = scale.unsafe_ptr().unsafe_offset(column).unsafe_load[width=lanes]()
            var addend = shift.unsafe_ptr().unsafe_offset(column).unsafe_load[width=lanes]()
            comptime for i in range(ROWS_EACH):
                if first + i < rows:
                    var value = vector[lanes, alignment, False](x, 0, first + i, column).cast[F]()
                    store[lanes, alignment](y, first + i, column, (value * factor + addend).cast[y.dtype]())

        elementwise[simd_width=Self.width, target=target](apply, Coord(ceildiv(rows, ROWS_EACH), columns), ctx)
