"""The graph of forward and backward together, before it is cut: what the forward saves for the backward is chosen here.

AOTAutograd hands over both in one graph, and min-cut decides which values are saved and which are computed again. It
computes again only what it knows to be cheap, and keeps whatever a node reads that it does not know.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._functorch import partitioners
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils._ordered_set import OrderedSet

from torch_max_backend.capture.attention_masks import simplify_masks
from torch_max_backend.capture.constant_folding import fold_constants
from torch_max_backend.capture.cross_entropy import GRADIENT, LOG_PROBABILITIES, write
from torch_max_backend.capture.equal_nodes import share_equal_nodes_of_both
from torch_max_backend.capture.fake_tensors import order_of, symbols_of, tensor_of, value_of
from torch_max_backend.capture.fx_nodes import call_node
from torch_max_backend.capture.gelu_pattern import recognize_gelu
from torch_max_backend.capture.gradient_layouts import lay_out_gradients
from torch_max_backend.capture.graph_passes import drop_copies
from torch_max_backend.capture.marked_regions import inline_marked_regions
from torch_max_backend.capture.recomputed_norms import restore_norms, write_out_norms
from torch_max_backend.capture.recomputed_softmaxes import restore_softmaxes, write_out_softmaxes
from torch_max_backend.capture.user_controlled_ops import is_taken
from torch_max_backend.capture.view_ops import CUTS, PERMUTES, RESHAPES

aten = torch.ops.aten

SAVED_FROM = "torch_max_backend_saved_from"
"""What an output node's ``meta`` calls the position from which on a forward's outputs are saved for its backward."""


BACKWARD = "torch_max_backend_backward"
"""What a forward's ``meta`` calls its backward."""


