"""Attention on an NVIDIA GPU by its own library, on tensors as they lie in memory."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from std.memory import bitcast

from .cudnn_attention_graphs import Laid, Operands, attend, attend_backward
from .cudnn_graph import dense


@extensibility.register("tmb_library_attention")
struct LibraryAttention[
    is_causal: Bool,
    has_bias: Bool,
    query_inside: Bool,
    key_inside: Bool,
    value_inside: Bool,
    result_inside: Bool,
    groups: Int,
    query_at: Int,
    key_at: Int,
    value_at: Int,
]:  # fmt: skip
    """Attention of the heads of `query` to those of `key` and `value`, all of them 16-bit floats.

    A tensor is `[B, heads, length, size]`, or with its heads `inside` `[B, length, heads, size]`. In the latter there may
    be more heads: `groups` of key and value count, from `*_at` on, and as many of the query as the result has. No
    `groups` are all that the key has. The bias `[B, heads, length, keys]` may be 1 instead in all but the last; it counts
    only if `has_bias`. If it is causal, a query attends to keys up to its own number.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=4, ...],
        query: InputTensor[dtype=result.dtype, rank=4, ...],
        key: InputTensor[dtype=result.dtype, rank=4, ...],
        value: InputTensor[dtype=result.dtype, rank=4, ...],
        bias: InputTensor[dtype=result.dtype, rank=4, ...],
        scale: Float32,
        ctx: DeviceContext,
    ) raises:
        enqueue(
            result.dtype,
            Self.is_causal,
            [Self.result_inside, Self.query_inside, Self.key_inside, Self.value_inside],
            [0, Self.query_at, Self.key_at, Self.value_at],
            Self.groups,
            [sizes(result), sizes(query), sizes(key), sizes(value), sizes(bias)],
            [
                Int(result.unsafe_ptr()),
                Int(query.unsafe_ptr()),
                Int(key.unsafe_ptr()),
                Int(value.unsafe_ptr()),
                Int(bias.unsafe_ptr()) if Self.has_bias else 0,
                0,
            ],
            scale,
            ctx,
        )


@extensibility.register("tmb_library_attention_with_logarithms")
struct LibraryAttentionWithLogarithms[
    is_causal: Bool,
    has_bias: Bool,
    query_inside: Bool,
    key_inside: Bool,
    value_inside: Bool,
    result_inside: Bool,
    groups: Int,
    query_at: Int,
    key_at: Int,
    value_at: Int,
]:  # fmt: skip
    """The same, and the logarithms of the sums that rows are divided by, float32 `[B, heads, length]`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=4, ...],
        logarithms: OutputTensor[dtype=DType.float32, rank=3, ...],
        query: InputTensor[dtype=result.dtype, rank=4, ...],
        key: InputTensor[dtype=result.dtype, rank=4, ...],
        value: InputTensor[dtype=result.dtype, rank=4, ...],
        bias: InputTensor[dtype=result.dtype, rank=4, ...],
        scale: Float32,
        ctx: DeviceContext,
    ) raises:
        enqueue(
            result.dtype,
            Self.is_causal,
            [Self.result_inside, Self.query_inside, Self.key_inside, Self.value_inside],
            [0, Self.query_at, Self.key_at, Self.value_at],
            Self.groups,
            [sizes(result), sizes(query), sizes(key), sizes(value), sizes(bias)],
            [
                Int(result.unsafe_ptr()),
                Int(query.unsafe_ptr()),
                Int(key.unsafe_ptr()),
                Int(value.unsafe_ptr()),
                Int(bias.unsafe_ptr()) if Self.has_bias else 0,
                Int(logarithms.unsafe_ptr()),
            ],
            scale,
            ctx,
        )


@extensibility.register("tmb_library_attention_gradients")
struct LibraryAttentionGradients[
    is_causal: Bool,
    has_bias: Bool,
    query_inside: Bool,
    key_inside: Bool,
    value_inside: Bool,
    result_inside: Bool,
    grad_inside: Bool,
    query_at: Int,
    key_at: Int,
    value_at: Int,
]:  # fmt: skip
    """Gradients of query, key and value from the result's, `grad`; each lies in the order of what it belongs to.

    `logarithms` are what attention gave. The gradients tell the numbers of heads.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        of_query: OutputTensor[rank=4, ...],
        of_key: OutputTensor[dtype=of_query.dtype, rank=4, ...],
        of_value: OutputTensor[dtype=of_query.dtype, rank=4, ...],
        grad: InputTensor[dtype=of_query.dtype, rank=4, ...],
        query: InputTensor[dtype=of_query.dtype, rank=4, ...],
        key: InputTensor[dtype=of_query.dtype, rank=4, ...],
        value: InputTensor[dtype=of_query.dtype, rank=4, ...],
        result: InputTensor[dtype=of_query.dtype, rank=4, ...],
        logarithms: InputTensor[dtype=DType.float32, rank=3, ...],
        bias: InputTensor[dtype=of_query.dtype, rank=4, ...],
        scale: Float32,
        ctx: DeviceContext,
    ) raises:
        enqueue_gradients(
            of_query.dtype,
            Self.is_causal,
            [Self.result_inside, Self.query_inside, Self.key_inside, Self.value_inside, Self.grad_inside],
            [0, Self.query_at, Self.key_at, Self.value_at, 0],
            [
                sizes(result),
                sizes(query),
                sizes(key),
                sizes(value),
                sizes(grad),
                sizes(of_query),
                sizes(of_key),
                sizes(of_value),
                sizes(bias),
            ],
            [
                Int(result.unsafe_ptr()),
                Int(query.unsafe_ptr()),
                Int(key.unsafe_ptr()),
                Int(value.unsafe_ptr()),
                Int(grad.unsafe_ptr()),
                Int(of_query.unsafe_ptr()),
                Int(of_key.unsafe_ptr()),
                Int(of_value.unsafe_ptr()),
                Int(bias.unsafe_ptr()) if Self.has_bias else 0,
                Int(logarithms.unsafe_ptr()),
            ],
            scale,
            ctx,
        )


