"""``flex_attention`` and its gradient as plain ops: products, and what its score and mask functions compute, in loops.

The score and mask functions are graphs of an index each. They are mapped over all indices, so that one kernel computes
them together with the softmax of a row. Scores are float32, or float64 for float64, and exist in memory as a whole.

Attention that only adds to its scores, or hides some, is the library's on a CPU: what is added is its mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torch_max_backend.capture.fake_tensors import tensor_of
from torch_max_backend.capture.inlining import NOT_INLINED, graph_of, higher_order_nodes, inline, name_of
from torch_max_backend.capture.user_controlled_ops import is_taken

aten = torch.ops.aten

_SCORE = 3
"""Where forward and backward have the score function among their arguments: 3 and 7; it reads a score and 4 indices."""


def inline_flex_attention(gm: fx.GraphModule) -> None:
    """Replace ``flex_attention`` and ``flex_attention_backward``.

    Left alone is float64 whose sums of exponentials are wanted: torch promises them as float32 and gives float64.
    """
    for node in higher_order_nodes(gm, "flex_attention", "flex_attention_backward"):
        is_backward = name_of(node) == "flex_attention_backward"
        is_plain = not is_backward and all(user.args[1] == 0 for user in node.users)
        if tensor_of(node.args[0]).dtype == torch.float64 and not is_plain:
            node.meta[NOT_INLINED] = "torch promises float32 for its sums of exponentials and gives float64"
        elif is_backward:
            inline(gm, node, gradients, {torch.ops.flex_lib.zeros_and_scatter.default: added_up})
        else:
            inline(gm, node, library_attention if is_plain and _has_library(gm, node) else attention)


# -- the forward -----------------------------------------------------------------------------------------------------
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: fx.GraphModule,
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of ``query`` [B, H, M, E], ``key`` [B or 1, K, N, E] and ``value`` [B or 1, K, N, V]; K divides H.

    Returns:
        The result [B, H, M, V], the logarithms to base 2 of the rows' sums of exponentials [B, H, M], and their largest
        scores in the same unit. A row that sees nothing is 0, and minus infinity in both others.
    """
    mask_mod = block_mask[-1]
    parts = []
    for start, end in _row_blocks(query, key):
        last = end if _is_causal(mask_mod) and end is not None else None
        rows, keys, values = query[:, :, start:end], key[:, :, :last], value[:, :, :last]
        scores = _products(rows, keys) * scale
        shown = _shown(scores, score_mod, mask_mod, score_buffers, mask_buffers, start)
        largest = shown.amax(-1)
        shift = torch.where(largest == -math.inf, 0.0, largest)
        weights = torch.exp(shown - shift.unsqueeze(-1))
        total = weights.sum(-1)
        probabilities = weights / torch.where(total == 0, 1.0, total).unsqueeze(-1)
        logarithm = torch.where(largest.abs() == math.inf, largest, total.log() + largest)
        result = _mix(probabilities.to(query.dtype), values)
        parts.append((result, logarithm / math.log(2), largest / math.log(2)))
    if len(parts) == 1:
        return parts[0]
    result, logarithm, largest = (torch.cat(part, 2) for part in zip(*parts, strict=True))
    return result, logarithm, largest


_BLOCK_BYTES = 1 << 20
_MOST_BLOCKS = 8


