"""Where a region checks indices on a GPU: its *sites*, which its kernels name by number when they report one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import fx

from torch_max_backend.aten_functions.registry import aten_functions
from torch_max_backend.base.index_sites import Site
from torch_max_backend.capture.fake_tensors import tensor_of, tensors_of, user_line, value_of
from torch_max_backend.capture.fx_nodes import map_nodes
from torch_max_backend.partition.classify import concrete
from torch_max_backend.partition.region import Region, canonical_call


@dataclass(frozen=True)
class IndexChecks:
    """What a region checks.

    ``sites`` are numbered in the region's order, ``of_node`` has the numbers of each node's checks. ``devices`` are the
    GPUs that the nodes are on: the region has an input for each, in this order, behind all others.
    """

    sites: tuple[Site, ...] = ()
    of_node: dict[fx.Node, tuple[int, ...]] = field(default_factory=dict)
    devices: tuple[torch.device, ...] = ()


def _is_on_gpu(device: torch.device) -> bool:
    return device.type != "cpu"


def index_checks(region: Region, on_gpu: Callable[[torch.device], bool] = _is_on_gpu) -> IndexChecks:
    """The checks of a region, which follow from its canonical text alone, but for the lines of the user's program.

    Nodes that are equal but for their operands share sites: a site is a constant in a kernel, and with one of its own
    for each the compiler would make a kernel of each.
    """
    numbers: dict[tuple[str, int], int] = {}
    found: list[tuple[str, str, dict[str, None]]] = []
    of_node: dict[fx.Node, tuple[int, ...]] = {}
    devices: dict[torch.device, None] = {}
    for node in region.nodes:
        messages = _messages(node, on_gpu)
        if not messages:
            continue
        text = canonical_call(region, node)
        devices[tensor_of(node).device] = None
        for k, message in enumerate(messages):
            if (text, k) not in numbers:
                numbers[text, k] = len(found)
                found.append((str(node.target), message, {}))
            if line := user_line(node):
                found[numbers[text, k]][2][line] = None
        of_node[node] = tuple(numbers[text, k] for k in range(len(messages)))
    sites = tuple(Site(op, message, tuple(lines)) for op, message, lines in found)
    return IndexChecks(sites, of_node, tuple(devices))


def _messages(node: fx.Node, on_gpu: Callable[[torch.device], bool]) -> list[str]:
    """Eager's messages for what the node checks on a GPU."""
    lowering = aten_functions.get(node.target)
    if (
        lowering is None
        or lowering.out_of_range is None
        or not any(on_gpu(t.device) for t in tensors_of(value_of(node)))
    ):
        return []
    kwargs = {name: map_nodes(value, concrete) for name, value in node.kwargs.items()}
    return list(lowering.out_of_range(*map_nodes(node.args, concrete), **kwargs))
