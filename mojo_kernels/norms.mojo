"""Layer norm and RMS norm of the rows of a matrix on a GPU, each row read once and written once.

A row stays in the registers of the threads that share it between its statistics and its normalization. Rows that are too
long for that, or do not start at multiples of 16 bytes, are read twice.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.host import DeviceContext
from std.math import ceildiv, rsqrt
from std.memory import unsafe_stack_allocation
from std.sys import align_of, size_of
from std.utils.static_tuple import StaticTuple

from .rows import Moments, Partial, Sum, across

comptime Values[T: DType] = ImmPointer[Scalar[T], ImmutAnyOrigin]
comptime Results[T: DType] = MutPointer[Scalar[T], MutAnyOrigin]


@fieldwise_init
struct Norm(TrivialRegisterPassable):
    """What is computed, apart from sizes and dtypes."""

    var is_centred: Bool
    """Whether the mean is subtracted, as in a layer norm; else it is an RMS norm."""
    var is_scaled: Bool
    """Whether there is a weight."""
    var is_shifted: Bool
    """Whether there is a bias."""
    var is_rounded: Bool
    """Whether the normalized row is rounded to its dtype before the weight is applied."""
    var is_added: Bool
    """Whether another matrix is added first; that sum, rounded, is an output."""
    var epsilon: Float32


@always_inline
def normalized[
    T: DType, W: DType, S: DType, width: Int, norm: Norm
](
    x: SIMD[T, width], mean: Float32, rstd: Float32, weight: Values[W], bias: Values[S], column: Int
) -> SIMD[T, width]:
    """Part of a row, normalized and scaled."""
    comptime aligned = align_of[SIMD[W, width]]()
    comptime bias_aligned = align_of[SIMD[S, width]]()
    var y = (x.cast[DType.float32]() - mean) * rstd
    comptime if norm.is_rounded:
        y = y.cast[T]().cast[DType.float32]()
    comptime if norm.is_scaled:
        y *= weight.unsafe_load[width=width, alignment=aligned](column).cast[DType.float32]()
    comptime if norm.is_shifted:
        y += bias.unsafe_load[width=width, alignment=bias_aligned](column).cast[DType.float32]()
    return y.cast[T]()


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(threads)))
def norm_in_registers[
    T: DType, W: DType, S: DType, M: DType, norm: Norm, width: Int, vectors: Int, lanes: Int, threads: Int
](
    y: Results[T],
    total: Results[T],
    mean_: Results[M],
    rstd_: Results[M],
    x: Values[T],
    addend: Values[T],
    weight: Values[W],
    bias: Values[S],
    rows: Int32,
    columns_: Int32,
):
    """`threads / lanes` rows a block; each thread keeps `vectors` times `width` elements of one."""
    comptime aligned = align_of[SIMD[T, width]]()
    var columns = Int(columns_)
    var row = Int(block_idx.x) * (threads // lanes) + Int(thread_idx.x) // lanes
    var is_inside = row < Int(rows)
    var first = Int(thread_idx.x) % lanes * width
    var start = row * columns
    var held = unsafe_stack_allocation[vectors, SIMD[T, width]]()
    comptime for i in range(vectors):
        var column = first + i * lanes * width
        held[unsafe_offset=i] = SIMD[T, width](0)
        if is_inside and column < columns:
            held[unsafe_offset=i] = x.unsafe_load[width=width, alignment=aligned](start + column)
    comptime if norm.is_added:
        comptime for i in range(vectors):
            var column = first + i * lanes * width
            if is_inside and column < columns:
                var other = addend.unsafe_load[width=width, alignment=aligned](start + column)
                var both = held[unsafe_offset=i].cast[DType.float32]() + other.cast[DType.float32]()
                held[unsafe_offset=i] = both.cast[T]()
                total.unsafe_store[alignment=aligned](start + column, both.cast[T]())
    var mean = Float32(0)
    var size = Float32(columns)
    comptime if norm.is_centred:
        var sums = SIMD[DType.float32, width](0)
        comptime for i in range(vectors):
            sums += held[unsafe_offset=i].cast[DType.float32]()
        mean = across[Sum, lanes, threads](Partial(sums.reduce_add(), 0, 0, 0))[0] / size
    var squares = SIMD[DType.float32, width](0)
    comptime for i in range(vectors):
        if first + i * lanes * width < columns:
            var distance = held[unsafe_offset=i].cast[DType.float32]() - mean
            squares += distance * distance
    var square = across[Sum, lanes, threads](Partial(squares.reduce_add(), 0, 0, 0))[0]
    var rstd = rsqrt(square / size + norm.epsilon)
    if not is_inside:
        return
    comptime for i in range(vectors):
        var column = first + i * lanes * width
        if column < columns:
            y.unsafe_store[alignment=aligned](
                start + column, normalized[T, W, S, width, norm](held[unsafe_offset=i], mean, rstd, weight, bias, column)
            )
    if first == 0:
        comptime if norm.is_centred:
            mean_[unsafe_offset=row] = mean.cast[M]()
        rstd_[unsafe_offset=row] = rstd.cast[M]()


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(threads)))
def norm_in_passes[
    T: DType, W: DType, S: DType, M: DType, norm: Norm, width: Int, threads: Int
](
    y: Results[T],
    total: Results[T],
    mean_: Results[M],
    rstd_: Results[M],
    x: Values[T],
    addend: Values[T],
    weight: Values[W],
    bias: Values[S],
    rows: Int32,
    columns_: Int32,
):
    """A row a block, of any length: once for the statistics (Welford's, a column of a vector by itself), once more."""
    comptime aligned = align_of[SIMD[T, width]]()
    comptime step = threads * width
    var columns = Int(columns_)
    var row = Int(block_idx.x)
    var start = row * columns
    var first = Int(thread_idx.x) * width
    var means = SIMD[DType.float32, width](0)
    var squares = SIMD[DType.float32, width](0)
    var count = Float32(0)
    for column in range(first, columns, step):
        var here = x.unsafe_load[width=width, alignment=aligned](start + column)
        comptime if norm.is_added:
            var other = addend.unsafe_load[width=width, alignment=aligned](start + column)
            here = (here.cast[DType.float32]() + other.cast[DType.float32]()).cast[T]()
            total.unsafe_store[alignment=aligned](start + column, here)
        var values = here.cast[DType.float32]()
        comptime if norm.is_centred:
            count += 1
            var apart = values - means
            means += apart * (1 / count)
            squares += apart * (values - means)
        else:
            squares += values * values
    var mean = Float32(0)
    var square: Float32
    comptime if norm.is_centred:
        var mine = Partial(means[0], squares[0], count, 0)
        comptime for i in range(1, width):
            mine = Moments.joined(mine, Partial(means[i], squares[i], count, 0))
        var all = across[Moments, threads, threads](mine)
        mean = all[0]
        square = all[1]
    else:
        square = across[Sum, threads, threads](Partial(squares.reduce_add(), 0, 0, 0))[0]
    var rstd = rsqrt(square / Float32(columns) + norm.epsilon)
    for column in range(first, columns, step):
        var here: SIMD[T, width]
        comptime if norm.is_added:
            here = total.unsafe_load[width=width, alignment=aligned](start + column)
        else:
            here = x.unsafe_load[width=width, alignment=aligned](start + column)
        y.unsafe_store[alignment=aligned](
            start + column, normalized[T, W, S, width, norm](here, mean, rstd, weight, bias, column)
        )
    if first == 0:
        comptime if norm.is_centred:
            mean_[unsafe_offset=row] = mean.cast[M]()
        rstd_[unsafe_offset=row] = rstd.cast[M]()


@always_inline
def enqueue_norm[
    T: DType, W: DType, S: DType, M: DType, norm: Norm, width: Int, vectors: Int, lanes: Int
](
    y: MutPointer[Scalar[T], _],
    total: MutPointer[Scalar[T], _],
    mean: MutPointer[Scalar[M], _],
    rstd: MutPointer[Scalar[M], _],
    x: ImmPointer[Scalar[T], _],
    addend: ImmPointer[Scalar[T], _],
    weight: ImmPointer[Scalar[W], _],
    bias: ImmPointer[Scalar[S], _],
    rows: Int,
    columns: Int,
    ctx: DeviceContext,
) raises:
    """Start one of the two kernels; `vectors` is 0 if rows of that length do not fit into registers."""
    if rows == 0 or columns == 0:
        return
    comptime bytes = 16
    var are_aligned = True
    comptime if width > 1:
        comptime of_parameters = width * max(size_of[W](), size_of[S]())
        are_aligned = (
            (Int(y) | Int(total) | Int(x) | Int(addend)) % bytes == 0
            and (Int(weight) | Int(bias)) % min(of_parameters, bytes) == 0
            and columns % width == 0
        )
    comptime if vectors > 0:
        comptime threads = max(lanes, 128)
        if are_aligned and columns <= vectors * lanes * width:
            ctx.enqueue_function[norm_in_registers[T, W, S, M, norm, width, vectors, lanes, threads]](
                y, total, mean, rstd, x, addend, weight, bias, Int32(rows), Int32(columns),
                grid_dim=ceildiv(rows, threads // lanes), block_dim=threads,
            )
            return
    else:
        if are_aligned:
            ctx.enqueue_function[norm_in_passes[T, W, S, M, norm, width, 1024]](
                y, total, mean, rstd, x, addend, weight, bias, Int32(rows), Int32(columns),
                grid_dim=rows, block_dim=1024,
            )
            return
    ctx.enqueue_function[norm_in_passes[T, W, S, M, norm, 1, 1024]](
        y, total, mean, rstd, x, addend, weight, bias, Int32(rows), Int32(columns), grid_dim=rows, block_dim=1024
    )


@extensibility.register("tmb_norm")
struct RowNorm[
    is_centred: Bool, is_scaled: Bool, is_shifted: Bool, is_rounded: Bool, epsilon: Int, width: Int, vectors: Int, lanes: Int
]:
    """`(x - mean) * rstd * weight + bias` along the rows of `x` [rows, columns], with `mean` and `rstd` [rows].

    `weight` and `bias` [columns] may be anything where they are not used. `epsilon` is the bits of a float32; `width`,
    `vectors` and `lanes` say how a row is spread over threads.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor[rank=2, ...],
        mean: OutputTensor[rank=1, ...],
        rstd: OutputTensor[dtype=mean.dtype, rank=1, ...],
        x: InputTensor[dtype=y.dtype, rank=2, ...],
        weight: InputTensor[...],
        bias: InputTensor[...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_norm runs on GPUs"
        comptime norm = Norm(
            Self.is_centred,
            Self.is_scaled,
            Self.is_shifted,
            Self.is_rounded,
            False,
            Float32(from_bits=UInt32(Self.epsilon)),
        )
        enqueue_norm[y.dtype, weight.dtype, bias.dtype, mean.dtype, norm, Self.width, Self.vectors, Self.lanes](
            y.unsafe_ptr(),
            y.unsafe_ptr().unsafe_origin_cast[MutAnyOrigin](),
            mean.unsafe_ptr(),
            rstd.unsafe_ptr(),
            x.unsafe_ptr().as_imm(),
            x.unsafe_ptr().as_imm(),
            weight.unsafe_ptr().as_imm(),
            bias.unsafe_ptr().as_imm(),
            x.dim_size(0),
            x.dim_size(1),
            ctx,
        )


@extensibility.register("tmb_add_norm")
struct AddRowNorm[
    is_centred: Bool, is_scaled: Bool, is_shifted: Bool, is_rounded: Bool, epsilon: Int, width: Int, vectors: Int, lanes: Int
]:
    """`tmb_norm` of `x + addend`, a sum that is rounded to its dtype and is an output, too."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor[rank=2, ...],
        total: OutputTensor[dtype=y.dtype, rank=2, ...],
        mean: OutputTensor[rank=1, ...],
        rstd: OutputTensor[dtype=mean.dtype, rank=1, ...],
        x: InputTensor[dtype=y.dtype, rank=2, ...],
        addend: InputTensor[dtype=y.dtype, rank=2, ...],
        weight: InputTensor[...],
        bias: InputTensor[...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_add_norm runs on GPUs"
        comptime norm = Norm(
            Self.is_centred,
            Self.is_scaled,
            Self.is_shifted,
            Self.is_rounded,
            True,
            Float32(from_bits=UInt32(Self.epsilon)),
        )
        enqueue_norm[y.dtype, weight.dtype, bias.dtype, mean.dtype, norm, Self.width, Self.vectors, Self.lanes](
            y.unsafe_ptr(),
            total.unsafe_ptr(),
            mean.unsafe_ptr(),
            rstd.unsafe_ptr(),
            x.unsafe_ptr().as_imm(),
            addend.unsafe_ptr().as_imm(),
            weight.unsafe_ptr().as_imm(),
            bias.unsafe_ptr().as_imm(),
            x.dim_size(0),
            x.dim_size(1),
            ctx,
        )
