"""Scaled dot product attention: torch's fused ops for CPUs and GPUs, forward and backward.

Inputs are ``query [B, H, S, E]``, ``key [B, G, T, E]`` and ``value [B, G, T, F]``, where ``G`` divides ``H``: a group
of query heads shares one key head. All of it is computed in float32 for 16-bit floats and rounded once, except by the
kernels of `cudnn_attention.py` and `flash_attention.py`, which 16-bit attention on a GPU uses.
"""

from __future__ import annotations

import math

from max.dtype import DType
from max.graph import DeviceRef, Dim, TensorType, TensorValue, ops

from torch_max_backend.aten_functions.matmul.products import check_product, product, wide_product
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.axis_reductions import largest, sum_along
from torch_max_backend.aten_functions.support.cudnn_attention import (
    attend_by_library,
    gradients_by_library,
    suits_library,
    suits_library_gradients,
)
from torch_max_backend.aten_functions.support.dtypes import Operand, accumulator
from torch_max_backend.aten_functions.support.flash_attention import flash, suits_flash
from torch_max_backend.aten_functions.support.node_context import is_used, out_dtype, out_shape, promise, settings
from torch_max_backend.aten_functions.support.tensor_ops import (
    broadcast_to,
    cast,
    constant,
    full,
    permute,
    reshape,
    static,
    tensor,
)
from torch_max_backend.base.errors import Unsupported

INF = float("inf")


# -- scores and their softmax ----------------------------------------------------------------------------------------
def _check(query: TensorValue, key: TensorValue, dropout_p: Operand) -> None:
    if isinstance(dropout_p, TensorValue) or dropout_p != 0:
        raise Unsupported(f"attention without dropout, got dropout_p={dropout_p}")
    if query.rank != 4:
        raise Unsupported(f"attention of [batch, heads, length, size] tensors, got {query.rank} dimensions")
    heads, groups = static(query.shape[1]), static(key.shape[1])
    if query.shape[1] != key.shape[1] and (heads is None or not groups or heads % groups):
        raise Unsupported(f"key heads must divide query heads, got {key.shape[1]} for {query.shape[1]}")
    check_product(query.dtype, query.device)


def _scale(query: TensorValue, scale: Operand | None, dtype: DType) -> TensorValue:
    if scale is not None:
        return tensor(scale, dtype, query.device)
    size = static(query.shape[-1])
    if size is None:
        return ops.rsqrt(tensor(query.shape[-1], dtype, query.device))
    return constant(1.0 / math.sqrt(size), dtype, query.device)


def _grouped(x: TensorValue, key: TensorValue) -> TensorValue:
    """``[B, H, S, X]`` as ``[B * G, H / G * S, X]``: the query heads of a group share one product."""
    batch, heads, length, size = x.shape
    groups = key.shape[1]
    return reshape(x, [batch * groups, _shared(heads, groups) * length, size])


def _shared(heads: Dim, groups: Dim) -> Dim:
    return Dim(1) if heads == groups else heads // groups


def _flat(x: TensorValue) -> TensorValue:
    """``[B, G, T, X]`` as ``[B * G, T, X]``."""
    return reshape(x, [x.shape[0] * x.shape[1], *x.shape[2:]])


def _biases(mask: TensorValue | None, is_causal: bool, query: TensorValue, key: TensorValue) -> list[TensorValue]:
    """What is added to the scores, of shapes that broadcast to them: minus infinity where nothing is attended."""
    device, dtype = query.device, accumulator(query.dtype)
    biases: list[TensorValue] = []
    if mask is not None and mask.dtype == DType.bool:
        biases.append(ops.where(mask, constant(0, dtype, device), constant(-INF, dtype, device)))
    elif mask is not None:
        biases.append(cast(mask, dtype))
    if is_causal:
        # The logarithm of a triangle of ones. Comparing a row of numbers with a column would be a broadcast that is
        # broadcast again, which MAX gets wrong for symbolic sizes.
        biases.append(ops.log(ops.band_part(full(1, [query.shape[2], key.shape[2]], dtype, device), None, 0)))
    return biases