def partition(joint: fx.GraphModule, joint_inputs: Any, **how: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Rewrite the joint graph, and cut it into forward and backward. ``how`` is min-cut's."""
    for step in PASSES:
        step(joint)
    lay_out_gradients(joint, how["num_fwd_outputs"])
    share_equal_nodes_of_both(joint, how["num_fwd_outputs"])
    joint.graph.lint()
    with _cheap_ops(), torch._functorch.config.patch(cse=False):
        forward, backward = min_cut_rematerialization_partition(joint, joint_inputs, **how)
    save_narrow(forward, backward, how["num_fwd_outputs"])
    save_wholes(forward, backward, how["num_fwd_outputs"])
    restore_norms(forward)
    restore_softmaxes(forward)
    forward.graph.output_node().meta[SAVED_FROM] = how["num_fwd_outputs"]
    forward.meta[BACKWARD] = backward
    return forward, backward


_CUTTING = threading.Lock()
"""Held while torch's list of cheap ops is another."""

_CHEAP = """linalg_vector_norm amin argmin all prod embedding index_select _unsafe_index take isclose floor_divide
    elu_backward hardshrink_backward hardswish hardswish_backward hardtanh_backward softshrink_backward flip roll repeat
    stack split_with_sizes unbind transpose diagonal tril detach"""
_IN_KERNELS = """native_layer_norm native_group_norm _native_batch_norm_legit_functional _native_batch_norm_legit
    _batch_norm_with_update_functional _native_batch_norm_legit_no_training _fused_rms_norm _softmax _log_softmax
    _safe_softmax native_layer_norm_backward native_group_norm_backward native_batch_norm_backward batch_norm_backward
    _fused_rms_norm_backward _softmax_backward_data _log_softmax_backward_data"""


@contextmanager
def _cheap_ops() -> Iterator[None]:
    """What else min-cut may compute again, and what else it takes for a part of the kernels around it.

    Torch's list has what Inductor's decompositions leave. Of what is a loop here, an op that it does not know would end
    a kernel: all that is read on both sides of it would be saved. Norms and softmaxes are not computed again, since
    they are more than their result; but see :mod:`torch_max_backend.capture.recomputed_norms` and
    :mod:`torch_max_backend.capture.recomputed_softmaxes`.
    """
    with _CUTTING:
        known = partitioners.get_default_op_list
        types = known()
        cheap, inside = ([getattr(aten, name) for name in names.split()] for names in (_CHEAP, _IN_KERNELS))
        wider = dataclasses.replace(
            types,
            fusible_ops=types.fusible_ops | OrderedSet([*cheap, *inside]),
            recomputable_ops=types.recomputable_ops | OrderedSet(cheap),
        )
        partitioners.get_default_op_list = lambda: wider
        try:
            yield
        finally:
            partitioners.get_default_op_list = known


def drop_aliases(gm: fx.GraphModule) -> None:
    """Read what is detached itself: a graph has no gradients to detach from, and min-cut would save it."""
    returned = set(gm.graph.output_node().all_input_nodes)
    for op in (aten.detach.default, aten.alias.default):
        nodes = gm.graph.find_nodes(op="call_function", target=op)
        for node in nodes if not is_taken(op) else ():
            if node not in returned:
                node.replace_all_uses_with(node.args[0])
                gm.graph.erase_node(node)


def name_transposes(gm: fx.GraphModule) -> None:
    """Write ``transpose`` as ``permute``, which min-cut knows to be a view."""
    if is_taken(aten.transpose.int, aten.permute.default):
        return
    for node in gm.graph.find_nodes(op="call_function", target=aten.transpose.int):
        x, first, second = node.args
        order = list(range(tensor_of(x).dim()))
        if order:
            order[first], order[second] = order[second], order[first]
        node.target, node.args = aten.permute.default, (x, order)


def save_no_probabilities(gm: fx.GraphModule) -> None:
    """Give the backward of a cross-entropy the logits and two numbers a row, and not the log-probabilities.

    All is written out in ops that min-cut knows (`capture/cross_entropy.py`): the log-probabilities, of which the
    forward then needs one a row, and the gradient, which is the likelihood's less the probabilities times the sum of
    that. What the kernels make of both is in `lowering/row_fusion.py`.
    Left alone are weighted losses, and log-probabilities that are rounded, or that anything but the loss reads.
    """
    for node in gm.graph.find_nodes(op="call_function", target=aten._log_softmax.default):
        readers = [[n for n in node.users if n.target is op] for op in _LIKELIHOOD]
        if len(node.users) != 3 or any(len(found) != 1 for found in readers) or is_taken(node.target, *_LIKELIHOOD):
            continue
        (loss,), (first,), (last,) = readers
        x, dim, _ = node.args
        logits, is_weighted = tensor_of(x), loss.args[2] is not None
        is_matrix = logits.dim() == 2 and dim % 2 == 1 and isinstance(logits.shape[1], int)
        if is_weighted or not is_matrix or logits.dtype != torch.float32 or list(first.users) != [last]:
            continue
        with gm.graph.inserting_before(loss):
            written = write(gm, LOG_PROBABILITIES, {"x": x}, node)
        with gm.graph.inserting_before(first):  # whose gradient needs a shape, and would have min-cut save what has it
            rows = logits.shape[0] if isinstance(logits.shape[0], int) else call_node(gm, aten.sym_size.int, (x, 0), x)
            zero = call_node(gm, aten.full.default, ([1, 1], 0.0), x, dtype=logits.dtype, device=logits.device)
            first.replace_input_with(node, call_node(gm, aten.expand.default, (zero, [rows, logits.shape[1]]), x))
        with gm.graph.inserting_before(last):
            opposite = call_node(gm, aten.neg.default, (written["largest"],), node)
            given = {"x": x, "opposite": opposite, "logarithm": written["logarithm"], "first": first}
            last.replace_all_uses_with(write(gm, GRADIENT, given, last)["gradient"])
        gm.graph.erase_node(last)
        node.replace_all_uses_with(written["logarithms"])
        gm.graph.erase_node(node)


_LIKELIHOOD = (aten.nll_loss_forward.default, aten.nll_loss_backward.default, aten._log_softmax_backward_data.default)


def save_short_places(gm: fx.GraphModule) -> None:
    """Save the places of a max pool's elements in int16, where they fit and nothing but its backward reads them.

    A place is one in a plane of the image, which rarely has more than 2 ** 15 pixels.
    """
    for spatial, op, backward in _POOLS:
        nodes = gm.graph.find_nodes(op="call_function", target=op)
        for node in nodes if not is_taken(op, backward, aten._to_copy.default) else ():
            shape = tensor_of(node.args[0]).shape
            sizes = shape[len(shape) - spatial :]
            if symbols_of(sizes) or math.prod(sizes) > 2**15:
                continue
            for places in [n for n in node.users if n.args[1] == 1]:  # nothing but getitem
                readers = list(places.users)
                if not readers or any(n.target is not backward for n in readers):
                    continue
                with gm.graph.inserting_after(places):
                    short = call_node(gm, aten._to_copy.default, (places,), places, dtype=torch.int16)
                for reader in readers:
                    with gm.graph.inserting_before(reader):
                        wide = call_node(gm, aten._to_copy.default, (short,), reader, dtype=torch.int64)
                    reader.replace_input_with(places, wide)


_POOLS = [
    (2, aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default),
    (3, aten.max_pool3d_with_indices.default, aten.max_pool3d_with_indices_backward.default),
]


# -- after the cut ---------------------------------------------------------------------------------------------------
def save_narrow(forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> None:
    """Save what a cast widens instead of what becomes of it, as the 16 bits of a norm's input in float32.

    The backward casts again, which its kernels do as they read. Left alone is what a library reads there, for which the
    cast would be a copy, and what is not exactly the same number in fewer bytes. What is in memory anyway is saved
    itself, anything else as it comes out of the forward's cast, cast back: one kernel makes both.

    Args:
        results: How many outputs the forward has before those that it saves.
    """
    outputs = list(forward.graph.output_node().args[0])
    given = {n.name: n for n in backward.graph.find_nodes(op="placeholder")}
    for node in outputs[results:]:
        if not isinstance(node, fx.Node) or not _widens(node) or _is_read_by_library(given.get(node.name)):
            continue
        placeholder = given[node.name]
        steps = [*_views(node.args[0]), node]
        narrow = steps[0].args[0]
        is_saved = narrow in outputs[results:] and narrow.name in given
        is_whole = len(steps) == 1 or tensor_of(narrow).nbytes < tensor_of(node).nbytes
        if not is_saved and not (_is_in_memory(narrow) and is_whole):
            with forward.graph.inserting_after(node):
                narrow = call_node(forward, aten._to_copy.default, (node,), node, dtype=tensor_of(node.args[0]).dtype)
            steps = [node]
        if is_saved:
            source = given[narrow.name]
            outputs = [*outputs[:results], *(n for n in outputs[results:] if n is not node)]
        else:
            source = given[narrow.name] = _placeholder(backward, narrow, placeholder)
            outputs[outputs.index(node, results)] = narrow
        first = next(n for n in backward.graph.nodes if n in placeholder.users)
        copied = {steps[0].args[0]: source}
        for step in steps:
            with backward.graph.inserting_before(first):
                copied[step] = backward.graph.node_copy(step, copied.__getitem__)
        placeholder.replace_all_uses_with(copied[node])
        backward.graph.erase_node(placeholder)
    _return_instead(forward, backward, outputs)


def _placeholder(backward: fx.GraphModule, saved: fx.Node, before: fx.Node) -> fx.Node:
    """What a backward gets of a node of its forward."""
    with backward.graph.inserting_before(before):
        found = backward.graph.placeholder(saved.name)
    found.meta.update(saved.meta)
    return found


def _return_instead(forward: fx.GraphModule, backward: fx.GraphModule, outputs: list[Any]) -> None:
    """Let a forward return other outputs, which its backward has been written for."""
    output = forward.graph.output_node()
    if outputs != list(output.args[0]):
        output.args = (tuple(outputs),)
        forward.recompile()
        backward.recompile()


def _widens(node: fx.Node) -> bool:
    """Whether a node is a cast to a dtype of more bytes that has every number of the other one."""
    if node.target is not aten._to_copy.default or node.kwargs.keys() != {"dtype"} or is_taken(node.target):
        return False
    narrow, wide = tensor_of(node.args[0]).dtype, tensor_of(node).dtype
    is_kept = narrow == torch.bool or narrow.is_floating_point == wide.is_floating_point
    return is_kept and narrow.itemsize < wide.itemsize and torch.promote_types(narrow, wide) == wide


def _is_read_by_library(node: fx.Node | None) -> bool:
    """Whether a product or a convolution reads a node, or a view of it; whether it is unknown who does."""
    if node is None or not node.users:
        return True
    return any(n.target in _PRODUCTS or (n.target in _VIEWS and _is_read_by_library(n)) for n in node.users)


def _is_in_memory(node: fx.Node) -> bool:
    """Whether a library computes a node. It adds no bias to a convolution."""
    return node.target in _PRODUCTS and (node.target is not aten.convolution.default or node.args[2] is None)


_PRODUCTS = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.convolution.default,
    aten.convolution_backward.default,
}


def save_wholes(forward: fx.GraphModule, backward: fx.GraphModule, results: int) -> None:
    """Save a tensor in the place of its pieces that do not lie side by side, such as queries, keys and values.

    The backward would have to copy such a piece. It cuts them off the whole instead, which its kernels know how to
    read. A whole that is larger than what is saved of it is not kept for that.

    Args:
        results: How many outputs the forward has before those that it saves.
    """
    outputs = list(forward.graph.output_node().args[0])
    given = {n.name: n for n in backward.graph.find_nodes(op="placeholder")}
    groups: dict[fx.Node, dict[fx.Node, list[fx.Node]]] = {}
    for node in outputs[results:]:
        steps = _views(node) if isinstance(node, fx.Node) and node.name in given else []
        if steps:
            groups.setdefault(steps[0].args[0], {})[node] = steps
    for whole, pieces in groups.items():
        is_saved = whole in outputs[results:]
        size = sum(tensor_of(n).numel() for n in pieces)
        if all(order_of(tensor_of(n)) for n in pieces) or (tensor_of(whole).numel() > size and not is_saved):
            continue
        first = next(iter(pieces))
        if is_saved:
            source = given[whole.name]
        else:
            source = _placeholder(backward, whole, given[first.name])
            outputs[outputs.index(first, results)] = whole
        readers = {reader for node in pieces for reader in given[node.name].users}
        nodes, end = backward.graph.nodes, backward.graph.output_node()
        first_reader = next((n for n in nodes if n in readers), end)  # until then the pieces are one tensor
        copied = {whole: source}
        for node, steps in pieces.items():
            for step in steps:
                if step not in copied:
                    with backward.graph.inserting_before(first_reader):
                        copied[step] = backward.graph.node_copy(step, copied.__getitem__)
            given[node.name].replace_all_uses_with(copied[node])
            backward.graph.erase_node(given[node.name])
        outputs = outputs[:results] + [n for n in outputs[results:] if n not in pieces]
    _return_instead(forward, backward, outputs)


_VIEWS = {operator.getitem, *RESHAPES, *PERMUTES, *CUTS} - {aten.unbind.int}
"""What a piece is seen through. Pieces of ``unbind`` are saved one by one; whether that is better is not measured."""


def _views(node: fx.Node) -> list[fx.Node]:
    """The views that ``node`` is seen through, the first of what is no view itself; none where sizes vary."""
    steps: list[fx.Node] = []
    while node.target in _VIEWS and len(node.all_input_nodes) == 1 and not symbols_of(value_of(node)):
        steps.insert(0, node)
        (node,) = node.all_input_nodes
    is_tensor = isinstance(value_of(node), torch.Tensor) and node.op == "call_function"
    return steps if is_tensor and not is_taken(*(s.target for s in steps)) else []


PASSES = [
    inline_marked_regions,
    drop_aliases,
    drop_copies,
    fold_constants,
    name_transposes,
    simplify_masks,
    recognize_gelu,
    save_no_probabilities,
    save_short_places,
    write_out_norms,
    write_out_softmaxes,
]
