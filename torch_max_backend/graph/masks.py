"""Attention masks that are known when the graph is compiled.

Models build the triangle of causal attention, or a mask that hides nothing, from positions, and hand it to attention as
a tensor. Attention that is told so reads no mask, and skips the half that a triangle hides.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from torch_max_backend.graph.folding import constant_nodes, evaluate
from torch_max_backend.graph.region import is_getitem
from torch_max_backend.graph.tensors import symbols_of, value_of

aten = torch.ops.aten

LARGEST_MASK = 1 << 30
"""Bytes above which a mask is not computed to look at it."""

BIASED = (
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
)
"""Attention on a GPU with ``(query, key, value, attn_bias, compute_log_sumexp, dropout_p=0, is_causal=False, ...)``."""


def simplify_masks(gm: fx.GraphModule) -> None:
    """Replace constant masks that hide nothing by none, and triangles by ``is_causal``.

    Attention whose logarithms are read is left alone: what reads them is torch's own backward, which has the mask too.
    """
    nodes = [n for n in gm.graph.nodes if n.target in BIASED and _has_simple_mask(n)]
    if not nodes:
        return
    constants = constant_nodes(gm, LARGEST_MASK)
    known: dict[fx.Node, str] = {}
    for node in nodes:
        mask = node.args[3]
        if mask in constants:
            if mask not in known:
                value = evaluate(gm, [mask]).get(mask)
                with _disable_current_modes():
                    known[mask] = kind_of(value)
            if known[mask]:
                head, dropout = node.args[:3], node.args[5] if len(node.args) > 5 else 0.0
                node.args = (*head, None, node.args[4], dropout, known[mask] == "triangle", *node.args[7:])
    gm.graph.eliminate_dead_code(lambda n: n not in constants)


def _has_simple_mask(node: fx.Node) -> bool:
    mask = node.args[3]
    is_causal = node.args[6] if len(node.args) > 6 else node.kwargs.get("is_causal", False)
    reads_more = any(u.users and (not is_getitem(u) or u.args[1] != 0) for u in node.users)
    if not isinstance(mask, fx.Node) or is_causal or reads_more or "is_causal" in node.kwargs:
        return False
    return isinstance(value_of(mask), torch.Tensor) and not symbols_of(value_of(mask))


def kind_of(mask: torch.Tensor | None) -> str:
    """What an additive mask ``[..., S, T]`` does: ``nothing``, hide what comes later (``triangle``), or else ``""``.

    What it hides has minus infinity or the smallest number of its dtype: behind the softmax both are zero, since every
    row of a triangle has something to attend to.
    """
    if mask is None or not mask.is_floating_point() or mask.dim() < 2 or not mask.numel():
        return ""
    shown = mask == 0
    if bool(shown.all()):
        return "nothing"
    length, width = mask.shape[-2:]
    if length != width or not bool((shown | (mask <= torch.finfo(mask.dtype).min)).all()):
        return ""
    triangle = torch.ones(length, width, dtype=torch.bool, device=mask.device).tril()
    return "triangle" if bool((shown == triangle).all()) else ""
