"""Nodes that run as late as what reads them.

What AOTAutograd has a backward compute again depends on nothing but what the forward saved. Cut into steps by what has
to run before what, all of it would be computed in the first step, and kept to the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import fx

from torch_max_backend.aten_functions.torch_executed.collectives import COLLECTIVES
from torch_max_backend.capture.fake_tensors import tensors_of, value_of
from torch_max_backend.capture.fx_nodes import is_getitem


def first_reader(node: fx.Node, step: Mapping[fx.Node, int]) -> int | None:
    """The step of the first reader of a node, which may as well be computed there; none if it has to stay.

    It stays where what it reads takes more memory than what it makes, where something outside the steps reads it, and
    where its place among others of its kind counts.
    """
    readers = [step.get(u) for u in node.users]
    if not readers or None in readers or is_getitem(node) or node.target in COLLECTIVES:
        return None
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return None
    if bytes_of(node) < sum(map(bytes_of, node.all_input_nodes)):
        return None
    return min(s for s in readers if s is not None)


def bytes_of(node: fx.Node) -> float:
    """The size of a node's tensors; infinite if it is symbolic."""
    total = 0.0
    for tensor in tensors_of(value_of(node)):
        numel = tensor.numel()
        total += numel * tensor.element_size() if isinstance(numel, int) else math.inf
    return total
