"""Which reads of a transposed tensor are worth a transpose that is written to memory, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from max.graph import TensorValue
from torch import fx

from torch_max_backend.aten_functions.support.broadcast_analysis import LOOKED_AT, operands_of, shape_of
from torch_max_backend.aten_functions.support.tensor_ops import permuted_from
from torch_max_backend.aten_functions.support.written_transpose import written_transpose
from torch_max_backend.capture.fake_tensors import order_of, sizes_of, tensor_of, value_of
from torch_max_backend.capture.fx_nodes import is_getitem
from torch_max_backend.capture.view_ops import EXPANDS, PERMUTES, PIECES, RESHAPES
from torch_max_backend.partition.region import Region

aten = torch.ops.aten

PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.convolution.default)
"""They read a transposed matrix as it is."""
_SEEN_THROUGH = RESHAPES | PIECES | EXPANDS
"""Views by which MAX reads where the readers of the view do."""


def order_of_permute(node: fx.Node) -> list[int]:
    """The order of dimensions in which one of PERMUTES takes those of its operand."""
    rank = tensor_of(node).dim()
    if node.target is aten.permute.default:
        return [d % rank for d in node.args[1]]
    order = list(range(rank))
    a, b = (0, rank - 1) if node.target is aten.t.default else (d % rank for d in node.args[1:])
    order[a], order[b] = order[b], order[a]
    return order


def written_reads(region: Region, on_gpu: Callable[[torch.device], bool]) -> dict[fx.Node, set[fx.Node]]:
    """For a node, the transposes among its operands that it shall read written out."""
    inside = set(region.nodes)
    reads: dict[fx.Node, set[fx.Node]] = {}
    for node in region.nodes:
        if node.target in PERMUTES and tensor_of(node).dim() > 1 and on_gpu(tensor_of(node).device):
            for user in node.users:
                if user in inside and _wants(user, node, inside):
                    reads.setdefault(user, set()).add(node)
    return reads


def _wants(reader: fx.Node, node: fx.Node, inside: set[fx.Node]) -> bool:
    """Whether ``reader`` reads across the order in memory; elementwise ops that keep torch's strides do not."""
    if reader.target in PRODUCTS or reader.target in PERMUTES or is_getitem(reader):
        return False
    if "attention" in str(reader.target):
        return False
    if reader.target in _SEEN_THROUGH:
        return any(user in inside and _wants(user, reader, inside) for user in reader.users)
    value, operand = value_of(reader), tensor_of(node)
    keeps = isinstance(value, torch.Tensor) and sizes_of(value) == sizes_of(operand)
    return not (keeps and order_of(value) == order_of(operand))


def stored(x: TensorValue) -> TensorValue:
    """A value that is about to be written to memory; the transpose of one that has its own order by the kernel."""
    root, order = x, list(range(x.rank))
    while (found := permuted_from(root)) is not None:
        root, inner = found
        order = [inner[d] for d in order]
    if not x.device.is_gpu() or order == list(range(x.rank)) or _is_transposed(root):
        return x
    result = written_transpose(root, order)
    return x if result is None else result


def _is_transposed(x: TensorValue) -> bool:
    """Whether ``x`` is computed element by element from a transpose: MAX may make two transposes none."""
    seen: set[Any] = set()
    shape = list(x.shape)

    def visit(value: Any) -> bool:
        name = type(value.owner).__name__
        if value in seen or name == "CustomOp" or len(seen) > LOOKED_AT:
            return False
        seen.add(value)
        sources = [o for o in operands_of(value) if shape_of(o) == shape]
        return "Transpose" in name or any(visit(o) for o in sources)

    return visit(x._mlir_value)
