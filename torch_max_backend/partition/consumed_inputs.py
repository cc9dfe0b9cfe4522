"""Which inputs of a region end with it, so that its program can free each of them after its own last use.

Most of what a backward has in memory at its beginning is what the forward has saved. Held until the backward returns,
it lies beside all gradients; freed as it is read, gradients take its memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable

from torch import fx

from torch_max_backend.capture.fake_tensors import storage_key, tensors_of, value_of
from torch_max_backend.partition.partitioner import Plan
from torch_max_backend.partition.region import Region


def mark_consumed(plan: Plan, graph: fx.Graph) -> None:
    """Mark the inputs whose memory nobody reads behind the region: results of earlier steps, and what a forward saved.

    A backward's caller gives up what it hands over. All other arguments are the caller's, and stay.
    """
    last: dict[Hashable, int] = {}
    for k, step in enumerate(plan.steps):
        read = [p.node for p in step.inputs] if isinstance(step, Region) else step.all_input_nodes
        last.update(dict.fromkeys(_storages(read), k))
    (output,) = graph.find_nodes(op="output")
    leaving = [n for copy in plan.copies for n in copy.all_input_nodes]
    for result in output.all_input_nodes:
        leaving += [result, plan.alias.get(result, result)]
    last.update(dict.fromkeys(_storages([*leaving, *_kept(graph)]), len(plan.steps)))
    for k, step in enumerate(plan.steps):
        if isinstance(step, Region):
            step.inputs = [
                dataclasses.replace(port, consumed=all(last[s] == k for s in _storages([port.node])))
                if not port.mutable
                else port
                for port in step.inputs
            ]


def _kept(graph: fx.Graph) -> list[fx.Node]:
    """Constants, and arguments that a caller keeps."""
    inputs = graph.find_nodes(op="placeholder")
    is_backward = any(str(n.target).startswith("tangents") for n in inputs)
    kept = [n for n in inputs if not is_backward or str(n.target).startswith(("primals", "tangents"))]
    return kept + graph.find_nodes(op="get_attr")


def _storages(nodes: Iterable[fx.Node]) -> set[Hashable]:
    """The memory that nodes lie in; a node by itself where that is not known."""
    return {storage_key(t) or node for node in nodes for t in tensors_of(value_of(node))}
