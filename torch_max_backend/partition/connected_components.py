"""Cutting a large region that falls apart: an optimizer's step is one small program for each parameter.

MAX's compile time grows much faster than the number of independent parts in a graph (see ``docs/compile-time.md``), and
parts of the same shapes are the same program. So parts that are alike are put together in groups of one size, whose
regions are then equal and compiled once.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable

from torch import fx

from torch_max_backend.capture.fake_tensors import sizes_of, tensors_of, value_of

Part = tuple[list[fx.Node], list[fx.Node]]
"""Nodes of a region, and its writes into inputs."""

LARGE = 256
"""Nodes from which on a region is cut."""
GROUP = 128
"""Nodes that a group has at most, if it has more than one part."""


def split(
    nodes: list[fx.Node], stores: list[fx.Node], repeated: Callable[[Iterable[fx.Node]], list[fx.Node]]
) -> list[Part]:
    """Cut the nodes of a level into regions that can run in any order.

    Args:
        nodes: In graph order.
        stores: The writes into inputs that belong to them.
        repeated: Gives the nodes outside ``nodes`` that are copied into every region that reads them.
    """
    if len(nodes) < LARGE:
        return [(nodes, stores)]
    parts = connected(nodes, stores, repeated)
    alike: dict[tuple[object, ...], list[Part]] = collections.defaultdict(list)
    for part in parts:
        alike[_signature(part[0])].append(part)
    groups = []
    for same in alike.values():
        count = math.ceil(len(same) / max(1, GROUP // len(same[0][0])))
        for k in range(count):  # of sizes that differ by one at most, since equal groups are compiled once
            group = same[k * len(same) // count : (k + 1) * len(same) // count]
            groups.append(([n for part in group for n in part[0]], [s for part in group for s in part[1]]))
    return groups


def connected(
    nodes: list[fx.Node], stores: list[fx.Node], repeated: Callable[[Iterable[fx.Node]], list[fx.Node]]
) -> list[Part]:
    """Connected parts, in graph order. A write is connected with whatever reads the old value."""
    parent = {n: n for n in nodes}

    def find(node: fx.Node) -> fx.Node:
        while parent[node] is not node:
            parent[node] = node = parent[parent[node]]
        return node

    written = {store.args[0]: store.args[1] for store in stores}
    for node in nodes:
        through = [node, *repeated([node])] if any(n not in parent for n in node.all_input_nodes) else [node]
        for source in (s for n in through for s in n.all_input_nodes):
            for other in (source, written.get(source)):
                if other in parent:
                    parent[find(other)] = find(node)
    found: dict[fx.Node, Part] = {}
    for node in nodes:
        found.setdefault(find(node), ([], []))[0].append(node)
    for store in stores:
        found[find(store.args[1])][1].append(store)
    return list(found.values())


def _signature(nodes: list[fx.Node]) -> tuple[object, ...]:
    """Equal for parts that are probably the same program."""
    return tuple(
        (
            str(node.target),
            *(
                (t.dtype, *map(str, sizes_of(t)))
                for n in (node, *node.all_input_nodes)
                for t in tensors_of(value_of(n))
            ),
        )
        for node in nodes
    )