def _scores(query: TensorValue, key: TensorValue, biases: list[TensorValue], scale: Operand | None) -> TensorValue:
    """``query @ key^T * scale + biases`` as ``[B, H, S, T]``, in the dtype to compute in."""
    scores = wide_product(_grouped(query, key), permute(_flat(key), [0, 2, 1]))
    scores = ops.mul(scores, _scale(query, scale, scores.dtype))
    scores = reshape(scores, [*query.shape[:3], key.shape[2]])
    for bias in biases:
        scores = ops.add(scores, bias)
    return scores


def _weighted(weights: TensorValue, value: TensorValue) -> TensorValue:
    """``weights [B, H, S, T] @ value``, in the dtype of ``weights``."""
    rows = product(_grouped(weights, value), cast(_flat(value), weights.dtype))
    return reshape(rows, [*weights.shape[:3], value.shape[3]])


def _attend(
    query: TensorValue, key: TensorValue, value: TensorValue, biases: list[TensorValue], scale: Operand | None
) -> tuple[TensorValue, TensorValue]:
    """The output and the logarithm of every row's sum ``[B, H, S]``; both 0 for a row that attends to nothing."""
    scores = _scores(query, key, biases, scale)
    dtype, device = scores.dtype, scores.device
    zero, one = constant(0, dtype, device), constant(1, dtype, device)
    top = largest(scores, -1)
    top = ops.where(ops.equal(top, constant(-INF, dtype, device)), zero, top)
    weights = ops.exp(ops.sub(scores, top))
    total = sum_along(weights, axis=-1)
    nothing = ops.equal(total, zero)
    total = ops.where(nothing, one, total)
    out = ops.div(_weighted(weights, value), total)
    return out, ops.squeeze(ops.where(nothing, zero, ops.add(top, ops.log(total))), -1)


# -- MAX's fused kernel for CPUs -------------------------------------------------------------------------------------
def _flash_cpu(
    query: TensorValue, key: TensorValue, value: TensorValue, bias: TensorValue | None, scale: Operand | None
) -> TensorValue:
    """Attention by MAX's tiled CPU kernel, which takes ``[B, S, H, E]`` and never stores the scores."""
    q, k, v = (permute(x, [0, 2, 1, 3]) for x in (query, key, value))
    cpu = DeviceRef.CPU()
    factor = _scale(query, scale, query.dtype)
    out = TensorType(query.dtype, q.shape, cpu)
    if bias is None:
        result = ops.custom("mo.composite.no_mask_flash_attention_cpu", cpu, [q, k, v, factor], [out])
        return permute(result[0].tensor, [0, 2, 1, 3])
    wide = broadcast_to(bias, [query.shape[0], query.shape[1], query.shape[2], key.shape[2]])
    result = ops.custom("mo.composite.masked_flash_attention_cpu", cpu, [q, k, v, wide, factor], [out])
    return permute(result[0].tensor, [0, 2, 1, 3])


def _attends(mask: TensorValue) -> TensorValue:
    """Which rows of a mask attend to anything: torch gives 0 for the others, MAX's fused kernel NaN."""
    dtype = DType.float32
    seen = ops.not_equal(mask, constant(-INF, mask.dtype, mask.device))
    return ops.greater(largest(cast(seen, dtype), -1), constant(0, dtype, mask.device))


def _suits_flash_cpu(query: TensorValue, key: TensorValue, value: TensorValue, biases: list[TensorValue]) -> bool:
    """Whether MAX's CPU kernel can compute this: it knows neither groups of heads nor 16-bit sums in float32.

    With symbolic sizes it reads a mask that has a batch of its own at wrong places.
    """
    sizes_known = all(static(d) is not None for x in (query, key) for d in x.shape)
    return (
        query.device.is_cpu()
        and (not biases or (sizes_known and len(biases) == 1))
        and query.dtype == DType.float32
        and query.shape[1] == key.shape[1]
        and query.shape[3] == value.shape[3]
    )


