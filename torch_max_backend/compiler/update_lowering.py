"""Lowering a region of updates: calls of ``mojo_kernels/updates.mojo``, each for several parameters."""

from __future__ import annotations

import itertools
import math

from max.dtype import DType
from max.graph import BufferType, DeviceRef, Graph, Module

from torch_max_backend.aten_functions.common import mojo_op_in_place
from torch_max_backend.graph.region import Region

TOGETHER = 64
"""Updates of one call. The processor's threads share a call; its compile time grows faster than their number."""


def build_updates(region: Region, name: str, module: Module, device: DeviceRef) -> Graph:
    """A graph whose inputs are flat, of any size, and which writes some of them."""
    types = [BufferType(DType.float32, [f"n{i}"], device) for i in range(len(region.inputs))]
    with Graph(name, input_types=types, module=module) as graph:
        buffers = {port.node: value.buffer for port, value in zip(region.inputs, graph.inputs, strict=True)}
        for (program, first, count), same in itertools.groupby(
            region.updates, lambda u: (u.program, u.first, len(u.operands))
        ):
            rows = [[buffers[n] for n in update.operands] for update in same]
            calls = math.ceil(len(rows) / TOGETHER)
            for k in range(calls):
                some = rows[k * len(rows) // calls : (k + 1) * len(rows) // calls]
                operands = [b for row in some for b in row]
                parameters = {"program": program, "tensors": count, "first": first}
                mojo_op_in_place("tmb_update", operands, parameters, device)
        graph.output()
    return graph
