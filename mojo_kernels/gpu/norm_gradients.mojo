"""Gradients of layer and RMS norms of the rows of a matrix on a GPU: each row is read once and written once.

A row stays in the registers of the threads that share it. They go through several rows, and add up what the weight and
the bias get; the sums of all threads are added up later.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.host import DeviceContext
from max.gpu.sync import barrier
from std.math import ceildiv
from std.memory import unsafe_stack_allocation
from std.sys import align_of
from std.utils.static_tuple import StaticTuple

from .norms import part
from .row_threads import GROUP, Partial, Reduction, Results, Row, Values, across


struct TwoSums(Reduction):
    """Two sums."""

    comptime used = 2

    @staticmethod
    @always_inline
    def joined(a: Partial, b: Partial) -> Partial:
        return Partial(a[0] + b[0], a[1] + b[1], 0, 0)


@fieldwise_init
struct NormGradient(TrivialRegisterPassable):
    """What is computed, apart from sizes and dtypes."""

    var is_centred: Bool
    """Whether it is a layer norm's gradient; else it is an RMS norm's."""
    var is_scaled: Bool
    """Whether there is a weight."""
    var is_added: Bool
    """Whether the gradient is added to another one."""
    var is_copied: Bool
    """Whether the result is wanted in a second dtype, too."""


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(threads)))
def gradient_of_norm[
    D: DType,
    C: DType,
    G: DType,
    X: DType,
    A: DType,
    W: DType,
    M: DType,
    norm: NormGradient,
    each: Int,
    width: Int,
    vectors: Int,
    lanes: Int,
    columns: Int,
    threads: Int,
](
    dx: Results[D],
    copy: Results[C],
    sums: Results[DType.float32],
    grad: Values[G],
    x: Values[X],
    mean_: Values[M],
    rstd_: Values[M],
    weight: Values[W],
    addend: Values[A],
    rows_: Int32,
    pieces: Int32,
):
    """`each` rows for every `lanes` threads of a block, one after the other."""
    comptime F = SIMD[DType.float32, width]
    comptime Mine = Row[width, vectors, lanes, columns]
    comptime parts = 2 if norm.is_centred else 1
    var rows = Int(rows_)
    var piece = Int(block_idx.x) * (threads // lanes) + Int(thread_idx.x) // lanes
    var first = Mine.first()
    var scales = unsafe_stack_allocation[vectors, SIMD[W, width]]()
    var of_weight = unsafe_stack_allocation[vectors, F]()
    var of_bias = unsafe_stack_allocation[vectors, F]()
    comptime for i in range(vectors):
        scales[unsafe_offset=i] = part[W, width, norm.is_scaled](weight, Mine.place[i](first))
        of_weight[unsafe_offset=i] = 0
        of_bias[unsafe_offset=i] = 0
    for k in range(each):
        var row = piece * each + k
        var is_inside = row < rows
        row = min(row, rows - 1)
        var start = row * columns
        var grads = unsafe_stack_allocation[vectors, SIMD[G, width]]()
        var held = unsafe_stack_allocation[vectors, SIMD[X, width]]()
        var others = unsafe_stack_allocation[vectors, SIMD[A, width]]()
        comptime for i in range(vectors):
            grads[unsafe_offset=i] = part[G, width, True](grad, start + Mine.place[i](first))
            held[unsafe_offset=i] = part[X, width, True](x, start + Mine.place[i](first))
            others[unsafe_offset=i] = part[A, width, norm.is_added](addend, start + Mine.place[i](first))
        var rstd = rstd_[unsafe_offset=row].cast[DType.float32]()
        var mean = Float32(0)
        comptime if norm.is_centred:
            mean = mean_[unsafe_offset=row].cast[DType.float32]()
        var normals = unsafe_stack_allocation[vectors, F]()
        var scaled = unsafe_stack_allocation[vectors, F]()
        var total = F(0)
        var along = F(0)
        comptime for i in range(vectors):
            var g = grads[unsafe_offset=i].cast[DType.float32]()
            var normal = (held[unsafe_offset=i].cast[DType.float32]() - mean) * rstd
            var s = g
            comptime if norm.is_scaled:
                s *= scales[unsafe_offset=i].cast[DType.float32]()
            if Mine.has[i](first):
                total += s
                along += s * normal
                if is_inside:
                    of_weight[unsafe_offset=i] += g * normal
                    of_bias[unsafe_offset=i] += g
            normals[unsafe_offset=i] = normal
            scaled[unsafe_offset=i] = s
        var both = across[TwoSums, lanes, threads](Partial(total.reduce_add(), along.reduce_add(), 0, 0))
        comptime if lanes > GROUP:
            barrier()  # the next row's sums take the same shared memory
        var away = both[0] / Float32(columns) if norm.is_centred else Float32(0)
        var slope = both[1] / Float32(columns)
        comptime for i in range(vectors):
            if is_inside and Mine.has[i](first):
                var y = (scaled[unsafe_offset=i] - away - normals[unsafe_offset=i] * slope) * rstd
                comptime if norm.is_added:
                    y = y.cast[D]().cast[DType.float32]() + others[unsafe_offset=i].cast[DType.float32]()
                var place = start + Mine.place[i](first)
                dx.unsafe_store[alignment = align_of[SIMD[D, width]]()](place, y.cast[D]())
                comptime if norm.is_copied:
                    copy.unsafe_store[alignment = align_of[SIMD[C, width]]()](place, y.cast[D]().cast[C]())
    if piece < Int(pieces):
        comptime for i in range(vectors):
            if Mine.has[i](first):
                var place = piece * (parts * columns) + Mine.place[i](first)
                comptime aligned = align_of[F]()
                sums.unsafe_store[alignment=aligned](place, of_weight[unsafe_offset=i])
                comptime if norm.is_centred:
                    sums.unsafe_store[alignment=aligned](place + columns, of_bias[unsafe_offset=i])


@extensibility.register("tmb_norm_gradient")
struct RowNormGradient[
    is_centred: Bool, is_scaled: Bool, is_added: Bool, is_copied: Bool, each: Int, width: Int, vectors: Int, lanes: Int, columns: Int
]:
    """What is in front of a norm of rows, and the sums for its weight and, of a layer norm, its bias.

    `dx` [rows, columns] is the gradient of `x`, rounded, plus `addend`, if that is added; `copy` is `dx` in another
    dtype, if it is copied, or else is left as it is. `sums` [1, pieces, columns or twice as many] are of `each` rows each.
    `weight`, `mean` and `addend` may be anything where they are not used. `width`, `vectors` and `lanes` say how a row
    is spread over threads, which keep it.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        dx: OutputTensor[rank=2, ...],
        copy: OutputTensor[rank=2, ...],
        sums: OutputTensor[dtype=DType.float32, rank=3, ...],
        grad: InputTensor[rank=2, ...],
        x: InputTensor[rank=2, ...],
        mean: InputTensor[rank=1, ...],
        rstd: InputTensor[dtype=mean.dtype, rank=1, ...],
        weight: InputTensor[...],
        addend: InputTensor[rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_norm_gradient runs on GPUs"
        comptime norm = NormGradient(Self.is_centred, Self.is_scaled, Self.is_added, Self.is_copied)
        comptime threads = max(Self.lanes, 128)
        var pieces = sums.dim_size(1)
        if pieces == 0:
            return
        ctx.enqueue_function[
            gradient_of_norm[
                dx.dtype,
                copy.dtype,
                grad.dtype,
                x.dtype,
                addend.dtype,
                weight.dtype,
                mean.dtype,
                norm,
                Self.each,
                Self.width,
                Self.vectors,
                Self.lanes,
                Self.columns,
                threads,
            ]
        ](
            dx.unsafe_ptr(),
            copy.unsafe_ptr(),
            sums.unsafe_ptr(),
            grad.unsafe_ptr().as_imm(),
            x.unsafe_ptr().as_imm(),
            mean.unsafe_ptr().as_imm(),
            rstd.unsafe_ptr().as_imm(),
            weight.unsafe_ptr().as_imm(),
            addend.unsafe_ptr().as_imm(),
            Int32(x.dim_size(0)),
            Int32(pieces),
            grid_dim=ceildiv(pieces, threads // Self.lanes),
            block_dim=threads,
        )
