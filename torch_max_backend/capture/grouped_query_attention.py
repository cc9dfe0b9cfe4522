"""Attention whose heads of keys and values were copied for every head of the query that reads them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from torch_max_backend.capture.fake_tensors import tensor_of
from torch_max_backend.capture.user_controlled_ops import is_taken
from torch_max_backend.capture.view_ops import RESHAPES

aten = torch.ops.aten

_ATTENTION = aten.scaled_dot_product_attention.default
_COPIES = (aten.clone.default,)


def share_heads(gm: fx.GraphModule) -> None:
    """Give attention the keys and values that are copied for a group of heads before they are.

    Models write ``k[:, :, None].expand(B, G, R, T, E).reshape(B, G * R, T, E)``, which is what ``enable_gqa`` says. The
    op is whole on a GPU where no gradients are recorded; elsewhere torch has taken it apart already. Of torch's fused
    kernels only flash attention knows groups, which takes 16-bit floats without a mask.
    """
    if is_taken(_ATTENTION, *RESHAPES, *_COPIES, aten.expand.default, aten.unsqueeze.default):
        return
    for node in gm.graph.find_nodes(op="call_function", target=_ATTENTION):
        copies = node.args[1:3]
        if len(copies) < 2 or not _suits_flash_attention(node):
            continue
        key, value = (_before_copies(copy) for copy in copies)
        if key is None or value is None or tensor_of(key).shape[1] != tensor_of(value).shape[1]:
            continue
        node.args = (node.args[0], key, value, *node.args[3:])
        node.kwargs = {**node.kwargs, "enable_gqa": True}
        for copy in dict.fromkeys(copies):  # keys and values may be the same
            _erase_unread(gm, copy)


def _suits_flash_attention(node: fx.Node) -> bool:
    mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    return mask is None and tensor_of(node.args[0]).dtype in (torch.bfloat16, torch.float16)


def _before_copies(node: Any) -> fx.Node | None:
    """The ``[B, G, T, E]`` of which ``node`` is ``[B, G * R, T, E]``, each head ``R`` times in turn."""
    whole = node
    node = _source(node, RESHAPES)
    node = _source(node, _COPIES) or node
    inserted = _source(node, (aten.expand.default,))
    narrow = _source(inserted, (aten.unsqueeze.default,))
    if narrow is None or tensor_of(narrow).ndim != 4 or inserted.args[1] not in (2, -3):
        return None
    batch, groups, length, size = tensor_of(narrow).shape
    *lead, repeats, length_2, size_2 = tensor_of(node).shape
    if [*lead, length_2, size_2] != [batch, groups, length, size]:
        return None
    return narrow if list(tensor_of(whole).shape) == [batch, groups * repeats, length, size] else None


def _source(node: Any, targets: Collection[Any]) -> Any:
    """What a node of one of these ops reads first, else ``None``."""
    return node.args[0] if isinstance(node, fx.Node) and node.target in targets else None


def _erase_unread(gm: fx.GraphModule, node: Any) -> None:
    while isinstance(node, fx.Node) and node.op == "call_function" and not node.users:
        source = node.args[0]
        gm.graph.erase_node(node)
        node = source