def _attention(
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    mask: TensorValue | None,
    dropout_p: Operand,
    is_causal: bool,
    scale: Operand | None,
) -> tuple[TensorValue, TensorValue | None]:
    """Output in the query's dtype, and the rows' logarithms in the dtype to compute in if they are read."""
    _check(query, key, dropout_p)
    if any(static(d) == 0 for x in (query, key, value) for d in x.shape):
        wide = accumulator(query.dtype)
        return (
            full(0, [*query.shape[:3], value.shape[3]], query.dtype, query.device),
            full(0, query.shape[:3], wide, query.device),
        )
    if suits_library(query, key, value, mask, is_causal, scale):
        return attend_by_library(query, key, value, mask, is_causal, scale, is_used(1))
    if not is_used(1) and suits_flash(query, key, value, mask, is_causal, scale):
        return flash(query, key, value, mask, is_causal, scale), None
    biases = _biases(mask, is_causal, query, key)
    if not is_used(1) and _suits_flash_cpu(query, key, value, biases):
        out = _flash_cpu(query, key, value, biases[0] if biases else None, scale)
        if mask is not None:
            rows = broadcast_to(_attends(biases[0]), out.shape)
            out = ops.where(rows, out, constant(0, out.dtype, out.device))
        return out, None
    out, logarithms = _attend(query, key, value, biases, scale)
    return cast(out, query.dtype), logarithms


# -- the ops ---------------------------------------------------------------------------------------------------------
# scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.,
#   bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor
@map_to(aten.scaled_dot_product_attention.default, limits="GPU, without gradients: elsewhere torch takes it apart")
def scaled_dot_product_attention(
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    attn_mask: TensorValue | None = None,
    dropout_p: Operand = 0.0,
    is_causal: bool = False,
    *,
    scale: Operand | None = None,
    enable_gqa: bool = False,
) -> TensorValue:
    """The op as a program calls it. With ``enable_gqa`` several heads of the query share one of the keys."""
    if not query.rank == key.rank == value.rank or query.rank not in (3, 4):
        raise Unsupported(f"attention of [batch, heads, length, size] tensors, got {query.rank} dimensions")
    if query.shape[0] != key.shape[0] or key.shape[:-2] != value.shape[:-2]:
        raise Unsupported("attention of tensors of one batch")
    if query.rank == 3:
        query, key, value = (ops.unsqueeze(x, 1) for x in (query, key, value))
        attn_mask = ops.unsqueeze(attn_mask, 1) if attn_mask is not None and attn_mask.rank == 3 else attn_mask
        out = _attention(query, key, value, attn_mask, dropout_p, is_causal, scale)[0]
        return reshape(out, out_shape())
    return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale)[0]


# _scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0.,
#   bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)
@map_to(aten._scaled_dot_product_flash_attention_for_cpu.default, limits="no dropout")
def _scaled_dot_product_flash_attention_for_cpu(
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    dropout_p: Operand = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: TensorValue | None = None,
    scale: Operand | None = None,
) -> tuple[TensorValue, TensorValue | None]:
    out, logarithms = _attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return out, logarithms if logarithms is None else cast(logarithms, out_dtype(1))


def _gradients(
    grad: TensorValue,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    out: TensorValue,
    logarithms: TensorValue,
    biases: list[TensorValue],
    scale: Operand | None,
) -> tuple[TensorValue, TensorValue, TensorValue, TensorValue]:
    """Gradients of query, key, value and of the scores before scaling, from the rows' saved logarithms."""
    wide = accumulator(query.dtype)
    g, o = cast(grad, wide), cast(out, wide)
    weights = ops.exp(ops.sub(_scores(query, key, biases, scale), ops.unsqueeze(cast(logarithms, wide), -1)))
    shape = [query.shape[0], query.shape[1], query.shape[2], key.shape[2]]
    grad_value = product(permute(_grouped(weights, value), [0, 2, 1]), _grouped(g, value))
    grad_weights = reshape(product(_grouped(g, value), permute(cast(_flat(value), wide), [0, 2, 1])), shape)
    grad_scores = ops.mul(weights, ops.sub(grad_weights, sum_along(ops.mul(g, o), axis=-1)))
    scaled = ops.mul(grad_scores, _scale(query, scale, wide))
    grad_query = product(_grouped(scaled, key), cast(_flat(key), wide))
    grad_key = product(permute(_grouped(scaled, key), [0, 2, 1]), cast(_grouped(query, key), wide))
    return (
        reshape(grad_query, query.shape),
        reshape(grad_key, key.shape),
        reshape(grad_value, value.shape),
        grad_scores,
    )


