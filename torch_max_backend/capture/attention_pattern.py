"""Attention that a model writes out, ``softmax(q k^T / c + bias) v``, is one op again.

A library's fused kernel for it never stores the scores, of which there is one for each pair of a query and a key. In
16-bit floats it is also closer to the exact value than the steps, each of which rounds its scores.

In the graph are two batched products with steps between them that leave the scores in their places: views, a factor, a
sum with a bias, casts around the softmax. The steps may come in any order in which the bias is not scaled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from torch_max_backend.capture.fake_tensors import symbols_of, tensor_of, value_of
from torch_max_backend.capture.fx_nodes import call_node
from torch_max_backend.capture.user_controlled_ops import is_taken
from torch_max_backend.capture.view_ops import ALIASES, EXPANDS, PERMUTES, RESHAPES

aten = torch.ops.aten

HALF = (torch.bfloat16, torch.float16)
"""Dtypes of which a fused kernel computes what products of them do; those of float32 may use TF32."""
VECTOR, LARGEST_HEAD = 8, 256
"""Sizes of heads are multiples of the first, up to the second. The kernels copy heads of other sizes, or have none."""

_OP = aten.scaled_dot_product_attention.default
_ATTENTION_STEPS = (aten.bmm.default, aten._softmax.default)
_FACTORS = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)
_IN_PLACE = RESHAPES | PERMUTES | EXPANDS | ALIASES | {aten.clone.default}


@dataclass
class Attention:
    """Attention as found: ``result [N, L, V]`` of ``query [N, L, E]``, ``key [N, E, S]`` and ``value [N, S, V]``.

    ``biases`` are added to scores that are seen in a shape ``[*lead, L, S]``: ``(bias, lead)``.
    """

    query: fx.Node
    key: fx.Node
    value: fx.Node
    result: fx.Node
    scale: float
    biases: list[tuple[fx.Node, Sequence[int]]] = field(default_factory=list)


def recognize_attention(gm: fx.GraphModule) -> None:
    """Replace attention that is written out by the op, on a GPU and where nothing else reads the scores.

    A forward whose backward reads the probabilities is left as it is. A row of scores of which a bias hides all has
    zeros for a result, and not NaN.
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
    scale, biases = 1.0, list[tuple[fx.Node, Sequence[int]]]()
    node: Any = softmax.args[0]
    while node.target is not aten.bmm.default:
        if len(node.users) != 1 or node.op != "call_function" or symbols_of(value_of(node)):
            return None
        number, parts = _factor(node), _scores_and_bias(node, rows)
        if parts is not None and scale == 1.0:
            biases.append((parts[1], tensor_of(node).shape[:-2]))
            node = parts[0]
        elif number is not None or _keeps_places(node) or _is_cast(node):
            scale *= 1.0 if number is None else number
            node = node.args[0]
        else:
            return None
    if any(tensor_of(n).shape[-2:] != rows for n in (factor, node)) or len(node.users) != 1:
        return None
    (query, key), (_, value) = node.args, product.args
    attention = Attention(query, key, value, product, scale, biases)
    return attention if _suits(attention) else None


def _suits(attention: Attention) -> bool:
    """Whether a fused kernel takes these operands, and computes what the steps do."""
    operands = [tensor_of(n) for n in (attention.query, attention.key, attention.value)]
    sizes = (operands[0].shape[-1], operands[2].shape[-1])
    return (
        not any(symbols_of(x) or 0 in x.shape for x in operands)
        and {x.dtype for x in operands} == {tensor_of(bias).dtype for bias, _ in attention.biases} | {operands[0].dtype}
        and operands[0].dtype in HALF
        and all(size % VECTOR == 0 and size <= LARGEST_HEAD for size in sizes)
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


def _scores_and_bias(node: fx.Node, rows: Sequence[int]) -> tuple[fx.Node, fx.Node] | None:
    """What a node is the sum of, if it is one of scores, seen as rows of keys, and a bias."""
    if node.target is not aten.add.Tensor or node.kwargs or tensor_of(node).shape[-2:] != rows:
        return None
    scores, bias = node.args
    if not isinstance(scores, fx.Node) or not isinstance(bias, fx.Node) or scores is bias:
        return None
    if not _comes_from_a_product(scores):
        scores, bias = bias, scores
    is_sum = tensor_of(scores).shape == tensor_of(node).shape and tensor_of(bias).ndim >= 2
    return (scores, bias) if is_sum else None


def _comes_from_a_product(node: Any) -> bool:
    while isinstance(node, fx.Node) and node.target is not aten.bmm.default:
        steps = (*_FACTORS, aten.add.Tensor, aten._to_copy.default)
        node = node.args[0] if node.target in steps or _keeps_places(node) else None
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
        bias = _bias_of_heads(gm, attention, lead)
        called = gm.graph.call_function(_OP, (query, key, value, bias, 0.0, False), {"scale": scale})
        batch, heads = lead
        _, length, size = tensor_of(result).shape
        like = tensor_of(result)
        with like.fake_mode:
            called.meta["val"] = like.new_empty((batch, length, heads, size)).transpose(1, 2)
        called.meta["stack_trace"] = result.meta.get("stack_trace")
        dense = call_node(gm, aten.clone.default, (called,), result, memory_format=torch.contiguous_format)
        rows = call_node(gm, aten.view.default, (dense, list(like.shape)), result)
    result.replace_all_uses_with(rows)


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


def _bias_of_heads(gm: fx.GraphModule, attention: Attention, lead: Sequence[int]) -> fx.Node | None:
    """The sum of all biases, as ``[B, H, L, S]`` or what broadcasts to it."""
    total: fx.Node | None = None
    for bias, own in attention.biases:
        shape = tensor_of(bias).shape
        rows = (tensor_of(attention.query).shape[-2], tensor_of(attention.key).shape[-1])
        if tuple(own) == tuple(lead):
            for _ in range(4 - len(shape)):
                bias = call_node(gm, aten.unsqueeze.default, (bias, 0), bias)
        else:
            wide = call_node(gm, aten.expand.default, (bias, [*own, *rows]), bias)
            dense = call_node(gm, aten.clone.default, (wide,), bias, memory_format=torch.contiguous_format)
            bias = call_node(gm, aten.view.default, (dense, [*lead, *rows]), bias)
        total = bias if total is None else call_node(gm, aten.add.Tensor, (total, bias), bias)
    return total
