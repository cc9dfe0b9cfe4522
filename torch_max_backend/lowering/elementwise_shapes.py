"""Nodes that look at each element of a tensor by itself: in which shape a GPU computes them.

MAX moves a reshape behind casts and functions of one operand, but not behind those of two. So what is computed of a
reshape becomes several kernels, with their float32 results stored in between. Nodes are therefore computed in a shape
that all their operands have, or had before they were reshaped; as a rule in rows, of the length of the last dimension.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from max.graph import Dim, Shape, TensorValue
from torch import fx

from torch_max_backend.aten_functions.registry import aten
from torch_max_backend.aten_functions.support.tensor_ops import is_stored, reshape, reshapes_of, static
from torch_max_backend.aten_functions.support.value_facts import facts_of
from torch_max_backend.capture.view_ops import VIEWS_OF_SIZES

Operands = dict[fx.Node, TensorValue]


def is_elementwise(node: fx.Node) -> bool:
    """Whether the node looks at each element by itself: a pointwise op, or a conversion to another dtype."""
    if node.target is aten._to_copy.default:
        return not node.kwargs.keys() - {"dtype", "layout", "device"}
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


READ_BY_ROWS = {
    *VIEWS_OF_SIZES,
    aten.native_layer_norm.default,
    aten._fused_rms_norm.default,
    aten._softmax.default,
    aten.mm.default,
    aten.bmm.default,
}
DEPTH = 4
"""How many elementwise nodes may lie between a node and what tells how it is read."""


def is_read_by_rows(node: fx.Node, depth: int = DEPTH) -> bool:
    """Whether rows of the last dimension are what reads the node in the end, and no convolution does."""
    found = False
    for user in node.users:
        if user.target is aten.convolution.default:
            return False
        found |= user.target in READ_BY_ROWS or (
            depth > 0 and is_elementwise(user) and is_read_by_rows(user, depth - 1)
        )
    return found


def common_shape(
    operands: Mapping[fx.Node, TensorValue], shape: Shape | list[Dim]
) -> tuple[list[Dim], Operands] | None:
    """A shape to compute in other than ``shape``, and the operands that are not numbers in it."""
    target = _numbers(shape)
    if target is None or not target:
        return None
    whole = {n: v for n, v in operands.items() if _numbers(v.shape) == target}
    return (_shared(whole) if len(whole) == len(operands) else None) or _rows(operands, target)


def _shared(operands: Mapping[fx.Node, TensorValue]) -> tuple[list[Dim], Operands] | None:
    """What all operands are reshapes of, the furthest that they share."""
    found = {n: reshapes_of(v) for n, v in operands.items()}
    shapes = [[tuple(v.shape) for v in values] for values in found.values()]
    common = [s for s in shapes[0] if all(s in others for others in shapes)] if shapes else []
    if not common:
        return None
    chosen = {n: next(v for v in values if tuple(v.shape) == common[-1]) for n, values in found.items()}
    return list(common[-1]), chosen


def _rows(operands: Mapping[fx.Node, TensorValue], shape: list[int]) -> tuple[list[Dim], Operands] | None:
    """All operands as rows, or as what a row or all of them are combined with, where that needs no kernel.

    One of them must have been rows: a reshape of what lies in memory MAX would move behind functions of one operand.
    """
    rows, columns = math.prod(shape[:-1]), shape[-1]
    if not any(_numbers(v.shape) == [rows, columns] for value in operands.values() for v in reshapes_of(value)):
        return None
    found: Operands = {}
    for node, value in operands.items():
        sizes = _numbers(value.shape)
        if sizes == shape:
            as_rows = _in_shape(value, [rows, columns])
        elif sizes == [*shape[:-1], 1]:
            as_rows = reshape(value, [rows, 1])
        elif sizes is not None and math.prod(sizes) in (1, columns) and sizes[-1] == math.prod(sizes):
            as_rows = reshape(value, [sizes[-1]])
        else:
            as_rows = None
        if as_rows is None:
            return None
        found[node] = as_rows
    return [Dim(rows), Dim(columns)], found


def _in_shape(x: TensorValue, shape: list[int]) -> TensorValue | None:
    """``x`` in another shape without a kernel, if it has been in that shape, or lies in memory."""
    if facts_of(x).unfinished is not None:
        return None
    for value in (x, *reshapes_of(x)):
        if _numbers(value.shape) == shape:
            return value
    root = reshapes_of(x)[-1] if reshapes_of(x) else x
    return reshape(x, shape) if is_stored(root) else None


def _numbers(shape: Shape | list[Dim]) -> list[int] | None:
    """The sizes, if all are known."""
    sizes = [static(d) for d in shape]
    return None if None in sizes else [s for s in sizes if s is not None]
