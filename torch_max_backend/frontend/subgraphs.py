"""The graphs that control flow holds, compiled as graphs of their own: the call path chooses and repeats them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from torch_max_backend.capture.fake_tensors import value_of
from torch_max_backend.capture.inlining import graph_of
from torch_max_backend.frontend.compiled_graph import CompiledGraph
from torch_max_backend.options import Options
from torch_max_backend.partition.control_flow import is_control_flow


def compile_subgraphs(
    gm: fx.GraphModule, options: Options, compile_graph: Callable[..., CompiledGraph]
) -> dict[str, CompiledGraph]:
    """The graphs of all control flow in ``gm``, by the attribute that holds each.

    They know nothing of what AOTAutograd knows of the graph around them: no parameters, no strides that a backward
    wants. None is recorded as a device graph, since a recording would write over what the iteration before has given.
    """
    held = {
        str(n.target): found
        for node in gm.graph.nodes
        if is_control_flow(node)
        for n in node.all_input_nodes
        if (found := graph_of(gm, n)) is not None
    }
    alone = dataclasses.replace(options, device_graphs=False)
    with torch._guards.tracing(None):
        return {name: _compiled(graph, alone, compile_graph) for name, graph in held.items()}


def _compiled(held: fx.GraphModule, options: Options, compile_graph: Callable[..., CompiledGraph]) -> CompiledGraph:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in held.graph.nodes:
        if node.op == "output":
            results: Any = node.args[0]
            results = tuple(results) if isinstance(results, list | tuple) else (results,)
            graph.output(fx.node.map_arg(results, copies.__getitem__))
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    inputs = [value_of(n) for n in graph.find_nodes(op="placeholder")]
    return compile_graph(fx.GraphModule(held, graph), inputs, options=options)
