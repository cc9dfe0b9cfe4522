"""Lowering a region of optimizer updates: calls of one Mojo kernel, each for several parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from max.dtype import DType
from max.graph import BufferType, DeviceRef, Graph, Module, ops
from torch import fx

from torch_max_backend.aten_functions.support.mojo_ops import mojo_op_in_place
from torch_max_backend.partition.region import Region

_Groups = Sequence[tuple[dict[str, Any], Sequence[Sequence[fx.Node]]]]
"""Updates by one program each: the kernel's parameters, and the operands of every update."""

TOGETHER = 64
"""Updates of one call on a GPU. Its compile time grows faster than their number."""


def build_updates(region: Region, name: str, module: Module, device: DeviceRef) -> Graph:
    """A graph that writes some of its inputs, which are of any size.

    On a GPU they are flat tensors. On a CPU there is one input, [tensors, 2] in int64, with their addresses and sizes:
    handing hundreds of tensors to the engine takes longer than most updates.
    """
    same = itertools.groupby(region.updates, lambda u: (u.program, u.first, len(u.operands)))
    groups = [({"program": p, "tensors": n, "first": f}, [u.operands for u in us]) for (p, f, n), us in same]
    if device.is_gpu():
        return _of_tensors(region, groups, name, module, device)
    numbers = {port.node: i for i, port in enumerate(region.inputs)}
    types = [BufferType(DType.int64, [len(numbers), 2], device)]
    with Graph(name, input_types=types, module=module) as graph:
        table = graph.inputs[0].buffer
        for parameters, rows in groups:
            chosen = np.array([[numbers[n] for n in row] for row in rows], np.int64)
            operands = [table, ops.constant(chosen, DType.int64, device)]
            mojo_op_in_place("tmb_update_listed", operands, parameters, device)
        graph.output()
    return graph


def _of_tensors(region: Region, groups: _Groups, name: str, module: Module, device: DeviceRef) -> Graph:
    types = [BufferType(DType.float32, [f"n{i}"], device) for i in range(len(region.inputs))]
    with Graph(name, input_types=types, module=module) as graph:
        buffers = {port.node: value.buffer for port, value in zip(region.inputs, graph.inputs, strict=True)}
        for parameters, rows in groups:
            calls = math.ceil(len(rows) / TOGETHER)
            for k in range(calls):
                some = rows[k * len(rows) // calls : (k + 1) * len(rows) // calls]
                operands = [buffers[n] for row in some for n in row]
                mojo_op_in_place("tmb_update", operands, parameters, device)
        graph.output()
    return graph