def _row_blocks(query: torch.Tensor, key: torch.Tensor) -> list[tuple[int, int | None]]:
    """Where blocks of queries begin and end, whose scores have at most :data:`_BLOCK_BYTES`, if that is not too many.

    A block's scores are read while they are in a cache, and the keys behind its last query are left out where the mask
    is causal.
    """
    rows = query.shape[2]
    size = math.prod(query.shape[:3]) * key.shape[2] * 4
    if not isinstance(rows, int) or not isinstance(size, int):
        return [(0, None)]
    step = max(1, rows // min(_MOST_BLOCKS, max(1, size // _BLOCK_BYTES)))
    return [(start, min(start + step, rows)) for start in range(0, rows, step)] or [(0, None)]


def _products(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Products of all rows of ``query`` and ``key`` [B, H, M, N], in float32 or float64.

    Heads of a group stand behind each other as rows of one matrix, so that their key is not repeated.
    """
    wide = _wide(query.dtype)
    grouped = _grouped(query, key.shape[1]).to(wide)
    keys = key.expand(query.shape[0], *key.shape[1:]).to(wide)
    return (grouped @ keys.transpose(-2, -1)).reshape(*query.shape[:3], key.shape[2])


def _mix(probabilities: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    values = value.expand(probabilities.shape[0], *value.shape[1:]).to(probabilities.dtype)
    mixed = _grouped(probabilities, value.shape[1]) @ values
    return mixed.reshape(*probabilities.shape[:3], value.shape[3])


def _grouped(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, H, M, E] as [B, heads, H / heads * M, E]."""
    batch, all_heads, rows, columns = x.shape
    return x if all_heads == heads else x.reshape(batch, heads, all_heads // heads * rows, columns)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _shown(
    scores: torch.Tensor,
    score_mod: fx.GraphModule,
    mask_mod: fx.GraphModule,
    score_buffers: Sequence[Any],
    mask_buffers: Sequence[Any],
    start: int = 0,
) -> torch.Tensor:
    """Scores of queries from ``start`` on as the score function makes them, minus infinity where they are hidden."""
    changed = over_positions(score_mod, scores.shape, scores.device, score_buffers, [scores], start=start)
    mask = over_positions(mask_mod, scores.shape, scores.device, mask_buffers, start=start)
    return torch.where(mask, changed, -math.inf)


def over_positions(
    graph: fx.GraphModule,
    shape: Sequence[Any],
    device: torch.device,
    buffers: Sequence[Any],
    scores: Sequence[torch.Tensor] = (),
    gradients: Sequence[torch.Tensor] = (),
    out_dims: Any = 0,
    start: int = 0,
) -> Any:
    """What a function of scores, batch, head, query, key, gradients and buffers gives, for all of them.

    Args:
        shape: The numbers of batches, heads, queries and keys.
        scores: The tensors of that shape that it gets first, or a single score for all.
        gradients: Those that it gets behind the indices.
        start: The first query.
        out_dims: As for ``torch.vmap``, if it has several results.

    Returns:
        A tensor of that shape, with 1 for each index that the function does not read if it reads no
        scores of that shape.
    """
    given = graph.graph.find_nodes(op="placeholder")[len(scores) :]
    is_whole = any(score.dim() for score in scores)
    mapped = [is_whole or bool(node.users) for node, _ in zip(given, shape, strict=False)]
    function: Callable[..., Any] = graph
    for d in (3, 2, 1, 0):
        if mapped[d]:
            places = [0 if k == d else None for k in range(4)]
            whole = [0 if is_whole else None for _ in (*scores, *gradients)]
            in_dims = (*whole[: len(scores)], *places, *whole[len(scores) :], *(None for _ in buffers))
            function = torch.vmap(function, in_dims=in_dims, out_dims=out_dims)
    indices = [
        torch.arange(size, device=device) if is_mapped else torch.zeros((), dtype=torch.int64, device=device)
        for size, is_mapped in zip(shape, mapped, strict=True)
    ]
    indices[2] = indices[2] + start if start else indices[2]
    result = function(*scores, *indices, *gradients, *buffers)
    for d in range(4):
        if not mapped[d]:
            result = result.unsqueeze(d)
    return result


# -- the library's attention -----------------------------------------------------------------------------------------
_LIBRARY = aten._scaled_dot_product_flash_attention_for_cpu.default


def _has_library(gm: fx.GraphModule, node: fx.Node) -> bool:
    """Whether the library's attention for a CPU gives the same: nothing is done to scores but to add or to hide."""
    tensors = [tensor_of(n) for n in node.args[:3]]
    query, _, value = tensors
    score = graph_of(gm, node.args[_SCORE])
    return (
        all(t.device.type == "cpu" and t.stride(-1) == 1 and 0 not in t.shape for t in tensors)
        and query.shape[-1] == value.shape[-1]
        and len({t.dtype for t in tensors}) == 1
        and score is not None
        and _only_adds(score)
        and not is_taken(_LIBRARY)
    )


def _only_adds(score_mod: fx.GraphModule) -> bool:
    """Whether a score function gives the score, plus what it makes of indices, or minus infinity."""
    return _adds_to(_first(score_mod), score_mod.graph.output_node().args[0])


def _adds_to(score: fx.Node, result: Any) -> bool:
    if result is score:
        return True
    if not isinstance(result, fx.Node) or result.kwargs:
        return False
    args = list(result.args)
    if result.target is aten.where.self:
        condition, kept, hidden = args
        return _is_hidden(hidden) and not _reads(condition, score) and _adds_to(score, kept)
    if result.target is aten.sub.Tensor:
        return not _reads(args[1], score) and _adds_to(score, args[0])
    if result.target is aten.add.Tensor:
        first, second = args if _reads(args[0], score) else args[::-1]
        return not _reads(second, score) and _adds_to(score, first)
    return False


def _reads(node: Any, source: fx.Node) -> bool:
    return isinstance(node, fx.Node) and (node is source or any(_reads(n, source) for n in node.all_input_nodes))


def _is_hidden(node: Any) -> bool:
    """Whether a node is minus infinity: a number made a tensor."""
    makes = (aten.full.default, aten.scalar_tensor.default, aten.full_like.default)
    return isinstance(node, fx.Node) and node.target in makes and -math.inf in node.args


def _is_causal(mask_mod: fx.GraphModule) -> bool:
    """Whether a mask function is ``query >= key``, however it is written."""
    _, _, row, column = mask_mod.graph.find_nodes(op="placeholder")[:4]
    result = mask_mod.graph.output_node().args[0]
    args = getattr(result, "args", ())
    target = getattr(result, "target", None)
    return (target is aten.ge.Tensor and args == (row, column)) or (target is aten.le.Tensor and args == (column, row))


def _shows_all(mask_mod: fx.GraphModule) -> bool:
    result = mask_mod.graph.output_node().args[0]
    makes = (aten.full.default, aten.new_ones.default, aten.ones.default)
    return getattr(result, "target", None) in makes and False not in getattr(result, "args", ())


def library_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: fx.GraphModule,
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> tuple[torch.Tensor]:
    """The first result of :func:`attention`, where a score function only adds to scores: to 0, it is the mask."""
    mask_mod, zero = block_mask[-1], torch.zeros((), dtype=_wide(query.dtype), device=query.device)
    keys, values = (x.expand(query.shape[0], *x.shape[1:]) for x in (key, value))
    is_causal = _is_causal(mask_mod)
    if (is_causal or _shows_all(mask_mod)) and score_mod.graph.output_node().args[0] is _first(score_mod):
        return (_LIBRARY(query, keys, values, 0.0, is_causal, scale=scale)[0],)
    parts = []
    for start, end in _row_blocks(query, key):
        last = end if is_causal and end is not None else None
        rows, own_keys, own_values = query[:, :, start:end], keys[:, :, :last], values[:, :, :last]
        shape = (*rows.shape[:3], own_keys.shape[2])
        added = over_positions(score_mod, shape, zero.device, score_buffers, [zero], start=start).to(zero.dtype)
        shown = over_positions(mask_mod, shape, zero.device, mask_buffers, start=start)
        mask = torch.where(shown, added, -math.inf)
        mask = mask.expand(*mask.shape[:2], *shape[2:]).contiguous()
        parts.append(_LIBRARY(rows, own_keys, own_values, 0.0, False, attn_mask=mask, scale=scale)[0])
    return (torch.cat(parts, 2) if len(parts) > 1 else parts[0],)


def _first(graph: fx.GraphModule) -> fx.Node:
    return next(iter(graph.graph.nodes))


# -- the backward ----------------------------------------------------------------------------------------------------
def gradients(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logarithm: torch.Tensor,
    grad_out: torch.Tensor | None,
    grad_logarithm: torch.Tensor | None,
    score_mod: fx.GraphModule,
    joint_mod: fx.GraphModule,
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> tuple[Any, ...]:
    """Gradients of ``query``, ``key``, ``value`` and what the score function reads, from those of the results.

    Args:
        out, logarithm: The first two results of :func:`attention`.
        joint_mod: The score function's own gradient: of a score, the indices, a result's gradient and buffers, to the
            gradients of all but the result.
    """
    heads, dtype = key.shape[1], query.dtype
    scores = _products(query, key) * scale
    shown = _shown(scores, score_mod, block_mask[-1], score_buffers, mask_buffers)
    natural = (logarithm * math.log(2)).unsqueeze(-1)
    probabilities = torch.where(natural == -math.inf, 0.0, torch.exp(shown - natural))
    grad_value = torch.zeros_like(value)
    of_rows = torch.zeros_like(natural)
    of_probabilities = torch.zeros_like(scores)
    if grad_out is not None:
        grad_value = _turned(_grouped(probabilities.to(dtype), heads), _grouped(grad_out, heads), value)
        of_probabilities = _products(grad_out, value)
        of_rows = (out.to(scores.dtype) * grad_out.to(scores.dtype)).sum(-1, keepdim=True)
    if grad_logarithm is not None:
        of_rows = of_rows - (grad_logarithm / math.log(2)).unsqueeze(-1)
    of_shown = probabilities * (of_probabilities - of_rows)
    outs = [0, None, None, None, None, *(None for _ in score_buffers)]
    found = over_positions(joint_mod, scores.shape, scores.device, score_buffers, [scores], [of_shown], outs)
    of_scores, of_buffers = found[0], found[5:]
    mask = over_positions(block_mask[-1], scores.shape, scores.device, mask_buffers)
    of_scores = torch.where(mask, (of_scores * scale).to(dtype), 0.0)
    grad_key = _turned(_grouped(of_scores, heads), _grouped(query, heads), key)
    return _mix(of_scores, key), grad_key, grad_value, tuple(of_buffers)


def _turned(left: torch.Tensor, right: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``left`` transposed, times ``right``, summed over what ``like`` has one of for all batches."""
    result = left.transpose(-2, -1) @ right
    return result.sum(0, keepdim=True) if like.shape[0] != result.shape[0] else result


def added_up(shape: Sequence[Any], indices: Sequence[torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    """What torch's gradient of a read at ``indices`` is: ``values`` added to zeros of a shape there."""
    if not indices:
        return values.sum()
    return values.new_zeros(shape).index_put(list(indices), values, accumulate=True)
