"""Which higher-order ops are control flow between compiled graphs, and why others are not."""

from __future__ import annotations

from torch import fx
from torch._ops import OpOverload

from torch_max_backend.capture.inlining import NOT_INLINED, graph_of, name_of
from torch_max_backend.runtime.control_flow import RUN

REASON = "control flow: the call path chooses between compiled graphs, or repeats one"


def is_control_flow(node: fx.Node) -> bool:
    """Whether the call path runs a node, on compiled graphs."""
    return name_of(node) in RUN and not why_no_control_flow(node)


def why_no_control_flow(node: fx.Node) -> str:
    """Why torch runs a node of a higher-order op; empty if the call path does."""
    if name_of(node) not in RUN:
        return node.meta.get(NOT_INLINED, "not an ATen op")
    if node.kwargs.get("mutated_arg_indices") or any(map(_writes, _graphs_of(node))):
        return "one of its graphs writes to an argument"
    return ""


def _graphs_of(node: fx.Node) -> list[fx.GraphModule]:
    held = (graph_of(node.graph.owning_module, n) for n in node.all_input_nodes)
    return [graph for graph in held if graph is not None]


def _writes(graph: fx.GraphModule) -> bool:
    return any(
        (isinstance(n.target, OpOverload) and n.target._schema.is_mutable) or any(map(_writes, _graphs_of(n)))
        for n in graph.graph.nodes
    )
