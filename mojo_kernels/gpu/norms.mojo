"""Layer norm and RMS norm of the rows of a matrix on a GPU, each row read once and written once.

The threads that share a row keep it between its statistics and its normalization; those of a long row are in several
blocks, where a GPU lets blocks exchange numbers. Rows that are too long for that, or do not start at multiples of 16 bytes,
are read twice.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.host import DeviceContext
from max.gpu.sync import syncwarp
from std.math import ceildiv, rsqrt
from std.memory import unsafe_stack_allocation
from std.sys import align_of, size_of
from std.utils.static_tuple import StaticTuple

from .thread_block_clusters import HAS_CLUSTERS, announce, cluster, gathered, rank
from .row_threads import Kept, Moments, Partial, Results, Row, Sum, Values, across

comptime AT_ONCE = 4
"""Vectors that a thread reads before it needs the first of them, where a row is read twice."""
comptime PAIRS_AT_ONCE = 2
"""Vectors of two matrices that it reads before it needs the first of them, where a row is kept."""


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
    T: DType, Y: DType, W: DType, S: DType, width: Int, norm: Norm
](
    x: SIMD[T, width], mean: Float32, rstd: Float32, weight: SIMD[W, width], bias: SIMD[S, width]
) -> SIMD[Y, width]:
    """Part of a row, normalized, scaled and shifted."""
    var y = (x.cast[DType.float32]() - mean) * rstd
    comptime if norm.is_rounded:
        y = y.cast[T]().cast[DType.float32]()
    comptime if norm.is_scaled:
        y *= weight.cast[DType.float32]()
    comptime if norm.is_shifted:
        y += bias.cast[DType.float32]()
    return y.cast[Y]()


@always_inline
def part[T: DType, width: Int, is_there: Bool](values: Values[T], column: Int) -> SIMD[T, width]:
    """A vector of `values`, or anything where there are none."""
    comptime if is_there:
        return values.unsafe_load[width=width, alignment=align_of[SIMD[T, width]]()](column)
    return SIMD[T, width](0)


@always_inline
def added[T: DType](x: SIMD[_, _], addend: SIMD[_, x.length]) -> SIMD[T, x.length]:
    """A sum of float32, rounded."""
    return (x.cast[DType.float32]() + addend.cast[DType.float32]()).cast[T]()


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(threads)),
    `nvvm.minctasm`=SIMDLength(Kept[T, width, vectors, threads, blocks].resident(norm.is_added)),
)
def norm_of_kept_rows[
    T: DType,
    X: DType,
    A: DType,
    Y: DType,
    W: DType,
    S: DType,
    M: DType,
    norm: Norm,
    width: Int,
    vectors: Int,
    lanes: Int,
    columns: Int,
    blocks: Int,
    threads: Int,
](
    y: Results[Y],
    total: Results[T],
    mean_: Results[M],
    rstd_: Results[M],
    x: Values[X],
    addend: Values[A],
    weight: Values[W],
    bias: Values[S],
    rows: Int32,
):
    """`threads / lanes` rows a block, or a row in `blocks` of them; each thread keeps `vectors` times `width` elements."""
    comptime aligned = align_of[SIMD[T, width]]()
    comptime Mine = Row[width, vectors, lanes, columns, blocks]
    announce[blocks]()
    var row = Int(block_idx.x) // blocks * (threads // lanes) + Int(thread_idx.x) // lanes
    var is_inside = row < Int(rows)
    var first = Mine.first(rank[blocks]())
    var size = Float32(Mine.share(rank[blocks]()))
    var start = min(row, Int(rows) - 1) * columns
    var held = Kept[T, width, vectors, threads, blocks]()
    comptime if norm.is_added:
        var mine = unsafe_stack_allocation[vectors, SIMD[X, width]]()
        var others = unsafe_stack_allocation[vectors, SIMD[A, width]]()
        comptime for group in range(0, vectors, PAIRS_AT_ONCE):
            comptime end = min(group + PAIRS_AT_ONCE, vectors)
            comptime for i in range(group, end):
                mine[unsafe_offset=i] = part[X, width, True](x, start + Mine.place[i](first))
            comptime for i in range(group, end):
                others[unsafe_offset=i] = part[A, width, True](addend, start + Mine.place[i](first))
            comptime for i in range(group, end):
                held.put[i](added[T](mine[unsafe_offset=i], others[unsafe_offset=i]))
                if is_inside and Mine.has[i](first):
                    total.unsafe_store[alignment=aligned](start + Mine.place[i](first), held.get[i]())
            comptime if end < vectors:
                syncwarp()
    else:
        comptime for i in range(vectors):
            held.put[i](part[X, width, True](x, start + Mine.place[i](first)).cast[T]())
    # Weights that fit into registers are on their way while threads wait for each other.
    comptime is_early = vectors <= 2
    var scales = unsafe_stack_allocation[vectors, SIMD[W, width]]()
    var shifts = unsafe_stack_allocation[vectors, SIMD[S, width]]()
    comptime if is_early:
        comptime for i in range(vectors):
            scales[unsafe_offset=i] = part[W, width, norm.is_scaled](weight, Mine.place[i](first))
            shifts[unsafe_offset=i] = part[S, width, norm.is_shifted](bias, Mine.place[i](first))
    var mean = Float32(0)
    comptime if norm.is_centred:
        var sums = SIMD[DType.float32, width](0)
        comptime for i in range(vectors):
            if Mine.has[i](first):
                sums += held.get[i]().cast[DType.float32]()
        mean = across[Sum, lanes, threads](Partial(sums.reduce_add(), 0, 0, 0))[0] / size
    var squares = SIMD[DType.float32, width](0)
    comptime for i in range(vectors):
        if Mine.has[i](first):
            var distance = held.get[i]().cast[DType.float32]() - mean
            squares += distance * distance
    var square = across[Sum, lanes, threads](Partial(squares.reduce_add(), 0, 0, 0))[0]
    comptime if blocks > 1:
        comptime used = 2 if norm.is_centred else 1
        var all = gathered[used, blocks](Partial(square, mean, 0, 0))
        comptime if norm.is_centred:
            var total = Float32(0)
            comptime for block in range(blocks):
                total += all[block][1] * Float32(Mine.share(block))
            mean = total / Float32(columns)
        square = 0
        comptime for block in range(blocks):
            var away = all[block][1] - mean
            square += all[block][0] + away * away * Float32(Mine.share(block))
    var rstd = rsqrt(square / Float32(columns) + norm.epsilon)
    if not is_inside:
        return
    comptime for i in range(vectors):
        comptime if not is_early:
            syncwarp()  # or these weights are read before the last vector is written, for which registers are missing
        if Mine.has[i](first):
            var column = Mine.place[i](first)
            comptime if not is_early:
                scales[unsafe_offset=i] = part[W, width, norm.is_scaled](weight, column)
                shifts[unsafe_offset=i] = part[S, width, norm.is_shifted](bias, column)
            y.unsafe_store[alignment = align_of[SIMD[Y, width]]()](
                start + column,
                normalized[T, Y, W, S, width, norm](
                    held.get[i](), mean, rstd, scales[unsafe_offset=i], shifts[unsafe_offset=i]
                ),
            )
    if first == 0:
        comptime if norm.is_centred:
            mean_[unsafe_offset=row] = mean.cast[M]()
        rstd_[unsafe_offset=row] = rstd.cast[M]()


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(threads)))
def norm_in_passes[
    T: DType, X: DType, A: DType, Y: DType, W: DType, S: DType, M: DType, norm: Norm, width: Int, threads: Int
](
    y: Results[Y],
    total: Results[T],
    mean_: Results[M],
    rstd_: Results[M],
    x: Values[X],
    addend: Values[A],
    weight: Values[W],
    bias: Values[S],
    columns_: Int32,
):
    """A row a block, of any length: read once for the statistics, and once more.

    A thread's elements are taken a few vectors at a time; each place in a vector has a mean and squares of its own.
    """
    comptime aligned = align_of[SIMD[T, width]]()
    comptime step = threads * width
    var columns = Int(columns_)
    var row = Int(block_idx.x)
    var start = row * columns
    var first = Int(thread_idx.x) * width
    var means = SIMD[DType.float32, width](0)
    var squares = SIMD[DType.float32, width](0)
    var count = Float32(0)
    for group in range(first, columns, AT_ONCE * step):
        var held = unsafe_stack_allocation[AT_ONCE, SIMD[T, width]]()
        var mine = unsafe_stack_allocation[AT_ONCE, SIMD[X, width]]()
        comptime for i in range(AT_ONCE):
            mine[unsafe_offset=i] = part[X, width, True](x, start + min(group + i * step, columns - width))
            held[unsafe_offset=i] = mine[unsafe_offset=i].cast[T]()
        comptime if norm.is_added:
            var others = unsafe_stack_allocation[AT_ONCE, SIMD[A, width]]()
            comptime for i in range(AT_ONCE):
                others[unsafe_offset=i] = part[A, width, True](addend, start + min(group + i * step, columns - width))
            comptime for i in range(AT_ONCE):
                held[unsafe_offset=i] = added[T](mine[unsafe_offset=i], others[unsafe_offset=i])
                if group + i * step < columns:
                    total.unsafe_store[alignment=aligned](start + group + i * step, held[unsafe_offset=i])
        comptime if norm.is_centred:
            var sums = SIMD[DType.float32, width](0)
            var some = Float32(0)
            comptime for i in range(AT_ONCE):
                if group + i * step < columns:
                    sums += held[unsafe_offset=i].cast[DType.float32]()
                    some += 1
            var centre = sums * (1 / some)
            comptime for i in range(AT_ONCE):
                if group + i * step < columns:
                    var distance = held[unsafe_offset=i].cast[DType.float32]() - centre
                    squares += distance * distance
            var share = some / (count + some)
            var apart = centre - means
            means += apart * share
            squares += apart * apart * (count * share)
            count += some
        else:
            comptime for i in range(AT_ONCE):
                if group + i * step < columns:
                    var values = held[unsafe_offset=i].cast[DType.float32]()
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
    for group in range(first, columns, AT_ONCE * step):
        var held = unsafe_stack_allocation[AT_ONCE, SIMD[T, width]]()
        comptime for i in range(AT_ONCE):
            var place = start + min(group + i * step, columns - width)
            comptime if norm.is_added:
                held[unsafe_offset=i] = total.unsafe_load[width=width, alignment=aligned](place)
            else:
                held[unsafe_offset=i] = part[X, width, True](x, place).cast[T]()
        comptime for i in range(AT_ONCE):
            var column = group + i * step
            if column < columns:
                y.unsafe_store[alignment = align_of[SIMD[Y, width]]()](
                    start + column,
                    normalized[T, Y, W, S, width, norm](
                        held[unsafe_offset=i],
                        mean,
                        rstd,
                        part[W, width, norm.is_scaled](weight, column),
                        part[S, width, norm.is_shifted](bias, column),
                    ),
                )
    if first == 0:
        comptime if norm.is_centred:
            mean_[unsafe_offset=row] = mean.cast[M]()
        rstd_[unsafe_offset=row] = rstd.cast[M]()


@always_inline
def enqueue_norm[
    T: DType,
    X: DType,
    A: DType,
    Y: DType,
    W: DType,
    S: DType,
    M: DType,
    norm: Norm,
    width: Int,
    vectors: Int,
    lanes: Int,
    columns: Int,
    blocks: Int,
](
    y: MutPointer[Scalar[Y], _],
    total: MutPointer[Scalar[T], _],
    mean: MutPointer[Scalar[M], _],
    rstd: MutPointer[Scalar[M], _],
    x: ImmPointer[Scalar[X], _],
    addend: ImmPointer[Scalar[A], _],
    weight: ImmPointer[Scalar[W], _],
    bias: ImmPointer[Scalar[S], _],
    rows: Int,
    ctx: DeviceContext,
) raises:
    """Start one of the kernels; `vectors` is 0 if rows of that length do not fit into registers.

    Without clusters, rows for several `blocks` do not fit either.
    """
    if rows == 0:
        return
    comptime bytes = 16
    var are_aligned = True
    comptime if width > 1:
        comptime of_parameters = width * max(size_of[W](), size_of[S]())
        are_aligned = (Int(y) | Int(total) | Int(x) | Int(addend)) % bytes == 0 and (
            Int(weight) | Int(bias)
        ) % min(of_parameters, bytes) == 0
    comptime if vectors > 0 and (blocks == 1 or HAS_CLUSTERS):
        comptime threads = max(lanes, 128)
        if are_aligned:
            ctx.enqueue_function[
                norm_of_kept_rows[T, X, A, Y, W, S, M, norm, width, vectors, lanes, columns, blocks, threads]
            ](
                y,
                total,
                mean,
                rstd,
                x,
                addend,
                weight,
                bias,
                Int32(rows),
                grid_dim=ceildiv(rows, threads // lanes) * blocks,
                block_dim=threads,
                cluster_dim=cluster[blocks](),
            )
            return
    else:
        if are_aligned:
            ctx.enqueue_function[norm_in_passes[T, X, A, Y, W, S, M, norm, width, 1024]](
                y, total, mean, rstd, x, addend, weight, bias, Int32(columns), grid_dim=rows, block_dim=1024
            )
            return
    comptime if width > 1:
        ctx.enqueue_function[norm_in_passes[T, X, A, Y, W, S, M, norm, 1, 1024]](
            y, total, mean, rstd, x, addend, weight, bias, Int32(columns), grid_dim=rows, block_dim=1024
        )


@extensibility.register("tmb_norm")
struct RowNorm[
    is_centred: Bool, is_scaled: Bool, is_shifted: Bool, is_rounded: Bool, epsilon: Int, width: Int, vectors: Int, lanes: Int, columns: Int, blocks: Int
]:
    """`(x - mean) * rstd * weight + bias` along the rows of `x` [rows, columns], with `mean` and `rstd` [rows].

    `weight` and `bias` [columns] may be anything where they are not used. `y` is rounded once more than `x`, if its dtype
    is a shorter one. `epsilon` is the bits of a float32; `width`,
    `vectors`, `lanes` and `blocks` say how a row is spread over threads; `vectors` is 0 if a row does not fit into registers.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor[rank=2, ...],
        mean: OutputTensor[rank=1, ...],
        rstd: OutputTensor[dtype=mean.dtype, rank=1, ...],
        x: InputTensor[rank=2, ...],
        weight: InputTensor[...],
        bias: InputTensor[...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_norm runs on GPUs"
        comptime X = x.dtype
        comptime norm = Norm(
            Self.is_centred,
            Self.is_scaled,
            Self.is_shifted,
            Self.is_rounded,
            False,
            Float32(from_bits=UInt32(Self.epsilon)),
        )
        enqueue_norm[
            X,
            X,
            X,
            y.dtype,
            weight.dtype,
            bias.dtype,
            mean.dtype,
            norm,
            Self.width,
            Self.vectors,
            Self.lanes,
            Self.columns,
            Self.blocks,
        ](
            y.unsafe_ptr(),
            y.unsafe_ptr().unsafe_origin_cast[MutAnyOrigin]().unsafe_bitcast[Scalar[X]](),
            mean.unsafe_ptr(),
            rstd.unsafe_ptr(),
            x.unsafe_ptr().as_imm(),
            x.unsafe_ptr().as_imm(),
            weight.unsafe_ptr().as_imm(),
            bias.unsafe_ptr().as_imm(),
            x.dim_size(0),
            ctx,
        )


@extensibility.register("tmb_add_norm")
struct AddRowNorm[
    is_centred: Bool, is_scaled: Bool, is_shifted: Bool, is_rounded: Bool, epsilon: Int, width: Int, vectors: Int, lanes: Int, columns: Int, blocks: Int
]:
    """`tmb_norm` of `x + addend`, a sum of any two float dtypes that is rounded to its own and is an output, too."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor[rank=2, ...],
        total: OutputTensor[rank=2, ...],
        mean: OutputTensor[rank=1, ...],
        rstd: OutputTensor[dtype=mean.dtype, rank=1, ...],
        x: InputTensor[rank=2, ...],
        addend: InputTensor[rank=2, ...],
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
        enqueue_norm[
            total.dtype,
            x.dtype,
            addend.dtype,
            y.dtype,
            weight.dtype,
            bias.dtype,
            mean.dtype,
            norm,
            Self.width,
            Self.vectors,
            Self.lanes,
            Self.columns,
            Self.blocks,
        ](
            y.unsafe_ptr(),
            total.unsafe_ptr(),
            mean.unsafe_ptr(),
            rstd.unsafe_ptr(),
            x.unsafe_ptr().as_imm(),
            addend.unsafe_ptr().as_imm(),
            weight.unsafe_ptr().as_imm(),
            bias.unsafe_ptr().as_imm(),
            x.dim_size(0),
            ctx,
        )
