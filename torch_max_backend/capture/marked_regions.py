"""Regions that a user has marked by ``torch.compiler.nested_compile_region`` become part of the graph around them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from torch_max_backend.capture.fake_tensors import tensors_of, value_of


def inline_marked_regions(gm: fx.GraphModule) -> None:
    """Put the ops of a marked region in the place of each of its calls.

    They are lowered like all others then. The values that torch promises are computed anew for every call: those of a
    call that was not traced again are the first call's, and share that one's memory.
    """
    op = getattr(torch.ops.higher_order, "invoke_subgraph", None)
    calls = [n for n in gm.graph.nodes if n.op == "call_function" and n.target is op]
    for call in calls:
        _inline(gm, call)
    if calls:
        gm.recompile()


def _inline(gm: fx.GraphModule, call: fx.Node) -> None:
    place, _, *arguments = call.args
    region = gm.get_submodule(place.target)
    inline_marked_regions(region)
    placeholders = region.graph.find_nodes(op="placeholder")
    copied: dict[fx.Node, Any] = dict(zip(placeholders, arguments, strict=True))
    with gm.graph.inserting_before(call):
        for node in region.graph.nodes:
            if node.op == "call_function":
                copied[node] = gm.graph.node_copy(node, copied.__getitem__)
                _promise(copied[node])
            elif node.op == "get_attr":
                copied[node] = _attribute(gm, region, place.target, node)
    results = region.graph.output_node().args[0]
    for reader in list(call.users):  # nothing but getitem
        result = results[reader.args[1]]
        reader.replace_all_uses_with(copied[result] if isinstance(result, fx.Node) else result)
        gm.graph.erase_node(reader)
    gm.graph.erase_node(call)
    if not place.users:
        gm.graph.erase_node(place)


def _attribute(gm: fx.GraphModule, region: fx.GraphModule, place: str, node: fx.Node) -> fx.Node:
    found = gm.graph.get_attr(f"{place}.{node.target}")
    found.meta.update(node.meta)
    return found


def _promise(node: fx.Node) -> None:
    """Compute what torch promises for a node from what it promises for its arguments."""
    known = next((t for n in (node, *node.all_input_nodes) for t in tensors_of(value_of(n))), None)
    if known is None or not hasattr(known, "fake_mode"):
        return
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), value_of)
    with known.fake_mode:
        node.meta["val"] = node.target(*args, **kwargs)
