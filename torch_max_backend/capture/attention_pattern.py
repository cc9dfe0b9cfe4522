"""Attention that a model writes out, ``softmax(q k^T / c + bias) v``, is one op again.

A library's fused kernel for it never stores the scores, of which there is one for each pair of a query and a key. In
16-bit floats it is also closer to the exact value than the steps, each of which rounds its scores.

In the graph are two batched products with steps between them that leave the scores in their places: views, a factor, a
sum with a bias, a mask, casts around the softmax. The steps may come in any order in which the bias is not scaled.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from torch_max_backend.capture.attention_masks import HIDING, LARGEST_MASK
from torch_max_backend.capture.constant_folding import constant_nodes, evaluate
from torch_max_backend.capture.fake_tensors import symbols_of, tensor_of, value_of
from torch_max_backend.capture.fx_nodes import call_node, source_of
from torch_max_backend.capture.user_controlled_ops import is_taken
from torch_max_backend.capture.view_ops import ALIASES, EXPANDS, PERMUTES, RESHAPES

aten = torch.ops.aten

HALF = (torch.bfloat16, torch.float16)
"""Dtypes of which a fused kernel computes what products of them do; those of float32 may use TF32."""
VECTOR, LARGEST_HEAD = 8, 256
"""Sizes of heads are multiples of the first, with zeros if need be, up to the second."""
LOWEST = torch.finfo(torch.bfloat16).min
"""The number up to which scores count as hidden."""
SHORT, SHORT_WITH_BIAS = 16, 32
"""Queries and keys up to which the steps take less time than a fused kernel, whose tiles are mostly empty then. On an
H200, with 256 to 4096 heads of 32 to 128 numbers: 16 to 113 µs with a bias, and 8 to 37 by steps."""
WORTH_ZEROS = 2
"""Scores for each number of queries and keys from which zeros behind these pay. A guess: it is measured nowhere."""

_OP = aten.scaled_dot_product_attention.default
_ATTENTION_STEPS = (aten.bmm.default, aten._softmax.default)
_FACTORS = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)
_IN_PLACE = RESHAPES | PERMUTES | EXPANDS | ALIASES | {aten.clone.default}


@dataclass(frozen=True)
class Operand:
    """A tensor that changes scores, as they are seen in a shape ``[*lead, L, S]``.

    One of booleans has ``hidden``, the number that scores get where it is true, or, if ``is_shown``, where it is not.
    """

    node: fx.Node
    lead: Sequence[int]
    hidden: float | None = None
    is_shown: bool = False


@dataclass
class Attention:
    """Attention as found: ``result [N, L, V]`` of ``query [N, L, E]``, ``key [N, E, S]`` and ``value [N, S, V]``.

    ``factors`` ``[..., 1, 1]`` multiply scores, and ``biases`` are added to them then.
    """

    result: fx.Node
    value: fx.Node
    query: fx.Node = field(init=False)
    key: fx.Node = field(init=False)
    scale: float = 1.0
    factors: list[Operand] = field(default_factory=list)
    biases: list[Operand] = field(default_factory=list)


def recognize_attention(gm: fx.GraphModule) -> None:
    """Replace attention that is written out by the op, on a GPU and where nothing else reads the scores.

    A forward whose backward reads the probabilities is left as it is. Where masks hide all of a row by minus infinity,
    the result is not a number, and where they do so by the lowest number, a mean, as that of the steps.
    """
    if is_taken(_OP, *_ATTENTION_STEPS):
        return
    found = [
        attention
        for node in gm.graph.find_nodes(op="call_function", target=aten._softmax.default)
        if tensor_of(node).is_cuda and (attention := _find(node)) is not None
    ]
    for attention in found:
        _replace(gm, attention)
    if found:
        gm.graph.eliminate_dead_code()


# -- what is attention -----------------------------------------------------------------------------------------------
def _find(softmax: fx.Node) -> Attention | None:
    """The attention that ``softmax`` is a step of."""
    shape = tensor_of(softmax).shape
    if symbols_of(value_of(softmax)) or len(shape) < 3 or softmax.args[1] not in (-1, len(shape) - 1):
        return None
    rows = shape[-2:]
    factor, product = softmax, _only_reader(softmax)
    while product is not None and product.target is not aten.bmm.default:
        if not _keeps_places(product) and not _is_cast(product):
            return None
        factor, product = product, _only_reader(product)
    if product is None or product.args[0] is not factor or product.args[1] is factor:
        return None
    found = Attention(product, product.args[1])
    node: Any = softmax.args[0]
    while node.target is not aten.bmm.default:
        if len(node.users) != 1 or node.op != "call_function" or symbols_of(value_of(node)):
            return None
        number, is_unscaled = _factor(node), found.scale == 1.0 and not found.factors
        if is_unscaled and (parts := _hiding(node, rows) or _parts(node, aten.add.Tensor, rows)) is not None:
            node, bias = parts
            found.biases.append(bias)
        elif (parts := _parts(node, aten.mul.Tensor, rows)) and tensor_of(parts[1].node).shape[-2:] == (1, 1):
            node, factor_of_heads = parts
            found.factors.append(factor_of_heads)
        elif number is not None or _keeps_places(node) or _is_cast(node):
            found.scale *= 1.0 if number is None else number
            node = node.args[0]
        else:
            return None
    if any(tensor_of(n).shape[-2:] != rows for n in (factor, node)) or len(node.users) != 1:
        return None
    found.query, found.key = node.args
    return found if _suits(found) else None


def _suits(attention: Attention) -> bool:
    """Whether a fused kernel takes these operands, and computes what the steps do."""
    query, key, value = (tensor_of(n) for n in (attention.query, attention.key, attention.value))
    others = [tensor_of(x.node) for x in (*attention.factors, *attention.biases) if x.hidden is None]
    if any(symbols_of(x) or 0 in x.shape for x in (query, key, value)):
        return False
    (*_, length, size), keys = query.shape, key.shape[-1]
    sizes = size, value.shape[-1]
    numbers = [x.hidden for x in attention.biases if x.hidden is not None and math.isfinite(x.hidden)]
    if len(numbers) > (query.dtype is torch.bfloat16):  # a sum of two is minus infinity, and float16 has none so low
        return False
    is_short = length > 1 and max(length, keys) <= (SHORT_WITH_BIAS if attention.biases else SHORT)
    is_even = all(n % VECTOR == 0 for n in sizes) or length * keys >= WORTH_ZEROS * (length + keys) * max(sizes)
    return (
        query.dtype in HALF
        and {x.dtype for x in (key, value, *others)} == {query.dtype}
        and is_even
        and not is_short
        and max(sizes) <= LARGEST_HEAD
        and attention.scale > 0
        and math.isfinite(attention.scale)
    )


def _only_reader(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _keeps_places(node: fx.Node) -> bool:
    """Whether all elements of the first argument are there once, in the same order of their indices."""
    if node.target not in _IN_PLACE:
        return False
    before, after = tensor_of(node.args[0]), tensor_of(node)
    if node.target in EXPANDS:
        return before.numel() == after.numel()
    if node.target not in PERMUTES:
        return True
    turned = _permuted(node)
    steps = [step for step, size in zip(turned.stride(), turned.shape, strict=True) if size > 1]
    return steps == sorted(steps, reverse=True)


def _permuted(node: fx.Node) -> torch.Tensor:
    """What a node gives of a contiguous tensor."""
    with _disable_current_modes():
        return node.target(torch.empty(tensor_of(node.args[0]).shape, device="meta"), *node.args[1:])


def _before_turn(node: fx.Node) -> fx.Node | None:
    """The tensor ``[..., S, E]`` that a factor ``[N, E, S]`` of a product is, with its last two dimensions swapped."""
    sizes = tensor_of(node).shape[-2:]
    while _keeps_places(node):
        node = node.args[0]
        if tensor_of(node).shape[-2:] != sizes:
            return None
    if node.target not in PERMUTES:
        return None
    (source,) = node.all_input_nodes
    contiguous = torch.empty(tensor_of(source).shape, device="meta")
    return source if _permuted(node).stride() == contiguous.mT.stride() else None


def _is_cast(node: fx.Node) -> bool:
    """Whether a node changes the dtype alone, from floats to floats."""
    if node.target is not aten._to_copy.default:
        return False
    before, after = tensor_of(node.args[0]), tensor_of(node)
    return before.device == after.device and before.is_floating_point() and after.is_floating_point()


def _factor(node: fx.Node) -> float | None:
    """The number by which a node multiplies its first argument."""
    if node.target not in _FACTORS or not isinstance(node.args[1], int | float) or not node.args[1]:
        return None
    return 1 / node.args[1] if node.target in (aten.div.Tensor, aten.div.Scalar) else float(node.args[1])


def _parts(node: fx.Node, op: Any, rows: Sequence[int]) -> tuple[fx.Node, Operand] | None:
    """What a node is the sum or product of, if that is scores, seen as rows of keys, and another tensor."""
    if node.target is not op or node.kwargs:
        return None
    scores, other = node.args
    return _operand(node, scores, other, rows) or _operand(node, other, scores, rows)


def _hiding(node: fx.Node, rows: Sequence[int]) -> tuple[fx.Node, Operand] | None:
    """Scores of which a node hides some, and what it hides them by.

    The number in their place is minus infinity, or so low that float32 does not tell a sum with a score from it.
    """
    if node.target is aten.masked_fill.Scalar:
        scores, mask, hidden = node.args
        is_shown = False
    elif node.target is aten.where.self:
        mask, *others = node.args
        is_shown = _number(others[1]) is not None
        scores, hidden = (others[0], _number(others[1])) if is_shown else (others[1], _number(others[0]))
    else:
        return None
    found = _operand(node, scores, mask, rows)
    if found is None or not isinstance(hidden, int | float) or not hidden <= LOWEST:
        return None
    return found[0], dataclasses.replace(found[1], hidden=float(hidden), is_shown=is_shown)


def _operand(node: fx.Node, scores: Any, other: Any, rows: Sequence[int]) -> tuple[fx.Node, Operand] | None:
    """``scores``, which have the shape of ``node``, and ``other``, if they are scores and what changes them."""
    if not isinstance(scores, fx.Node) or not isinstance(other, fx.Node) or scores is other:
        return None
    shape = tensor_of(node).shape
    is_alike = tensor_of(scores).shape == shape and shape[-2:] == rows and tensor_of(other).ndim >= 2
    return (scores, Operand(other, shape[:-2])) if is_alike and _comes_from_a_product(scores) else None


def _number(node: Any) -> Any:
    """The number that a tensor without dimensions is made from."""
    if not isinstance(node, fx.Node) or tensor_of(node).ndim:
        return None
    if node.target is aten.scalar_tensor.default:
        return node.args[0]
    return node.args[1] if node.target is aten.full.default else None


def _comes_from_a_product(node: Any) -> bool:
    while isinstance(node, fx.Node) and node.target is not aten.bmm.default:
        steps = (*_FACTORS, aten.add.Tensor, aten.masked_fill.Scalar, aten._to_copy.default)
        place = 1 if node.target is aten.where.self else 0
        node = node.args[place] if node.target in (*steps, aten.where.self) or _keeps_places(node) else None
    return node is not None


# -- what becomes of it ----------------------------------------------------------------------------------------------
def _replace(gm: fx.GraphModule, attention: Attention) -> None:
    """Call the op with heads as the model has them, if its operands agree about them."""
    result, scale = attention.result, attention.scale
    turned = _before_turn(attention.key)
    factors = [attention.query, attention.key if turned is None else turned, attention.value]
    seen = [_with_heads(n, is_scaled=n is not attention.value) for n in factors]
    leads = {tuple(tensor_of(source).shape[:-2]) for source, _ in seen}
    lead = leads.pop() if len(leads) == 1 else ()
    with gm.graph.inserting_before(result):
        if len(lead) == 2:
            query, key, value = (source for source, _ in seen)
            scale *= seen[0][1] * seen[1][1]
        else:
            lead, turned = (tensor_of(result).shape[0], 1), None
            factors = [attention.query, attention.key, attention.value]
            query, key, value = (call_node(gm, aten.unsqueeze.default, (n, 1), n) for n in factors)
        if turned is None:
            key = call_node(gm, aten.transpose.int, (key, -2, -1), key)
        for factor in attention.factors:
            part = _of_heads(gm, factor.node, (*factor.lead, 1, 1), lead)
            query = call_node(gm, aten.mul.Tensor, (query, part), query)
        bias: fx.Node | None = None
        rows = tensor_of(query).shape[-2], tensor_of(key).shape[-2]
        for each in attention.biases:
            part = _of_heads(gm, _as_numbers(gm, each, tensor_of(query)), (*each.lead, *rows), lead)
            bias = part if bias is None else call_node(gm, aten.add.Tensor, (bias, part), part)
        query, key, value = (_with_zeros(gm, n) for n in (query, key, value))
        called = gm.graph.call_function(_OP, (query, key, value, bias, 0.0, False), {"scale": scale})
        batch, heads = lead
        like = tensor_of(result)
        with like.fake_mode:
            wide = like.new_empty((batch, like.shape[1], heads, tensor_of(value).shape[-1])).transpose(1, 2)
        called.meta.update(val=wide, **source_of(result))
        empty = _empty_rows(gm, attention, lead, rows)
        if empty is not None:
            called = call_node(gm, aten.masked_fill.Scalar, (called, empty, math.nan), result)
        if wide.shape[-1] != like.shape[-1]:
            called = call_node(gm, aten.slice.Tensor, (called, 3, 0, like.shape[-1]), result)
        dense = call_node(gm, aten.clone.default, (called,), result, memory_format=torch.contiguous_format)
        matrices = call_node(gm, aten.view.default, (dense, list(like.shape)), result)
    result.replace_all_uses_with(matrices)


def _with_heads(node: fx.Node, is_scaled: bool) -> tuple[fx.Node, float]:
    """The ``[B, H, *sizes]`` that a factor of a product is a copy or view of, and a number by which it is multiplied.

    Values are not scaled: the number is that of queries or keys.
    """
    found, scale = (node, 1.0), 1.0
    shape, sizes = tensor_of(node).shape, tensor_of(node).shape[-2:]
    shape = shape if len(shape) == 4 else torch.Size()
    while _keeps_places(node) or (is_scaled and _factor(node) is not None):
        scale *= _factor(node) or 1.0
        (node,) = node.all_input_nodes
        own = tensor_of(node).shape
        if own == shape or (not shape and len(own) == 4 and own[-2:] == sizes):
            found, shape = (node, scale), own
    return found


def _of_heads(gm: fx.GraphModule, node: fx.Node, shape: Sequence[int], lead: Sequence[int]) -> fx.Node:
    """What broadcasts to ``shape`` as what broadcasts to ``[B, H, *shape[-2:]]``."""
    *own, rows, columns = shape
    if tuple(own) == tuple(lead):
        for _ in range(4 - tensor_of(node).ndim):
            node = call_node(gm, aten.unsqueeze.default, (node, 0), node)
        return node
    wide = call_node(gm, aten.expand.default, (node, list(shape)), node)
    dense = call_node(gm, aten.clone.default, (wide,), node, memory_format=torch.contiguous_format)
    return call_node(gm, aten.view.default, (dense, [*lead, rows, columns]), node)


def _empty_rows(gm: fx.GraphModule, attention: Attention, lead: Sequence[int], rows: Sequence[int]) -> fx.Node | None:
    """Where masks hide all scores of a row by minus infinity, as booleans ``[B, H, L, 1]``; nothing if nowhere."""
    every: fx.Node | None = None
    for each in attention.biases:
        if each.hidden in (None, -math.inf):
            hidden = _is_infinite(gm, each.node) if each.hidden is None else _hidden(gm, each)
            part = _of_heads(gm, hidden, (*each.lead, *rows), lead)
            every = part if every is None else call_node(gm, aten.logical_or.default, (every, part), part)
    if every is None:
        return None
    empty = call_node(gm, aten.all.dim, (every, -1, True), every)
    known = evaluate(gm, [empty]).get(empty) if empty in constant_nodes(gm, LARGEST_MASK) else None
    with _disable_current_modes():
        return empty if known is None or bool(known.any()) else None


def _hidden(gm: fx.GraphModule, bias: Operand) -> fx.Node:
    """Where a mask hides scores."""
    return call_node(gm, aten.logical_not.default, (bias.node,), bias.node) if bias.is_shown else bias.node


def _is_infinite(gm: fx.GraphModule, bias: fx.Node) -> fx.Node:
    """Where a bias is minus infinity."""
    return call_node(gm, aten.eq.Scalar, (bias, -math.inf), bias)


def _as_numbers(gm: fx.GraphModule, bias: Operand, query: torch.Tensor) -> fx.Node:
    """What is added to scores in the dtype of queries, and is minus infinity or not below ``HIDING``."""
    node = bias.node
    if bias.hidden is None:
        if query.dtype is not torch.bfloat16:
            return node
        least = call_node(gm, aten.clamp_min.default, (node, HIDING), node)
        return call_node(gm, aten.masked_fill.Scalar, (least, _is_infinite(gm, node), -math.inf), node)
    lowest = HIDING if math.isfinite(bias.hidden) else bias.hidden
    how = {"dtype": query.dtype, "device": query.device}
    nothing = call_node(gm, aten.full.default, (list(tensor_of(node).shape), 0.0), node, **how)
    return call_node(gm, aten.masked_fill.Scalar, (nothing, _hidden(gm, bias), lowest), node)


def _with_zeros(gm: fx.GraphModule, node: fx.Node) -> fx.Node:
    """Heads whose size is a multiple of ``VECTOR``."""
    missing = -tensor_of(node).shape[-1] % VECTOR
    return call_node(gm, aten.constant_pad_nd.default, (node, [0, missing], 0.0), node) if missing else node
