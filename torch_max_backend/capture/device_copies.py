"""Copies from one device to another as nodes of their own, which torch runs: a program has one device.

Torch takes a number on the host, and indices there, beside tensors of a GPU, and moves them itself. Here a node moves
them, so that all that computes is on one device.
"""

from __future__ import annotations

import torch
from torch import fx

from torch_max_backend.capture.fake_tensors import tensors_of, value_of
from torch_max_backend.capture.fx_nodes import call_node
from torch_max_backend.capture.user_controlled_ops import is_taken

aten = torch.ops.aten

BETWEEN_DEVICES = "torch_max_backend_between_devices"
"""What a node's ``meta`` has if it does nothing but copy a tensor to another device."""
_COPIES = (aten._to_copy.default, torch.ops.prims.device_put.default)
_TAKES_INDICES = (
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.index_put.default,
    aten._unsafe_index_put.default,
)
"""Ops of which indices may be on the host, of any size."""


def name_device_copies(gm: fx.GraphModule) -> bool:
    """Mark the nodes that copy to another device, and write out those copies that torch would make inside of an op.

    Returns:
        Whether there are any of the latter.
    """
    if is_taken(*_COPIES):
        return False
    copies: dict[tuple[fx.Node, torch.device], fx.Node] = {}
    for node in list(gm.graph.nodes):
        made = devices_of(node)
        if node.op != "call_function" or len(made) != 1:
            continue
        (device,) = made
        for source in node.all_input_nodes:
            if devices_of(source) <= made:
                continue
            if node.target in _COPIES:
                node.meta[BETWEEN_DEVICES] = True
            elif _moves_itself(node, source):
                if (source, device) not in copies:
                    with gm.graph.inserting_before(node):
                        copied = call_node(gm, aten._to_copy.default, (source,), node, device=device)
                    copied.meta[BETWEEN_DEVICES] = True
                    copies[source, device] = copied
                node.replace_input_with(source, copies[source, device])
    return bool(copies)


def devices_of(node: fx.Node) -> set[torch.device]:
    """Where the tensors of a node's value are; of a GPU with its number."""
    found = {t.device for t in tensors_of(value_of(node))}
    return {torch.device("cuda", d.index or 0) if d.type == "cuda" else d for d in found}


def _moves_itself(node: fx.Node, source: fx.Node) -> bool:
    """Whether torch takes ``source`` from the host, though the result of ``node`` is elsewhere."""
    found = tensors_of(value_of(source))
    if not isinstance(node.target, torch._ops.OpOverload) or any(t.device.type != "cpu" for t in found):
        return False
    is_number = all(t.dim() == 0 for t in found)
    return node.target in _TAKES_INDICES or (is_number and torch.Tag.pointwise in node.target.tags)
