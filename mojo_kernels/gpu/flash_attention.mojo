"""Attention on a GPU that never stores its scores, by the flash kernels that come with MAX.

Tensors are `[batch, length, heads, size]`. Heads and their size are known when a graph is compiled; 16-bit floats are
summed in float32. Heads of the query share heads of key and value in groups. MAX's flash kernels for AMD's
GPUs do not compile for gfx942: there its plain one, which stores scores, is called instead.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from kv_cache.types import kv_sub_tile_rows
from layout import Coord, Idx, TensorLayout, TileTensor, row_major
from layout.tile_layout import Layout
from max.gpu import global_idx
from max.gpu.host import DeviceBuffer, DeviceContext
from max.gpu.host.info import H100
from max.gpu.host.nvidia.tma import TensorMapSwizzle
from nn.attention.gpu.mha import flash_attention
from nn.attention.gpu.nvidia.common import ImmutTileTensor1D
from nn.attention.gpu.nvidia.mha_tile_scheduler import TransientScheduler
from nn.attention.gpu.nvidia.sm90.mha import _mha_sm90_sink_dispatch
from nn.attention.mha_mask import CausalMask, MaterializedMask, MHAMask, NullMask
from nn.attention.mha_operand import TileTensorMHAOperand
from nn.attention.mha_utils import DynamicInt, MHAConfig, NoPartition
from std.collections import OptionalReg
from std.math import ceildiv


def config_of[T: DType, heads: Int, size: Int, is_hopper: Bool]() -> MHAConfig[T]:
    """The tiles of a kernel.

    MAX takes 64 keys at a time for heads of 64. On an H200, 128 keys took 0.89 of that time for 1024 of them and 0.80
    for 4096.
    """
    comptime if is_hopper and size == 64:
        return MHAConfig[T](heads, size, num_keys_per_block=128, num_pipeline_stages=2)
    else:
        return MHAConfig[T](heads, size)


@extensibility.register("tmb_flash_attention")
struct FlashAttention[is_causal: Bool]:
    """Attention of every query to all keys, or to those up to its own position counted from the end of the keys."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=4, ...],
        query: InputTensor[dtype=result.dtype, rank=4, ...],
        key: InputTensor[dtype=result.dtype, rank=4, ...],
        value: InputTensor[dtype=result.dtype, rank=4, ...],
        scale: Float32,
        ctx: DeviceContext,
    ) raises:
        var out = result.to_tile_tensor[DType.int64]()
        var q = query.to_tile_tensor[DType.int64]()
        var k = key.to_tile_tensor[DType.int64]()
        var v = value.to_tile_tensor[DType.int64]()
        comptime is_hopper = ctx.default_device_info == H100
        comptime has_flash = ctx.default_device_info.api == "cuda"
        comptime config = config_of[result.dtype, type_of(q).static_shape[2], type_of(q).static_shape[3], is_hopper]()
        comptime if Self.is_causal:
            flash_attention[config=config, naive_kernel=not has_flash](out, q, k, v, CausalMask(), scale, ctx)
        else:
            flash_attention[config=config, naive_kernel=not has_flash](out, q, k, v, NullMask(), scale, ctx)


