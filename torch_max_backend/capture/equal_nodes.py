"""Nodes that compute the same become one."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx


def share_equal_nodes(gm: fx.GraphModule) -> None:
    """Compute what is asked for twice once, as torch's partitioner of forward and backward does.

    Not what the graph returns, which is memory of its own. A graph that writes into arguments stays as it is: an
    optimizer's step has a part for each parameter, and is recognised by that.
    """
    if gm.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        return
    returned = set(gm.graph.output_node().all_input_nodes)
    known: dict[Any, fx.Node] = {}
    for node in [n for n in gm.graph.nodes if n.op == "call_function"]:
        if node in returned or not _is_pure(node):
            continue
        key = (node.target, _hashable(node.args), _hashable(dict(node.kwargs)))
        first = known.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)


def _is_pure(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return (type(value).__name__, *map(_hashable, value))
    if isinstance(value, dict):
        return tuple((k, _hashable(v)) for k, v in sorted(value.items()))
    if isinstance(value, fx.Node):
        return value
    return (type(value).__name__, repr(value) if isinstance(value, int | float | str) else value)