def _backward(
    grad: TensorValue,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    out: TensorValue,
    logarithms: TensorValue,
    dropout_p: Operand,
    is_causal: bool,
    mask: TensorValue | None,
    scale: Operand | None,
) -> tuple[TensorValue, ...]:
    """Gradients of query, key and value, from the rows' saved logarithms ``[B, H, S]``."""
    _check(query, key, dropout_p)
    if any(static(d) == 0 for x in (query, key, value) for d in x.shape):
        return tuple(full(0, out_shape(i), out_dtype(i), query.device) for i in range(3))
    if suits_library_gradients(query, key, value, mask, is_causal, scale) and not settings().deterministic:
        return gradients_by_library(grad, query, key, value, out, logarithms, mask, is_causal, scale)
    biases = _biases(mask, is_causal, query, key)
    grads = _gradients(grad, query, key, value, out, logarithms, biases, scale)[:3]
    return tuple(cast(g, out_dtype(i)) for i, g in enumerate(grads))


# _scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value,
#   Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, float? scale=None)
#   -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)
@map_to(aten._scaled_dot_product_flash_attention_for_cpu_backward.default, limits="no dropout")
def _scaled_dot_product_flash_attention_for_cpu_backward(
    grad_out: TensorValue,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    out: TensorValue,
    logsumexp: TensorValue,
    dropout_p: Operand,
    is_causal: bool,
    *,
    attn_mask: TensorValue | None = None,
    scale: Operand | None = None,
) -> tuple[TensorValue, ...]:
    return _backward(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale)


# _scaled_dot_product_flash_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out,
#   Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal,
#   Tensor philox_seed, Tensor philox_offset, *, float? scale=None)
#   -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)
@map_to(aten._scaled_dot_product_flash_attention_backward.default, limits="no dropout")
def _scaled_dot_product_flash_attention_backward(
    grad_out: TensorValue,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    out: TensorValue,
    logsumexp: TensorValue,
    cum_seq_q: TensorValue | None,
    cum_seq_k: TensorValue | None,
    max_q: Dim | int,
    max_k: Dim | int,
    dropout_p: Operand,
    is_causal: bool,
    philox_seed: TensorValue,
    philox_offset: TensorValue,
    *,
    scale: Operand | None = None,
) -> tuple[TensorValue, ...]:
    return _backward(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, None, scale)


# _scaled_dot_product_cudnn_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out,
#   Tensor logsumexp, Tensor philox_seed, Tensor philox_offset, Tensor attn_bias, Tensor cum_seq_q, Tensor cum_seq_k,
#   SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, *, float? scale=None) -> (Tensor, Tensor, Tensor)
@map_to(aten._scaled_dot_product_cudnn_attention_backward.default, limits="no dropout")
def _scaled_dot_product_cudnn_attention_backward(
    grad_out: TensorValue,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    out: TensorValue,
    logsumexp: TensorValue,
    philox_seed: TensorValue,
    philox_offset: TensorValue,
    attn_bias: TensorValue | None,
    cum_seq_q: TensorValue | None,
    cum_seq_k: TensorValue | None,
    max_q: Dim | int,
    max_k: Dim | int,
    dropout_p: Operand,
    is_causal: bool,
    *,
    scale: Operand | None = None,
) -> tuple[TensorValue, ...]:
    rows = reshape(logsumexp, query.shape[:3])
    return _backward(grad_out, query, key, value, out, rows, dropout_p, is_causal, attn_bias, scale)


