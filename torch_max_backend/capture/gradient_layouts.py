"""The order of memory in which gradients leave: as the tensor lies whose gradient each is.

Autograd keeps a gradient in ``x.grad`` as ``x`` lies, and copies one that lies otherwise. Fake tensors often promise
another order than eager has: a backward of a reflected image gives a contiguous one, whatever the image is. For
``torch.autograd.grad``, which copies nothing, strides may differ from eager's; PyTorch promises none.

Before: ``return (mul,)``. After: ``return (permute(clone(permute(mul))),)``, which a kernel writes in that order.
"""

from __future__ import annotations

import torch
from torch import fx

from torch_max_backend.capture.fake_tensors import order_of, symbols_of, value_of
from torch_max_backend.capture.fx_nodes import call_node
from torch_max_backend.capture.user_controlled_ops import is_taken

aten = torch.ops.aten


def lay_out_gradients(joint: fx.GraphModule, results: int) -> None:
    """Have gradients of dense tensors leave in the strides of these, where sizes are known.

    Args:
        results: How many outputs the joint graph has before the gradients, of which each input has one or ``None``.
    """
    if is_taken(aten.permute.default, aten.clone.default):
        return
    output = joint.graph.output_node()
    outputs = list(output.args[0])
    for k, x in enumerate(joint.graph.find_nodes(op="placeholder")[: len(outputs) - results], results):
        gradient = outputs[k]
        order = _other_order(value_of(x), value_of(gradient)) if isinstance(gradient, fx.Node) else None
        if order is not None:
            with joint.graph.inserting_before(output):
                outputs[k] = _in_order(joint, gradient, order)
    output.args = (type(output.args[0])(outputs),)


def _other_order(x: object, gradient: object) -> tuple[int, ...] | None:
    """The order of a tensor's dimensions in memory, if that is dense and another one, and a gradient is contiguous.

    What a library gives in an order of its own, as the gradient of a convolution's weight, stays as it is.
    """
    if not isinstance(x, torch.Tensor) or not isinstance(gradient, torch.Tensor):
        return None
    if any(value.layout is not torch.strided or symbols_of(value) for value in (x, gradient)):
        return None
    if x.shape != gradient.shape or x.device != gradient.device or not gradient.is_contiguous():
        return None
    return None if x.is_contiguous() else order_of(x)


def _in_order(joint: fx.GraphModule, gradient: fx.Node, order: tuple[int, ...]) -> fx.Node:
    """A copy whose dimensions lie in an order of memory, the one with the longest steps first."""
    turned = call_node(joint, aten.permute.default, (gradient, list(order)), gradient)
    copied = call_node(joint, aten.clone.default, (turned,), gradient, memory_format=torch.contiguous_format)
    back = [order.index(k) for k in range(len(order))]
    return call_node(joint, aten.permute.default, (copied, back), gradient)