def sizes(x: InputTensor[rank=4, ...]) -> List[Int]:
    """The sizes in the tensor's own order."""
    return [x.dim_size(0), x.dim_size(1), x.dim_size(2), x.dim_size(3)]


def sizes(x: OutputTensor[rank=4, ...]) -> List[Int]:
    """The sizes in the tensor's own order."""
    return [x.dim_size(0), x.dim_size(1), x.dim_size(2), x.dim_size(3)]


def laid(shape: List[Int], inside: Bool, heads: Int, at: Int, address: Int) -> Laid:
    """Some heads of a tensor of 16-bit floats that has `shape` in its own order."""
    var size = shape[3]
    var whole = shape[1] * shape[2] * size
    if inside:
        return Laid([shape[0], heads, shape[1], size], [whole, size, shape[2] * size, 1], address + 2 * at * size)
    return Laid([shape[0], heads, shape[2], size], [whole, shape[2] * size, size, 1], address)


@no_inline
def enqueue(
    type: DType,
    is_causal: Bool,
    inside: List[Bool],
    at: List[Int],
    of_groups: Int,
    shapes: List[List[Int]],
    addresses: List[Int],
    scale: Float32,
    ctx: DeviceContext,
) raises:
    """Say where tensors lie. Shapes and addresses are those of result, query, key, value, bias and logarithms.

    Not part of the kernel, which is compiled for every choice of parameters.
    """
    var heads = shapes[0][2 if inside[0] else 1]
    var groups = of_groups if of_groups != 0 else shapes[2][2 if inside[2] else 1]
    var counts: List[Int] = [heads, heads, groups, groups]
    var tensors = List[Laid]()
    for i in range(4):
        tensors.append(laid(shapes[i], inside[i], counts[i], at[i], addresses[i]))
    if tensors[0].sizes[0] * tensors[0].sizes[2] == 0:
        return
    var given = operands(type, is_causal, tensors, shapes[4], addresses[4], addresses[5])
    attend(given^, Int(bitcast[DType.uint32](scale)), ctx)


@no_inline
def enqueue_gradients(
    type: DType,
    is_causal: Bool,
    inside: List[Bool],
    at: List[Int],
    shapes: List[List[Int]],
    addresses: List[Int],
    scale: Float32,
    ctx: DeviceContext,
) raises:
    """Say where tensors lie: result, query, key, value, its gradient and those of the others, bias and logarithms."""
    var heads = shapes[5][2 if inside[1] else 1]
    var groups = shapes[6][2 if inside[2] else 1]
    var counts: List[Int] = [heads, heads, groups, groups, heads]
    var tensors = List[Laid]()
    for i in range(5):
        tensors.append(laid(shapes[i], inside[i], counts[i], at[i], addresses[i]))
    for i in range(1, 4):
        tensors.append(laid(shapes[4 + i], inside[i], counts[i], 0, addresses[4 + i]))
    if tensors[0].sizes[0] * tensors[0].sizes[2] == 0:
        return
    var given = operands(type, is_causal, tensors, shapes[8], addresses[8], addresses[9])
    attend_backward(
        given^,
        tensors[4].copy(),
        tensors[5].copy(),
        tensors[6].copy(),
        tensors[7].copy(),
        Int(bitcast[DType.uint32](scale)),
        ctx,
    )


def operands(
    type: DType, is_causal: Bool, tensors: List[Laid], of_bias: List[Int], bias: Int, logarithms: Int
) -> Operands:
    """Result, query, key and value with a bias and logarithms at these addresses."""
    var rows: List[Int] = [tensors[0].sizes[0], tensors[0].sizes[1], tensors[0].sizes[2], 1]
    return Operands(
        type,
        is_causal,
        tensors[1].copy(),
        tensors[2].copy(),
        tensors[3].copy(),
        tensors[0].copy(),
        Laid(of_bias.copy(), dense(of_bias), bias),
        Laid(rows.copy(), dense(rows), logarithms),
        0,
    )
