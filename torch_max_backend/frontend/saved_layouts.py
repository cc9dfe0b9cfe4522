"""In which strides a forward saves what only its backward reads: as they lie, and the backward is compiled for that.

A convolution's kernels have channels last. What a forward saves would be copied otherwise, to lie as torch promises.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from torch_max_backend.capture.fake_tensors import value_of
from torch_max_backend.capture.joint_graph import SAVED_FROM
from torch_max_backend.codegen.program_writer import WrittenProgram
from torch_max_backend.partition.partitioner import Plan
from torch_max_backend.partition.region import RESTRIDED


def set_free(plan: Plan, gm: fx.GraphModule) -> None:
    """Mark the outputs of regions that nobody but a backward reads, and that have known sizes."""
    output = gm.graph.output_node()
    first = output.meta.get(SAVED_FROM)
    if first is None:
        return
    results = output.args[0]
    seen = {r for r in results[:first] if isinstance(r, fx.Node)} | set(plan.alias) | set(plan.alias.values())
    saved = {r for r in results[first:] if isinstance(r, fx.Node)} - seen
    for region in plan.regions:
        own = {*region.nodes, output}
        region.outputs = [
            dataclasses.replace(port, free=True)
            if port.node in saved and own.issuperset(port.node.users) and _is_static(port.value)
            else port
            for port in region.outputs
        ]


def report_strides(plan: Plan, gm: fx.GraphModule, programs: Mapping[int, WrittenProgram]) -> None:
    """Tell AOTAutograd with which strides results leave: it has the backward compiled for them."""
    context = torch._guards.TracingContext.try_get()
    if context is None or context.output_strides is None or context.output_strides:
        return
    found = {
        region.outputs[position].node: strides
        for k, region in enumerate(plan.regions)
        if k in programs
        for position, strides in programs[k].strides.items()
    }
    if not found:
        return
    for result in gm.graph.output_node().args[0]:
        value = value_of(result) if isinstance(result, fx.Node) else None
        strides = tuple(value.stride()) if isinstance(value, torch.Tensor) and _is_static(value) else None
        context.output_strides.append(found.get(result, strides))


def take_strides(gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Give the placeholders of a backward the strides that its forward has told of."""
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True):
        promised = value_of(node)
        if not isinstance(promised, torch.Tensor) or not isinstance(value, torch.Tensor):
            continue
        if _is_static(promised) and _is_static(value) and promised.stride() != value.stride():
            node.meta["val"] = value
            node.meta[RESTRIDED] = True


def _is_static(value: torch.Tensor) -> bool:
    return all(isinstance(n, int) for n in (*value.shape, *value.stride())) and value.layout is torch.strided