def _unread(first: int, count: int) -> list[None]:
    """Outputs that only torch's own backward kernels understand: seeds, offsets, sequence starts.

    Raises:
        Unsupported: Something reads one of them.
    """
    read = [i for i in range(first, first + count) if is_used(i)]
    if read:
        raise Unsupported(f"outputs 0 and 1 of fused attention, but output {read[0]} is read")
    return [None] * count


def _seeds(first: int, count: int) -> list[TensorValue | None]:
    """Outputs that only dropout would read."""
    return [
        full(0, out_shape(i), out_dtype(i), promise(i).device) if is_used(i) else None
        for i in range(first, first + count)
    ]


# _scaled_dot_product_flash_attention(Tensor query, Tensor key, Tensor value, float dropout_p=0., bool is_causal=False,
#   bool return_debug_mask=False, *, float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor cum_seq_q,
#   Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor rng_state, Tensor unused, Tensor debug_attn_mask)
@map_to(aten._scaled_dot_product_flash_attention.default, limits="no dropout; only the output and logsumexp are read")
def _scaled_dot_product_flash_attention(
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    dropout_p: Operand = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Operand | None = None,
) -> list[TensorValue | None]:
    rest = [*_unread(2, 4), *_seeds(6, 2), *_unread(8, 1)]
    out, logarithms = _attention(query, key, value, None, dropout_p, is_causal, scale)
    return [out, logarithms, *rest]


# _scaled_dot_product_efficient_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias,
#   bool compute_log_sumexp, float dropout_p=0., bool is_causal=False, *, float? scale=None)
#   -> (Tensor output, Tensor log_sumexp, Tensor philox_seed, Tensor philox_offset)
@map_to(aten._scaled_dot_product_efficient_attention.default, limits="no dropout; only the output is read")
def _scaled_dot_product_efficient_attention(
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    attn_bias: TensorValue | None,
    compute_log_sumexp: bool,
    dropout_p: Operand = 0.0,
    is_causal: bool = False,
    *,
    scale: Operand | None = None,
) -> list[TensorValue | None]:
    rest = _unread(1, 3)  # torch pads the length of log_sumexp, for its own backward kernel
    out, _ = _attention(query, key, value, attn_bias, dropout_p, is_causal, scale)
    return [out, *rest]


# _scaled_dot_product_cudnn_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias,
#   bool compute_log_sumexp, float dropout_p=0., bool is_causal=False, bool return_debug_mask=False, *,
#   float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q,
#   SymInt max_k, Tensor philox_seed, Tensor philox_offset, Tensor debug_attn_mask)
@map_to(aten._scaled_dot_product_cudnn_attention.default, limits="no dropout; only the output and logsumexp are read")
def _scaled_dot_product_cudnn_attention(
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    attn_bias: TensorValue | None,
    compute_log_sumexp: bool,
    dropout_p: Operand = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Operand | None = None,
) -> list[TensorValue | None]:
    rest = [*_unread(2, 4), *_seeds(6, 2), *_unread(8, 1)]
    out, logarithms = _attention(query, key, value, attn_bias, dropout_p, is_causal, scale)
    return [out, logarithms if logarithms is None else ops.unsqueeze(logarithms, -1), *rest]


# _scaled_dot_product_fused_attention_overrideable(Tensor query, Tensor key, Tensor value, Tensor? attn_bias=None,
#   float dropout_p=0., bool is_causal=False, bool return_debug_mask=False, *, float? scale=None) -> (Tensor output,
#   Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor philox_seed,
#   Tensor philox_offset, Tensor debug_attn_mask)
@map_to(aten._scaled_dot_product_fused_attention_overrideable.default, limits="no dropout; only the output is read")
def _scaled_dot_product_fused_attention_overrideable(
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    attn_bias: TensorValue | None = None,
    dropout_p: Operand = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Operand | None = None,
) -> list[TensorValue | None]:
    rest = _unread(1, 8)
    out, _ = _attention(query, key, value, attn_bias, dropout_p, is_causal, scale)
    return [out, *rest]
