"""The graph of forward and backward together, before it is cut: what the forward saves for the backward is chosen here.

AOTAutograd hands over both in one graph, and min-cut decides which values are saved and which are computed again. It
computes again only what it knows to be cheap, and keeps whatever a node reads that it does not know.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._functorch.partitioners import min_cut_rematerialization_partition

from torch_max_backend.aten_functions.registry import aten_functions
from torch_max_backend.graph.masks import simplify_masks
from torch_max_backend.graph.rewrites import call_node
from torch_max_backend.graph.tensors import tensors_of, value_of

aten = torch.ops.aten


def partition(joint: fx.GraphModule, joint_inputs: Any, **how: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Rewrite the joint graph, and cut it into forward and backward. ``how`` is min-cut's."""
    for step in PASSES:
        step(joint)
    joint.graph.lint()
    return min_cut_rematerialization_partition(joint, joint_inputs, **how)


def drop_aliases(gm: fx.GraphModule) -> None:
    """Read what is detached itself: a graph has no gradients to detach from, and min-cut would save it."""
    returned = set(gm.graph.output_node().all_input_nodes)
    for op in (aten.detach.default, aten.alias.default):
        nodes = gm.graph.find_nodes(op="call_function", target=op)
        for node in nodes if not _is_users(op) else ():
            if node not in returned:
                node.replace_all_uses_with(node.args[0])
                gm.graph.erase_node(node)


def name_transposes(gm: fx.GraphModule) -> None:
    """Write ``transpose`` as ``permute``, which min-cut knows to be a view."""
    if _is_users(aten.transpose.int) or _is_users(aten.permute.default):
        return
    for node in gm.graph.find_nodes(op="call_function", target=aten.transpose.int):
        x, first, second = node.args
        order = list(range(_value(x).dim()))
        if order:
            order[first], order[second] = order[second], order[first]
        node.target, node.args = aten.permute.default, (x, order)


def save_no_probabilities(gm: fx.GraphModule) -> None:
    """Give the backward of a cross-entropy the logits and two numbers a row, and not the log-probabilities.

    All is written out in ops that min-cut knows: the log-probabilities, of which the forward then needs one a row
    (`compiler/row_chains.py`), and the gradient, which is where the class is the target less the probability, times the
    gradient of the row's loss.
    Left alone are weighted losses, and log-probabilities that are rounded, or that anything but the loss reads.
    """
    for node in gm.graph.find_nodes(op="call_function", target=aten._log_softmax.default):
        readers = [[n for n in node.users if n.target is op] for op in _LIKELIHOOD]
        if len(node.users) != 3 or any(len(found) != 1 for found in readers) or any(map(_is_users, _LIKELIHOOD)):
            continue
        (loss,), (first,), (last,) = readers
        x, dim, _ = node.args
        logits, is_weighted = _value(x), loss.args[2] is not None
        is_matrix = logits.dim() == 2 and dim % 2 == 1 and isinstance(logits.shape[1], int)
        if is_weighted or not is_matrix or logits.dtype != torch.float32 or list(first.users) != [last]:
            continue
        with gm.graph.inserting_before(loss):
            largest = call_node(gm, aten.amax.default, (x, [1], True), node)
            distance = call_node(gm, aten.sub.Tensor, (x, largest), node)
            exponentials = call_node(gm, aten.exp.default, (distance,), node)
            total = call_node(gm, aten.sum.dim_IntList, (exponentials, [1], True), node)
            logarithm = call_node(gm, aten.log.default, (total,), node)
            logarithms = call_node(gm, aten.sub.Tensor, (distance, logarithm), node)
        with gm.graph.inserting_before(last):  # x + (-max): min-cut would save a difference that both halves read
            opposite = call_node(gm, aten.neg.default, (largest,), node)
            distance = call_node(gm, aten.add.Tensor, (x, opposite), node)
            again = call_node(gm, aten.sub.Tensor, (distance, logarithm), node)
            last.replace_all_uses_with(_gradient_of_logits(gm, first, again))
        for done in (last, first):
            gm.graph.erase_node(done)
        node.replace_all_uses_with(logarithms)
        gm.graph.erase_node(node)


_LIKELIHOOD = (aten.nll_loss_forward.default, aten.nll_loss_backward.default, aten._log_softmax_backward_data.default)


def _gradient_of_logits(gm: fx.GraphModule, loss: fx.Node, logarithms: fx.Node) -> fx.Node:
    """What ``nll_loss_backward`` makes of log-probabilities, and ``_log_softmax_backward_data`` of that."""

    def call(op: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return call_node(gm, op, args, loss, **kwargs)

    grad, _, target, _, reduction, ignored, total_weight = loss.args
    value = _value(loss)
    grad = call(aten.neg.default, grad)
    if reduction == 1:  # the mean
        grad = call(aten.div.Tensor, grad, total_weight)
    grad = call(aten.unsqueeze.default, grad, 1) if reduction == 0 else call(aten.view.default, grad, [1, 1])
    zero = call(aten.full.default, [], 0.0, dtype=value.dtype, device=value.device)
    target = call(aten.unsqueeze.default, target, 1)
    of_row = call(aten.where.self, call(aten.ne.Scalar, target, ignored), grad, zero)
    classes = call(aten.arange.default, value.shape[1], dtype=torch.int64, device=value.device)
    at_target = call(aten.where.self, call(aten.eq.Tensor, classes, target), of_row, zero)
    return call(aten.sub.Tensor, at_target, call(aten.mul.Tensor, call(aten.exp.default, logarithms), of_row))


def _value(node: fx.Node) -> torch.Tensor:
    return tensors_of(value_of(node))[0]


def _is_users(op: Any) -> bool:
    """Whether the user has a lowering for this op, which then sees every node of it."""
    lowering = aten_functions.get(op)
    return lowering is not None and not lowering.is_own


PASSES = [drop_aliases, name_transposes, simplify_masks, save_no_probabilities]
