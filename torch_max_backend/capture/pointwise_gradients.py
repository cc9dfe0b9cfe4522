"""Gradients of convolutions of one tap as products, on a CPU: what a convolution takes longer for.

ATen's ``convolution_backward`` puts weights into blocks in every call, and takes 1.0 to 2.8 times as long as two
products, the longer the fewer places an image has. With many places in float32 it is the faster one.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from torch_max_backend.capture.fake_tensors import symbols_of, tensor_of
from torch_max_backend.capture.fx_nodes import call_node
from torch_max_backend.capture.user_controlled_ops import is_taken

aten = torch.ops.aten

FEW_PLACES = {torch.float32: 1 << 12, torch.bfloat16: 1 << 20}
"""Places of an image, of all images together, below which products are faster."""


def split_pointwise_gradients(gm: fx.GraphModule) -> None:
    """Replace the gradients of convolutions of one tap by products and a sum."""
    op = aten.convolution_backward.default
    if is_taken(op, aten.mm.default, aten.sum.dim_IntList):
        return
    returned = set(gm.graph.output_node().all_input_nodes)
    for node in gm.graph.find_nodes(op="call_function", target=op):
        parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        if len(parts) == len(node.users) and parts.get(0) not in returned and _is_of_one_tap(*node.args):
            _split(gm, node, parts)
    gm.graph.eliminate_dead_code()


# convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride,
#     SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups,
#     bool[3] output_mask) -> (Tensor, Tensor, Tensor)
def _is_of_one_tap(
    gradient: fx.Node,
    x: fx.Node,
    weight: fx.Node,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
    mask: Any,
) -> bool:
    image, filters = tensor_of(x), tensor_of(weight)
    if image.device.type != "cpu" or image.dim() < 3 or symbols_of(image) or symbols_of(filters):
        return False
    places = image.numel() // max(1, image.shape[1])
    return (
        not transposed
        and groups == 1
        and math.prod(filters.shape[2:]) == 1
        and all(s == 1 for s in stride)
        and all(p == 0 for p in padding)
        and filters.numel() > 0
        and 0 < places < FEW_PLACES.get(image.dtype, 0)
    )


def _split(gm: fx.GraphModule, node: fx.Node, parts: dict[Any, fx.Node]) -> None:
    gradient, x, weight = node.args[:3]
    image, filters = tensor_of(x), tensor_of(weight)
    dims = list(range(2, image.dim()))

    def call(op: Any, *args: Any) -> fx.Node:
        return call_node(gm, op, args, node)

    def rows(of: fx.Node) -> fx.Node:
        last = call(aten.permute.default, of, [0, *dims, 1])
        return call(aten.reshape.default, last, [-1, tensor_of(of).shape[1]])

    with gm.graph.inserting_before(node):
        by_place = rows(gradient)
        made = {}
        if 0 in parts:
            matrix = call(aten.reshape.default, weight, list(filters.shape[:2]))
            product = call(aten.mm.default, by_place, matrix)
            last = call(aten.view.default, product, [image.shape[0], *image.shape[2:], image.shape[1]])
            made[0] = call(aten.permute.default, last, [0, image.dim() - 1, *(d - 1 for d in dims)])
        if 1 in parts:
            product = call(aten.mm.default, call(aten.permute.default, by_place, [1, 0]), rows(x))
            made[1] = call(aten.view.default, product, list(filters.shape))
        if 2 in parts:
            made[2] = call(aten.sum.dim_IntList, gradient, [0, *dims])
    for k, user in parts.items():
        user.replace_all_uses_with(made[k])
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)
