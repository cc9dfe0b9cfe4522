"""Cutting a backward into stages, so that what the forward kept for it can be freed before it ends.

A region holds its inputs until it returns. Those of a backward are most of the forward's activations, which torch's
engine has given up: after a stage, the ones that no later stage reads are freed, and gradients take their memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from torch import fx

from torch_max_backend.aten_functions.torch_executed.collectives import WAITS
from torch_max_backend.capture.fake_tensors import tensors_of, value_of
from torch_max_backend.capture.fx_nodes import is_getitem
from torch_max_backend.partition.late_nodes import bytes_of, first_reader

STAGE_BYTES = 32 * 2**20
"""Memory that a stage must free, at least."""
MOST_STAGES = 8


def stages(nodes: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """The nodes of a region, in graph order, as lists that run one after the other; one list where nothing is gained.

    Only on a CPU and for static sizes. What a stage reads of another is a tensor between them, so cuts are made where
    few bytes cross.
    """
    freed = _freed(nodes)
    count = min(int(sum(freed.values()) // STAGE_BYTES), MOST_STAGES)
    if count < 2:
        return [list(nodes)]
    index = {n: i for i, n in enumerate(nodes)}
    cuts = _cuts(nodes, index, freed, count)
    stage = {n: sum(cut <= i for cut in cuts) for n, i in index.items()}
    for node in reversed(
        nodes
    ):  # so the gradient of a table that is the last layer's weight, too, waits for the first's
        stage[node] = max(stage[node], first_reader(node, stage) or 0)
    for node in nodes:  # a collective ends in the stage in which it starts
        if is_getitem(node) or node.target in WAITS:
            stage[node] = max(stage.get(n, stage[node]) for n in node.all_input_nodes)
    found: list[list[fx.Node]] = [[] for _ in range(len(cuts) + 1)]
    for node in nodes:
        found[stage[node]].append(node)
    return [part for part in found if part]


def _freed(nodes: Sequence[fx.Node]) -> Mapping[fx.Node, float]:
    """The inputs that only live for a backward, with their bytes; none if this is something else.

    AOTAutograd calls gradients tangents and the forward's own inputs, which stay, primals.
    """
    if not nodes:
        return {}
    inputs = [n for n in nodes[0].graph.nodes if n.op == "placeholder"]
    if not any(str(n.target).startswith("tangents") for n in inputs):
        return {}
    found = {n: bytes_of(n) for n in inputs if not str(n.target).startswith("primals")}
    sizes = (*found.values(), *map(bytes_of, nodes))
    devices = {t.device.type for n in (*inputs, *nodes) for t in tensors_of(value_of(n))}
    return found if all(map(math.isfinite, sizes)) and devices <= {"cpu"} else {}


def _cuts(
    nodes: Sequence[fx.Node], index: Mapping[fx.Node, int], freed: Mapping[fx.Node, float], count: int
) -> list[int]:
    """Positions before which to cut: where the fewest bytes cross, near those that free equal parts."""
    last_read = _last_reads(nodes[0].graph, index)
    gone = [0.0] * (len(nodes) + 1)
    for x, size in freed.items():
        gone[last_read[x] + 1] += size
    gone = list(itertools.accumulate(gone))
    crossing = _crossing(nodes, index)
    wanted = [gone[-1] * k / count for k in range(count + 1)]
    cuts = []
    for low, high in itertools.pairwise(wanted[:-1]):
        middle = (low + high) / 2
        near = [i for i in range(1, len(nodes)) if middle < gone[i] <= middle + high - low]
        if near:
            cuts.append(min(near, key=lambda i: (crossing[i], i)))
    return sorted(set(cuts))


def _last_reads(graph: fx.Graph, index: Mapping[fx.Node, int]) -> dict[fx.Node, int]:
    """Per node the position of the last one of the region that reads it, directly or through what is in no region."""
    last: dict[fx.Node, int] = {}
    for node in reversed(graph.nodes):
        last[node] = max((index.get(u, last[u]) for u in node.users), default=-1)
    return last


def _crossing(nodes: Sequence[fx.Node], index: Mapping[fx.Node, int]) -> list[float]:
    """Per position the bytes that are made before it and read behind it, without what leaves the region anyway."""
    change = [0.0] * (len(nodes) + 2)
    for i, node in enumerate(nodes):
        last = max((index[u] for u in node.users if u in index), default=i)
        if last > i and not any(u.op == "output" for u in node.users):
            change[i + 1] += bytes_of(node)
            change[last + 1] -= bytes_of(node)
    return list(itertools.accumulate(change))


def homes(parts: Iterable[Iterable[fx.Node]]) -> dict[fx.Node, int]:
    """The number of the part that each node is in."""
    return {n: k for k, part in enumerate(parts) for n in part}
