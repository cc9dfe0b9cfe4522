"""Cutting a level by who runs its nodes: programs have one device, and a program and a MAX graph are two regions."""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterable

import torch
from torch import fx

from torch_max_backend.capture.device_copies import devices_of
from torch_max_backend.capture.fx_nodes import is_getitem
from torch_max_backend.partition.connected_components import Part
from torch_max_backend.partition.late_nodes import first_reader


def by_device(nodes: list[fx.Node]) -> list[list[fx.Node]]:
    """The nodes of a level by the device of their tensors, GPUs first, since the host does not wait for them.

    All are one list if some node reads another device's tensor, which only MAX's graph compiler can run.
    """
    found: dict[torch.device, list[fx.Node]] = {}
    for node in nodes:
        devices = devices_of(node).union(*map(devices_of, node.all_input_nodes))
        if len(devices) != 1:
            return [nodes]
        found.setdefault(devices.pop(), []).append(node)
    return [found[d] for d in sorted(found, key=lambda d: d.type == "cpu")]


def split_by_executor(
    nodes: list[fx.Node],
    stores: list[fx.Node],
    without_loops: Collection[fx.Node],
    repeated: Callable[[Iterable[fx.Node]], list[fx.Node]],
) -> tuple[list[Part], list[fx.Node]]:
    """Cut the nodes of a level into those with and those without loops, in as few parts as their order allows.

    Args:
        nodes: In graph order.
        stores: The writes into inputs that belong to them.
        without_loops: Nodes that only MAX's graph compiler can run.
        repeated: Gives the nodes outside ``nodes`` that are copied into every region that reads them.

    Returns:
        The parts in running order, and the writes that no part may do, since a later one reads the old value.
    """
    if not any(n in without_loops for n in nodes):
        return [(nodes, stores)], []
    step: dict[fx.Node, int] = {}
    for node in nodes:
        if is_getitem(node) and node.all_input_nodes[0] in step:
            step[node] = step[node.all_input_nodes[0]]
            continue
        odd = int(node in without_loops)  # the parity of a step says what its nodes have
        before = [step[n] for n in node.all_input_nodes if n in step]
        step[node] = max((s + (s % 2 != odd) for s in before), default=odd)
    for node in reversed(nodes) if not stores else ():
        first = first_reader(node, step)
        if first is not None:
            step[node] = max(step[node], first - (first - step[node]) % 2)
    members: dict[int, list[fx.Node]] = collections.defaultdict(list)
    for node in nodes:
        members[step[node]].append(node)
    order = sorted(members)
    reads = {s: {n for node in [*members[s], *repeated(members[s])] for n in node.all_input_nodes} for s in order}
    writes: dict[int, list[fx.Node]] = collections.defaultdict(list)
    late: list[fx.Node] = []
    for store in stores:
        own = step[store.args[1]]
        is_read_later = any(store.args[0] in reads[s] for s in order if s > own)
        (late if is_read_later else writes[own]).append(store)
    return [(members[s], writes[s]) for s in order], late
