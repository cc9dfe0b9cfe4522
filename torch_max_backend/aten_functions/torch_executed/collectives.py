"""Collectives of ``torch.distributed``, as functional ops: torch runs them, in a program as calls of a library.

Each rank of a group must call them in the same order, whether it reads their results or not. What one returns is
filled in by other threads or another stream until ``wait_tensor`` is called on it.
"""

from __future__ import annotations

import torch
from torch._ops import OpOverload, OpOverloadPacket

from torch_max_backend.aten_functions.registry import run_by_torch

_STARTING = """all_reduce all_reduce_coalesced all_gather_into_tensor all_gather_into_tensor_coalesced
    reduce_scatter_tensor reduce_scatter_tensor_coalesced all_to_all_single broadcast"""
_WAITING = "wait_tensor wait_tensors"
_NAMESPACES = "_c10d_functional _c10d_functional_autograd"


def _found(names: str) -> frozenset[OpOverload]:
    """The overloads of those ops that this torch has: one that was built without distributed has none."""
    packets = [
        getattr(getattr(torch.ops, namespace), name)
        for namespace in _NAMESPACES.split()
        for name in names.split()
        if torch._C._dispatch_has_kernel(f"{namespace}::{name}")
    ]
    return frozenset(p.default for p in packets if isinstance(p, OpOverloadPacket))


STARTS = _found(_STARTING)
"""What starts a collective. Results are contiguous, whatever their fake tensors say."""
WAITS = _found(_WAITING)
"""What ends one: it returns its argument."""
COLLECTIVES = STARTS | WAITS

run_by_torch(*COLLECTIVES, reason="it is a collective, which torch.distributed runs")
