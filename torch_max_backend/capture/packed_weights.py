"""Convolutions and linears on a CPU by oneDNN's and MKL's functions that take packed weights.

A weight that is a parameter is put into blocks once, where ATen's ops do it in every call. What follows is not given to
oneDNN, whose ReLU and ``hardtanh`` make a number of a NaN: generated kernels compute it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from torch_max_backend.capture import onednn_products
from torch_max_backend.capture.fake_tensors import hint, symbols_of, tensor_of
from torch_max_backend.capture.fx_nodes import source_of
from torch_max_backend.capture.user_controlled_ops import is_taken

aten, onednn, mkl = torch.ops.aten, torch.ops.mkldnn, torch.ops.mkl

CAN_PACK = bool(torch._C._has_mkldnn) and hasattr(onednn, "_reorder_convolution_weight")
HAS_MKL = CAN_PACK and bool(torch._C.has_mkl)
FEWEST_ROWS = 2
"""Rows of a linear from which a packed weight pays: one row reads a weight once, in whatever order it lies."""
SMALL = 1 << 16
"""Elements of a float32 matrix below which packing gains nothing, and MKL's packed form takes 8 MB more."""

_CONVOLUTION, _LINEAR, _MKL_LINEAR = (
    (
        onednn._reorder_convolution_weight.default,
        onednn._reorder_linear_weight.default,
        mkl._mkl_reorder_linear_weight.default if HAS_MKL else None,
    )
    if CAN_PACK
    else (None, None, None)
)


def is_packing(node: fx.Node) -> bool:
    """Whether the node packs a weight. Its result is opaque: nothing reads it but the function it is packed for."""
    return CAN_PACK and node.target in (_CONVOLUTION, _LINEAR, _MKL_LINEAR)


def pack_weights(gm: fx.GraphModule, fixed: set[fx.Node]) -> None:
    """Have convolutions and products of ``fixed`` weights read packed ones. What packs is added to ``fixed``."""
    if not CAN_PACK or not torch.backends.mkldnn.enabled:
        return
    for target, packed in _PACKED.items():
        if is_taken(target):
            continue
        for node in gm.graph.find_nodes(op="call_function", target=target):
            if _runs_packed(tensor_of(node)):
                packed(gm, node, fixed)
    gm.graph.eliminate_dead_code()


def _runs_packed(result: torch.Tensor) -> bool:
    """Whether this processor has oneDNN's kernels for a result's dtype."""
    if result.dtype is torch.bfloat16:
        return bool(onednn._is_mkldnn_bf16_supported())
    if result.dtype is torch.float16:
        return bool(onednn._is_mkldnn_fp16_supported())
    return result.dtype is torch.float32


# convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation,
#     bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor
def _packed_convolution(gm: fx.GraphModule, node: fx.Node, fixed: set[fx.Node]) -> None:
    x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    image, result = tensor_of(x), tensor_of(node)
    if weight not in fixed or transposed or image.dim() != 4 or 0 in image.shape or 0 in tensor_of(weight).shape:
        return
    sizes = None if symbols_of(image) else list(image.shape)
    last = result.new_empty(result.shape).to(memory_format=torch.channels_last)
    with gm.graph.inserting_before(node):
        packed = _packing(gm, _CONVOLUTION, (weight, padding, stride, dilation, groups, sizes), weight, fixed)
        arguments: tuple[Any, ...] = (x, packed, bias, padding, stride, dilation, groups, "none", [], "")
        new = _called(gm, onednn._convolution_pointwise.default, arguments, last, node)
    node.replace_all_uses_with(new)


# mm(Tensor self, Tensor mat2) -> Tensor
def _packed_product(gm: fx.GraphModule, node: fx.Node, fixed: set[fx.Node]) -> None:
    x, weight = node.args
    _packed_linear(gm, node, fixed, (x, weight, None))


# addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor
def _packed_sum(gm: fx.GraphModule, node: fx.Node, fixed: set[fx.Node]) -> None:
    bias, x, weight = node.args
    if all(float(v) == 1 for v in node.kwargs.values()) and tensor_of(bias).shape == tensor_of(weight).shape[1:]:
        _packed_linear(gm, node, fixed, (x, weight, bias))


def _packed_linear(
    gm: fx.GraphModule, node: fx.Node, fixed: set[fx.Node], operands: tuple[fx.Node, fx.Node, fx.Node | None]
) -> None:
    x, weight, bias = operands
    rows, matrix = tensor_of(x).shape[0], tensor_of(weight)
    if weight not in fixed or hint(rows) < FEWEST_ROWS or symbols_of(matrix) or not matrix.numel():
        return
    by_mkl = HAS_MKL and isinstance(rows, int) and matrix.dtype is torch.float32
    if matrix.dtype is torch.float32 and matrix.numel() < SMALL:
        return
    if by_mkl and onednn_products.pays(rows, *matrix.shape):  # faster, packed or not
        return
    with gm.graph.inserting_before(node):
        turned = _called(gm, aten.permute.default, (weight, [1, 0]), matrix.t(), node)
        fixed.add(turned)
        if by_mkl:
            packed = _packing(gm, _MKL_LINEAR, (turned, rows), turned, fixed)
            arguments: tuple[Any, ...] = (x, packed, turned, bias, rows)
            new = _called(gm, mkl._mkl_linear.default, arguments, tensor_of(node), node)
        else:
            packed = _packing(gm, _LINEAR, (turned, rows if isinstance(rows, int) else None), turned, fixed)
            arguments = (x, packed, bias, "none", [], "")
            new = _called(gm, onednn._linear_pointwise.default, arguments, tensor_of(node), node)
    node.replace_all_uses_with(new)


_PACKED: dict[Any, Callable[[fx.GraphModule, fx.Node, set[fx.Node]], None]] = {
    aten.convolution.default: _packed_convolution,
    aten.mm.default: _packed_product,
    aten.addmm.default: _packed_sum,
}


def _packing(gm: fx.GraphModule, op: Any, arguments: tuple[Any, ...], weight: fx.Node, fixed: set[fx.Node]) -> fx.Node:
    value = tensor_of(weight)
    found = _called(gm, op, arguments, value.new_empty(value.shape), weight)
    fixed.add(found)
    return found


def _called(gm: fx.GraphModule, op: Any, arguments: tuple[Any, ...], value: torch.Tensor, origin: fx.Node) -> fx.Node:
    """A new node, with the value that its result is promised to be like."""
    node = gm.graph.call_function(op, arguments)
    node.meta.update(val=value, **source_of(origin))
    return node
