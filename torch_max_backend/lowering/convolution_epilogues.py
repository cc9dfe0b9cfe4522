"""Chains of nodes that one kernel computes: a convolution and what follows it at the same places.

MAX fuses elementwise ops with each other, but not into a kernel of this project. Left to it, a network of convolutions
on a CPU reads and writes every image once more, and has a kernel for each shape and combination of norm, sum and
activation.

On a GPU what follows is a kernel behind the library's, which reads a channel's numbers once for many pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from torch_max_backend.aten_functions.registry import aten_functions
from torch_max_backend.capture.fake_tensors import sizes_of, tensor_of, value_of
from torch_max_backend.capture.fx_nodes import is_getitem
from torch_max_backend.partition.region import Region

aten = torch.ops.aten
OnGpu = Callable[[torch.device], bool]
_ON_A_CPU = (torch.float32, torch.float64)
_ON_A_GPU = (torch.bfloat16, torch.float16)
"""The library keeps the channels of these last in memory."""


@dataclass(frozen=True)
class Chain:
    """``clamp(norm(convolution) + addend, low, high)``, each part but the convolution optional.

    ``nodes`` are all of it in order. Only the value of the last one is read outside.
    """

    nodes: tuple[fx.Node, ...]
    norm: fx.Node | None = None
    addend: fx.Node | None = None
    low: float = -math.inf
    high: float = math.inf

    @property
    def convolution(self) -> fx.Node:
        """Where it starts."""
        return self.nodes[0]

    @property
    def last(self) -> fx.Node:
        """Where it ends."""
        return self.nodes[-1]


def convolution_chains(region: Region, on_gpu: OnGpu = lambda device: device.type != "cpu") -> list[Chain]:
    """All chains of two nodes and more. No node is in two of them."""
    inside = set(region.nodes)
    read_outside = {p.node for p in region.outputs} | {source for _, source in region.stores}
    taken: set[fx.Node] = set()
    chains = []
    for node in region.nodes:
        if not _is_fusible(node, on_gpu):
            continue
        chain = Chain((node,))
        while chain.last not in read_outside and len(chain.last.users) == 1:
            (user,) = chain.last.users
            longer = _followed_by(chain, user) if user in inside and user not in taken else None
            if longer is None:
                break
            chain = longer
        if len(chain.nodes) > 1:
            taken.update(chain.nodes)
            chains.append(chain)
    return chains


def _is_fusible(node: fx.Node, on_gpu: OnGpu) -> bool:
    if node.target is not aten.convolution.default or not is_own(node):
        return False
    value, is_transposed = tensor_of(node), node.args[6]
    if is_transposed or value.dtype not in (_ON_A_GPU if on_gpu(value.device) else _ON_A_CPU):
        return False
    if on_gpu(value.device) and (value.dim() < 4 or not sizes_of(value)[1].is_number):
        return False
    operands = [v for n in (node, *node.all_input_nodes) if isinstance(v := value_of(n), torch.Tensor)]
    return all(v.dtype == value.dtype and 0 not in sizes_of(v) for v in operands)


def _followed_by(chain: Chain, node: fx.Node) -> Chain | None:
    """The chain with one more node, or with a batch norm and the pick of its result; ``None`` if that is not fused."""
    is_bounded = (chain.low, chain.high) != (-math.inf, math.inf)
    if is_bounded or not is_own(node):
        return None
    if node.target is aten._native_batch_norm_legit_no_training.default:
        pick = next(iter(node.users), node)
        starts = chain.norm is None and chain.addend is None
        same = all(tensor_of(n).dtype == tensor_of(chain.last).dtype for n in node.all_input_nodes)
        if not starts or not same or len(node.users) != 1 or not is_getitem(pick) or pick.args[1] != 0:
            return None
        return replace(chain, nodes=(*chain.nodes, node, pick), norm=node)
    if node.target is aten.add.Tensor and chain.addend is None:
        addend = next((a for a in node.args if a is not chain.last), None)
        if not isinstance(addend, fx.Node) or node.kwargs.get("alpha", 1) != 1:
            return None
        mine, other = tensor_of(chain.last), value_of(addend)
        if not isinstance(other, torch.Tensor) or (other.dtype, other.device) != (mine.dtype, mine.device):
            return None
        return replace(chain, nodes=(*chain.nodes, node), addend=addend) if sizes_of(other) == sizes_of(mine) else None
    bounds = _bounds(node)
    return None if bounds is None else replace(chain, nodes=(*chain.nodes, node), low=bounds[0], high=bounds[1])


def _bounds(node: fx.Node) -> tuple[float, float] | None:
    """What the node clamps its first argument to."""
    if node.target is aten.relu.default:
        return 0.0, math.inf
    if node.target not in (aten.hardtanh.default, aten.clamp.default):
        return None
    names = ("min_val", "max_val") if node.target is aten.hardtanh.default else ("min", "max")
    unset = (-1, 1) if node.target is aten.hardtanh.default else (None, None)
    given = dict(zip(names, unset, strict=True)) | dict(zip(names, node.args[1:], strict=False)) | node.kwargs
    low, high = (_number(given[name], otherwise) for name, otherwise in zip(names, (-math.inf, math.inf), strict=True))
    return (low, high) if low is not None and high is not None and low <= high else None


def _number(value: Any, otherwise: float) -> float | None:
    if value is None:
        return otherwise
    return float(value) if isinstance(value, int | float) else None


def is_own(node: fx.Node) -> bool:
    """Whether the node's lowering is this project's, not a user's."""
    lowering = aten_functions.get(node.target)
    return lowering is not None and lowering.is_own
