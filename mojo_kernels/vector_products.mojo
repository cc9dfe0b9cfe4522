"""Products of one row with a matrix of 16-bit floats on a GPU, as in decoding: the matrix is read once, and that is all.

NVIDIA's library takes up to twice the time that memory needs, and for long rows a second kernel to add partial sums.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.host import DeviceContext
from max.gpu.memory import AddressSpace
from max.gpu.primitives import warp
from max.gpu.sync import barrier
from std.math import ceildiv, exp
from std.memory import unsafe_stack_allocation
from std.sys import align_of
from std.utils.static_tuple import StaticTuple

from .rows import GROUP, Partial, Results, Sum, Values, exchanged

comptime WIDTH = 8
"""Elements that a thread reads at once: 16 bytes."""
comptime AT_ONCE = 4
"""Vectors of the matrix that a thread reads before it needs the first of them."""
comptime WARPS = 8
comptime ACROSS = 4
"""Vectors of a row of a matrix `[K, N]` that a block reads: 64 bytes, so that there are blocks enough."""
comptime DEEP = 512
"""Threads of a block for such a matrix, which share `K`."""


@always_inline
def activated[activation: StaticString](x: Float32) -> Float32:
    """None, relu, or gelu (its approximation by tanh)."""
    comptime if activation == "relu":
        return Float32(0) if x < 0 else x
    comptime if activation == "gelu":
        return x / (1 + exp(Float32(-1.5957691216) * (x + Float32(0.044715) * x * x * x)))
    return x


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(WARPS * GROUP)))
def multiply_rows[
    T: DType, has_bias: Bool, activation: StaticString
](y: Results[T], x: Values[T], b: Values[T], bias: Values[T], columns: Int32, depth_: Int32):
    """`b` is `[N, K]`: a warp for each of its rows."""
    comptime F = DType.float32
    comptime aligned = align_of[SIMD[T, WIDTH]]()
    comptime step = GROUP * WIDTH
    var depth = Int(depth_)
    var column = Int(block_idx.x) * WARPS + Int(thread_idx.x) // GROUP
    if column >= Int(columns):
        return  # the whole warp
    var row = b.unsafe_offset(column * depth)
    var sums = SIMD[F, WIDTH](0)
    for group in range(Int(thread_idx.x) % GROUP * WIDTH, depth, AT_ONCE * step):
        var held = unsafe_stack_allocation[AT_ONCE, SIMD[T, WIDTH]]()
        comptime for i in range(AT_ONCE):
            held[unsafe_offset=i] = row.unsafe_load[width=WIDTH, alignment=aligned](min(group + i * step, depth - WIDTH))
        comptime for i in range(AT_ONCE):
            if group + i * step < depth:
                var other = x.unsafe_load[width=WIDTH, alignment=aligned](group + i * step)
                sums = held[unsafe_offset=i].cast[F]().fma(other.cast[F](), sums)
    var total = exchanged[Sum, GROUP](Partial(sums.reduce_add(), 0, 0, 0))[0]
    if Int(thread_idx.x) % GROUP == 0:
        comptime if has_bias:
            total += bias[unsafe_offset=column].cast[F]()
        y[unsafe_offset=column] = activated[activation](total).cast[T]()


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(DEEP)))
def multiply_columns[
    T: DType, has_bias: Bool, activation: StaticString
](y: Results[T], x: Values[T], b: Values[T], bias: Values[T], columns_: Int32, depth_: Int32):
    """`b` is `[K, N]`: a block for `ACROSS` vectors of columns; its threads take rows in turns."""
    comptime F = DType.float32
    comptime aligned = align_of[SIMD[T, WIDTH]]()
    comptime step = DEEP // ACROSS
    comptime warps = DEEP // GROUP
    var columns, depth = Int(columns_), Int(depth_)
    var thread = Int(thread_idx.x)
    var first = Int(block_idx.x) * ACROSS * WIDTH
    var column = min(first + thread % ACROSS * WIDTH, columns - WIDTH)
    var sums = SIMD[F, WIDTH](0)
    for group in range(thread // ACROSS, depth, AT_ONCE * step):
        var held = unsafe_stack_allocation[AT_ONCE, SIMD[T, WIDTH]]()
        comptime for i in range(AT_ONCE):
            held[unsafe_offset=i] = b.unsafe_load[width=WIDTH, alignment=aligned](
                min(group + i * step, depth - 1) * columns + column
            )
        comptime for i in range(AT_ONCE):
            if group + i * step < depth:
                var other = x[unsafe_offset=group + i * step].cast[F]()
                sums = held[unsafe_offset=i].cast[F]().fma(SIMD[F, WIDTH](other), sums)
    var shared = unsafe_stack_allocation[warps * ACROSS * WIDTH, Float32, address_space=AddressSpace.SHARED]()
    comptime for i in range(WIDTH):
        var value = sums[i]
        comptime for k in range(3):  # the 8 threads of a warp that have the same columns
            value += warp.shuffle_xor(value, UInt32(ACROSS << k))
        if thread % GROUP < ACROSS:
            shared[unsafe_offset=(thread // GROUP * ACROSS + thread % ACROSS) * WIDTH + i] = value
    barrier()
    if thread < ACROSS * WIDTH and first + thread < columns:
        var total = Float32(0)
        comptime for k in range(warps):
            total += shared[unsafe_offset=k * ACROSS * WIDTH + thread]
        comptime if has_bias:
            total += bias[unsafe_offset=first + thread].cast[F]()
        y[unsafe_offset=first + thread] = activated[activation](total).cast[T]()


@extensibility.register("tmb_vector_product")
struct VectorProduct[transposed: Bool, has_bias: Bool, activation: StaticString]:
    """`activation(x @ b + bias)`, rounded once: `x` `[K]`, `b` `[K, N]`, or `[N, K]` if transposed, the rest `[N]`.

    Rows of `b` begin at multiples of 16 bytes. Sums are in float32. `bias` is not read without `has_bias`.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor[rank=1, ...],
        x: InputTensor[dtype=y.dtype, rank=1, ...],
        b: InputTensor[dtype=y.dtype, rank=2, ...],
        bias: InputTensor[dtype=y.dtype, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target != "cpu", "tmb_vector_product runs on GPUs"
        var columns, depth = y.dim_size(0), x.dim_size(0)
        comptime if Self.transposed:
            ctx.enqueue_function[multiply_rows[y.dtype, Self.has_bias, Self.activation]](
                y.unsafe_ptr(),
                x.unsafe_ptr().as_imm(),
                b.unsafe_ptr().as_imm(),
                bias.unsafe_ptr().as_imm(),
                Int32(columns),
                Int32(depth),
                grid_dim=ceildiv(columns, WARPS),
                block_dim=WARPS * GROUP,
            )
        else:
            ctx.enqueue_function[multiply_columns[y.dtype, Self.has_bias, Self.activation]](
                y.unsafe_ptr(),
                x.unsafe_ptr().as_imm(),
                b.unsafe_ptr().as_imm(),
                bias.unsafe_ptr().as_imm(),
                Int32(columns),
                Int32(depth),
                grid_dim=ceildiv(columns, ACROSS * WIDTH),
                block_dim=DEEP,
            )
