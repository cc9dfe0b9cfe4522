"""Nodes that compute the same become one."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from torch_max_backend.capture.fake_tensors import storage_key, symbols_of, tensors_of, value_of

aten = torch.ops.aten


def share_equal_nodes(gm: fx.GraphModule) -> None:
    """Compute what is asked for twice once, but for what the graph returns, which is memory of its own.

    A graph that writes into arguments stays as it is: an optimizer's step has a part for each parameter, and is
    recognised by that.
    """
    if not gm.graph.find_nodes(op="call_function", target=aten.copy_.default):
        _share(gm, frozenset())


def share_equal_nodes_of_both(joint: fx.GraphModule, forward_outputs: int) -> None:
    """The same for a graph of forward and backward, before it is cut.

    AOTAutograd's partitioner has a pass for it, which imports Inductor's pattern matcher and with it all of Inductor's
    lowering: a second of each process that trains. As there, what the forward alone computes is not merged with what
    its backward needs, which would be saved for that.

    Args:
        forward_outputs: How many outputs are the forward's, in front of the backward's.
    """
    outputs = pytree.tree_leaves(joint.graph.output_node().args)
    _share(joint, _needed_for(n for n in outputs[forward_outputs:] if isinstance(n, fx.Node)))


def _share(gm: fx.GraphModule, for_backward: set[fx.Node] | frozenset[fx.Node]) -> None:
    returned = {memory for n in gm.graph.output_node().all_input_nodes for memory in _memory_of(n)}
    known: dict[Any, fx.Node] = {}
    writes = 0
    for node in [n for n in gm.graph.nodes if n.op == "call_function"]:
        writes += isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
        if not _is_pure(node) or not returned.isdisjoint(_memory_of(node)):
            continue
        marked = [repr(node.meta.get(name)) for name in ("recompute", "custom")]  # by checkpoints, and by users
        arguments = _hashable(node.args), _hashable(dict(node.kwargs))
        key = (node.target, *arguments, node in for_backward, writes, *marked)
        first = known.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)


def _is_pure(node: fx.Node) -> bool:
    """Whether a node gives the same each time, and nobody writes into it."""
    target, value = node.target, value_of(node)
    if symbols_of(value) and free_unbacked_symbols(value):  # each has a name of its own
        return False
    if any(isinstance(n.target, torch._ops.HigherOrderOperator) for n in node.users):
        return False
    if not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem
    is_written = target._schema.is_mutable or target.overloadpacket in _UNWRITTEN
    return not is_written and torch.Tag.nondeterministic_seeded not in target.tags


_UNWRITTEN = {aten.empty, aten.empty_like, aten.empty_strided, aten.empty_permuted, aten.new_empty}


def _memory_of(node: fx.Node) -> list[Any]:
    """Where a node's tensors lie, all of them if it has several."""
    return [storage_key(x) for x in tensors_of(value_of(node))]


def _needed_for(outputs: Iterable[fx.Node]) -> set[fx.Node]:
    """All that some outputs are computed from, and they themselves."""
    found: set[fx.Node] = set()
    left = list(outputs)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += node.all_input_nodes
    return found


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return (type(value).__name__, *map(_hashable, value))
    if isinstance(value, dict):
        return tuple((k, _hashable(v)) for k, v in sorted(value.items()))
    if isinstance(value, fx.Node):
        return value
    return (type(value).__name__, repr(value) if isinstance(value, int | float | complex | str) else value)
