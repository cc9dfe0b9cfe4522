"""Softmaxes in float32, which a backward may compute again from the scores and two numbers a row.

Autocast computes softmaxes of 16-bit scores in float32, and a backward reads their results, which are twice as large as
the scores. Before the cut a result is written out in ops that min-cut knows; in the forward it is the softmax's own
again.
"""

from __future__ import annotations

import torch
from torch import fx

from torch_max_backend.capture.fake_tensors import tensor_of
from torch_max_backend.capture.fx_nodes import calls_like
from torch_max_backend.capture.user_controlled_ops import is_taken

aten = torch.ops.aten

SOFTMAX = "torch_max_backend_softmax"
"""What the last node of a written out softmax calls the op's arguments in its ``meta``."""


def write_out_softmaxes(gm: fx.GraphModule) -> None:
    """Write softmaxes that a backward reads as ``exp(x - largest) / total``."""
    if is_taken(aten._softmax.default, aten._softmax_backward_data.default):
        return
    for node in gm.graph.find_nodes(op="call_function", target=aten._softmax.default):
        x, dim, widens = node.args
        has_backward = any(n.target is aten._softmax_backward_data.default for n in node.users)
        if not has_backward or tensor_of(node).dtype is not torch.float32 or tensor_of(node).dim() == 0:
            continue
        with gm.graph.inserting_before(node):
            call = calls_like(gm, node)
            wide = call(aten._to_copy.default, x, dtype=torch.float32) if widens else x
            largest = call(aten.amax.default, wide, [dim], True)
            exponential = call(aten.exp.default, call(aten.sub.Tensor, wide, largest))
            total = call(aten.sum.dim_IntList, exponential, [dim], True)
            end = call(aten.div.Tensor, exponential, total)
        end.meta[SOFTMAX] = (x.name, dim, widens)
        node.replace_all_uses_with(end)
        gm.graph.erase_node(node)


def restore_softmaxes(forward: fx.GraphModule) -> None:
    """Have a forward compute softmaxes as such."""
    names = {n.name: n for n in forward.graph.nodes}
    for end in list(forward.graph.nodes):
        name, dim, widens = end.meta.get(SOFTMAX, ("", 0, False))
        if name not in names:
            continue
        with forward.graph.inserting_before(end):
            result = forward.graph.call_function(aten._softmax.default, (names[name], dim, widens))
        result.meta = {k: v for k, v in end.meta.items() if k != SOFTMAX}
        end.replace_all_uses_with(result)
    forward.graph.eliminate_dead_code()
    forward.recompile()