@extensibility.register("tmb_biased_attention")
struct BiasedAttention:
    """Attention whose scaled scores get `bias` added, `[batch, heads, length, keys]`; all but keys may be 1 instead.

    The bias must be finite, and there must be no more queries than keys.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=4, ...],
        query: InputTensor[dtype=result.dtype, rank=4, ...],
        key: InputTensor[dtype=result.dtype, rank=4, ...],
        value: InputTensor[dtype=result.dtype, rank=4, ...],
        bias: InputTensor[rank=4, ...],
        scale: Float32,
        ctx: DeviceContext,
    ) raises:
        var out = result.to_tile_tensor[DType.int64]()
        var q = query.to_tile_tensor[DType.int64]()
        var k = key.to_tile_tensor[DType.int64]()
        var v = value.to_tile_tensor[DType.int64]()
        var keys = key.dim_size(1)
        # A size of 1 is read again and again, by a step of 0: the bias need not be spread out in memory.
        var row = 0 if bias.dim_size(2) == 1 else keys
        var head = 0 if bias.dim_size(1) == 1 else bias.dim_size(2) * keys
        var item = 0 if bias.dim_size(0) == 1 else bias.dim_size(1) * bias.dim_size(2) * keys
        var spread = TileTensor(
            bias.to_tile_tensor[DType.int64]().ptr,
            Layout(
                Coord(query.dim_size(0), query.dim_size(2), query.dim_size(1), keys), Coord(item, head, row, Idx[1])
            ),
        )
        comptime is_hopper = ctx.default_device_info == H100
        comptime has_flash = ctx.default_device_info.api == "cuda"
        comptime config = config_of[result.dtype, type_of(q).static_shape[2], type_of(q).static_shape[3], is_hopper]()
        flash_attention[config=config, naive_kernel=not has_flash](
            out, q, k, v, MaterializedMask(spread.as_imm()), scale, ctx
        )


# -- slices of larger tensors ------------------------------------------------------------------------------------------
@extensibility.register("tmb_sliced_attention")
struct SlicedAttention[is_causal: Bool, groups: Int, query_at: Int, key_at: Int, value_at: Int]:
    """Attention of some heads of `query` to `groups` heads of `key` and `value`, counted from `*_at`, where they are.

    The result tells the number and the size of the heads. Queries are as many as keys.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=4, ...],
        query: InputTensor[dtype=result.dtype, rank=4, ...],
        key: InputTensor[dtype=result.dtype, rank=4, ...],
        value: InputTensor[dtype=result.dtype, rank=4, ...],
        scale: Float32,
        ctx: DeviceContext,
    ) raises:
        comptime if Self.is_causal:
            Self.run(result, query, key, value, CausalMask(), scale, ctx)
        else:
            Self.run(result, query, key, value, NullMask(), scale, ctx)

    @staticmethod
    def run[
        M: MHAMask, //
    ](
        result: OutputTensor[rank=4, ...],
        query: InputTensor[dtype=result.dtype, rank=4, ...],
        key: InputTensor[dtype=result.dtype, rank=4, ...],
        value: InputTensor[dtype=result.dtype, rank=4, ...],
        mask: M,
        scale: Float32,
        ctx: DeviceContext,
    ) raises:
        var out = result.to_tile_tensor[DType.int64]()
        comptime heads = type_of(out).static_shape[2]
        comptime size = type_of(out).static_shape[3]
        var q = query.to_tile_tensor[DType.int64]()
        var k = key.to_tile_tensor[DType.int64]()
        var v = value.to_tile_tensor[DType.int64]()
        var q_heads = TileTensor(q.ptr.unsafe_offset(Self.query_at * size), row_major(q.layout.shape_coord())).as_imm()
        var k_heads = TileTensor(k.ptr.unsafe_offset(Self.key_at * size), row_major(k.layout.shape_coord())).as_imm()
        var v_heads = TileTensor(v.ptr.unsafe_offset(Self.value_at * size), row_major(v.layout.shape_coord())).as_imm()
        comptime if ctx.default_device_info == H100:
            # The kernel reads blocks of (rows, heads, columns) through descriptors, and never asks for a head that is
            # not there. So a tensor of more heads that begins at the first one wanted will do.
            comptime config = config_of[result.dtype, heads, size, True]()
            comptime swizzle = TensorMapSwizzle.SWIZZLE_128B
            var of_queries = TileTensorMHAOperand(q_heads)
            var of_keys = TileTensorMHAOperand(k_heads)
            comptime rows = kv_sub_tile_rows(config.block_n(), type_of(of_keys).page_size)
            _mha_sm90_sink_dispatch[
                SchedulerType=TransientScheduler[
                    UInt32(config.block_m()), UInt32(heads), flip_prompt_idx=Self.is_causal
                ],
                KVLUTType=type_of(of_keys),
                output_type=result.dtype,
                MaxSeqLenType=DynamicInt,
                PartitionType=NoPartition[DType.float32],
                MaskType=M,
                config=config,
                group=heads // Self.groups,
                ragged=False,
                sink=False,
                _is_cache_length_accurate=True,
                swizzle_mode=swizzle,
            ](
                {},
                of_queries.create_tma_tile[
                    swizzle, BN=config.block_m(), depth=config.depth, BK=config.padded_depth
                ](ctx),
                of_keys.create_tma_tile[swizzle, BN=rows, depth=config.depth, BK=config.padded_depth](ctx),
                TileTensorMHAOperand(v_heads).create_tma_tile[
                    swizzle, BN=rows, depth=config.depth, BK=config.padded_depth
                ](ctx),
                out.to_device_buffer(ctx),
                of_keys,
                scale,
                UInt32(query.dim_size(0)),
                DynamicInt(query.dim_size(1)),
                UInt32(key.dim_size(1)),
                DeviceBuffer[DType.uint32].empty(ctx),
                OptionalReg[ImmutTileTensor1D[DType.uint32]](None),
                OptionalReg[ImmutTileTensor1D[result.dtype]](None),
                NoPartition[DType.float32](),
                mask,
                ctx,
            )
        else:
            var items = query.dim_size(0)
            var length = query.dim_size(1)
            var q_copy = copied(q_heads.ptr, items * length, query.dim_size(2) * size, heads * size, ctx)
            var k_copy = copied(k_heads.ptr, items * length, key.dim_size(2) * size, Self.groups * size, ctx)
            var v_copy = copied(v_heads.ptr, items * length, value.dim_size(2) * size, Self.groups * size, ctx)
            var shape = Coord(items, length, Idx[heads], Idx[size])
            var shape_of_keys = Coord(items, length, Idx[Self.groups], Idx[size])
            comptime has_flash = ctx.default_device_info.api == "cuda"
            flash_attention[naive_kernel=not has_flash](
                out,
                TileTensor(q_copy, row_major(shape)).as_imm(),
                TileTensor(k_copy, row_major(shape_of_keys)).as_imm(),
                TileTensor(v_copy, row_major(shape_of_keys)).as_imm(),
                mask,
                scale,
                ctx,
            )


def copied[
    T: DType, //
](
    x: Pointer[Scalar[T], _], rows: Int, width: Int, columns: Int, ctx: DeviceContext, out result: DeviceBuffer[T]
) raises:
    """The first columns of rows of `width` elements."""
    comptime THREADS = 256
    result = ctx.enqueue_create_buffer[T](rows * columns)
    var source = x.unsafe_mut_cast[True]().unsafe_origin_cast[MutAnyOrigin]()
    ctx.enqueue_function[copy_columns[T]](
        result,
        DeviceBuffer[T](ctx, source, rows * width, owning=False),
        Int64(rows * columns),
        Int64(width),
        Int64(columns),
        grid_dim=ceildiv(rows * columns, THREADS),
        block_dim=THREADS,
    )


def copy_columns[
    T: DType
](
    result: Pointer[Scalar[T], MutAnyOrigin],
    x: Pointer[Scalar[T], MutAnyOrigin],
    count: Int64,
    width: Int64,
    columns: Int64,
):
    var i = Int(global_idx.x)
    if i < Int(count):
        result[unsafe_offset=i] = x[unsafe_offset=i // Int(columns) * Int(width) + i % Int(columns)]
