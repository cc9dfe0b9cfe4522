"""Attention masks that are known when the graph is compiled.

Models build the triangle of causal attention, or a mask that hides nothing, from positions, and hand it to attention as
a tensor. Attention that is told so reads no mask, and skips the half that a triangle hides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from torch_max_backend.capture.constant_folding import constant_nodes, evaluate
from torch_max_backend.capture.fake_tensors import symbols_of, tensor_of, value_of
from torch_max_backend.capture.fx_nodes import is_getitem

aten = torch.ops.aten

LARGEST_MASK = 1 << 30
"""Bytes above which a mask is not computed to look at it."""

HIDING = torch.finfo(torch.bfloat16).min / 16
"""What hides scores in a fused kernel where a model adds the lowest number. Kernels take powers of two: the lowest
number times log2(e) is minus infinity, for which a row that is hidden as a whole is zeros, and not the mean of all
values."""

BOOLEAN_HIDDEN = -65504.0
"""What torch 2.11 adds to hidden scores where it turns a boolean mask into numbers for cuDNN."""


@dataclass(frozen=True)
class Places:
    """Where an attention op has what: positions of the mask and of ``is_causal`` among its arguments.

    ``defaults`` are those of the arguments from the mask to ``is_causal``, as far as they have any.
    """

    mask: int
    is_causal: int
    defaults: tuple[Any, ...]


_FUSED = Places(3, 6, (None, False, 0.0, False))
ATTENTION = {
    aten.scaled_dot_product_attention.default: Places(3, 5, (None, 0.0, False)),
    aten._scaled_dot_product_efficient_attention.default: _FUSED,
    aten._scaled_dot_product_cudnn_attention.default: _FUSED,
}
"""Attention on a GPU that takes a mask."""

BACKWARD = {
    aten._scaled_dot_product_efficient_attention_backward.default: Places(4, 11, (False,)),
    aten._scaled_dot_product_cudnn_attention_backward.default: Places(8, 14, ()),
}
"""Their gradients, which take it too."""


def simplify_masks(gm: fx.GraphModule) -> None:
    """Replace constant masks that hide nothing by none, and triangles by ``is_causal``.

    The gradients change along with the attention. Where a graph lacks either of them, both are left alone.
    """
    nodes = [n for n in gm.graph.nodes if n.target in ATTENTION and _has_simple_mask(n)]
    if not nodes:
        return
    constants = constant_nodes(gm, LARGEST_MASK)
    known: dict[fx.Node, str] = {}
    for node in nodes:
        places = ATTENTION[node.target]
        mask = node.args[places.mask]
        if mask in constants:
            if mask not in known:
                value = evaluate(gm, [mask]).get(mask)
                with _disable_current_modes():
                    known[mask] = kind_of(value)
            if known[mask]:
                for each in (node, *_gradients(node)):
                    _tell(each, known[mask] == "triangle")
    gm.graph.eliminate_dead_code(lambda n: n not in constants)


def _tell(node: fx.Node, is_causal: bool) -> None:
    """Hand over no mask, but ``is_causal``."""
    places = (ATTENTION | BACKWARD)[node.target]
    given = places.is_causal + 1 - len(places.defaults)
    args = [*node.args, *places.defaults[len(node.args) - given :]]
    args[places.mask], args[places.is_causal] = None, is_causal
    node.args = tuple(args)


def _has_simple_mask(node: fx.Node) -> bool:
    """Whether the mask of this attention may go, which its gradients, all that reads its further results, have too."""
    mask = _mask(node, ATTENTION[node.target])
    if mask is None or not tensor_of(node).is_cuda or symbols_of(value_of(mask)):
        return False
    return all(n.target in BACKWARD and _mask(n, BACKWARD[n.target]) is mask for n in _readers_of_more(node))


def _mask(node: fx.Node, places: Places) -> fx.Node | None:
    """The mask, if there is one, and nothing but it hides anything."""
    is_named = {"attn_mask", "attn_bias", "is_causal"} & node.kwargs.keys()
    if is_named or len(node.args) <= places.mask or True in node.args[places.is_causal : places.is_causal + 1]:
        return None
    mask = node.args[places.mask]
    return mask if isinstance(mask, fx.Node) and isinstance(value_of(mask), torch.Tensor) else None


def _readers_of_more(node: fx.Node) -> list[fx.Node]:
    """What reads anything of attention but its first result."""
    if not isinstance(value_of(node), list | tuple):
        return []
    further = [u for u in node.users if not is_getitem(u) or u.args[1] != 0]
    return [reader for u in further for reader in (u.users if is_getitem(u) else [u])]


def _gradients(node: fx.Node) -> list[fx.Node]:
    return list(dict.fromkeys(_readers_of_more(node)))


def kind_of(mask: torch.Tensor | None) -> str:
    """What an additive mask ``[..., S, T]`` does: ``nothing``, hide what comes later (``triangle``), or else ``""``.

    What it hides has minus infinity, or a number that stands for it in models or in torch: behind the softmax all are
    zero, since every row of a triangle has something to attend to. A boolean mask tells what is shown.
    """
    if mask is None or mask.dim() < 2 or not mask.numel():
        return ""
    if mask.dtype == torch.bool:
        shown, hidden = mask, ~mask
    elif mask.is_floating_point():
        hiding = max(torch.finfo(mask.dtype).min, HIDING)
        shown, hidden = mask == 0, (mask <= hiding) | (mask == BOOLEAN_HIDDEN)
    else:
        return ""
    if bool(shown.all()):
        return "nothing"
    length, width = mask.shape[-2:]
    if length != width or not bool((shown | hidden).all()):
        return ""
    triangle = torch.ones(length, width, dtype=torch.bool, device=mask.device).tril()
    return "triangle" if bool((shown == triangle).all()) else ""
