"""A cross-entropy and its gradient written out in ops that min-cut knows: one spelling, to write and to recognize.

`capture/joint_graph.py` writes it, and `lowering/row_fusion.py` finds it again in what the cut has left in a region. It
is found by its ops alone and not by a mark on its nodes, because a mark is in no cache key, and because a program that
spells its loss so itself shall have the same kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torch_max_backend.capture.fx_nodes import call_node

aten = torch.ops.aten


@dataclass(frozen=True)
class Step:
    """``name = op(*operands, *rest)``. Operands are names of steps before it, or of what is given."""

    name: str
    op: Any
    operands: tuple[str, ...]
    rest: tuple[Any, ...] = ()


LOG_PROBABILITIES = (
    Step("largest", aten.amax.default, ("x",), ([1], True)),
    Step("distance", aten.sub.Tensor, ("x", "largest")),
    Step("exponentials", aten.exp.default, ("distance",)),
    Step("total", aten.sum.dim_IntList, ("exponentials",), ([1], True)),
    Step("logarithm", aten.log.default, ("total",)),
    Step("logarithms", aten.sub.Tensor, ("distance", "logarithm")),
)
"""``log_softmax(x, 1)`` of a matrix. A backward needs ``largest`` and ``logarithm``, two numbers a row."""

GRADIENT = (
    Step("distance", aten.add.Tensor, ("x", "opposite")),
    Step("logarithms", aten.sub.Tensor, ("distance", "logarithm")),
    Step("probabilities", aten.exp.default, ("logarithms",)),
    Step("of_row", aten.sum.dim_IntList, ("first",), ([1], True)),
    Step("product", aten.mul.Tensor, ("probabilities", "of_row")),
    Step("gradient", aten.sub.Tensor, ("first", "product")),
)
"""The gradient of ``x``, given that of the log-probabilities, ``first``.

``opposite`` is ``largest`` with the opposite sign: min-cut would save a difference ``x - largest`` that both halves
read.
"""


def write(
    gm: fx.GraphModule, steps: tuple[Step, ...], given: dict[str, fx.Node], origin: fx.Node
) -> dict[str, fx.Node]:
    """New nodes for the steps; gives them and what is given by name. ``origin`` is what they are written for."""
    nodes = dict(given)
    for step in steps:
        nodes[step.name] = call_node(gm, step.op, (*(nodes[o] for o in step.operands), *step.rest), origin)
    return nodes


def read(node: fx.Node, steps: tuple[Step, ...]) -> dict[str, fx.Node]:
    """The nodes of the steps of which ``node`` is the last, and of what is given, by name; empty if it is not."""
    nodes = {steps[-1].name: node}
    for step in reversed(steps):
        at, count = nodes[step.name], len(step.operands)
        operands, rest = at.args[:count], tuple(at.args[count:])
        if at.target is not step.op or at.kwargs or len(operands) < count or rest != step.rest:
            return {}
        for name, operand in zip(step.operands, operands, strict=True):
            if not isinstance(operand, fx.Node) or nodes.setdefault(name, operand) is not operand:
                return {}
    return nodes


def readers_of(name: str, steps: tuple[Step, ...], nodes: dict[str, fx.Node]) -> set[fx.Node]:
    """Those of the steps that read the node of this name."""
    return {nodes[step.name] for step in steps if name in step.operands}
