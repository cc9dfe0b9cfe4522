"""Graph passes between AOTAutograd and the partition, in the order in which they run."""

from __future__ import annotations

import torch
from torch import fx

from torch_max_backend.capture.associative_scans import inline_associative_scans
from torch_max_backend.capture.attention_masks import simplify_masks
from torch_max_backend.capture.attention_pattern import recognize_attention
from torch_max_backend.capture.constant_folding import fold_constants
from torch_max_backend.capture.equal_nodes import share_equal_nodes
from torch_max_backend.capture.fake_tensors import order_of, storage_key, tensor_of, tensors_of, value_of
from torch_max_backend.capture.flex_attention import inline_flex_attention
from torch_max_backend.capture.fx_nodes import call_node
from torch_max_backend.capture.gelu_pattern import recognize_gelu
from torch_max_backend.capture.grouped_query_attention import share_heads
from torch_max_backend.capture.maps import inline_maps
from torch_max_backend.capture.marked_regions import inline_marked_regions
from torch_max_backend.capture.user_controlled_ops import is_taken

aten = torch.ops.aten


def rewrite(gm: fx.GraphModule, count: int | None = None) -> fx.GraphModule:
    """Run all passes, or the first ``count``."""
    for step in PASSES[:count]:
        step(gm)
    gm.graph.lint()
    return gm


def drop_copies(gm: fx.GraphModule) -> None:
    """Read the original where a copy of it is read that differs in nothing: values of a functional graph never change.

    Dropout leaves one when it does not train, and MAX fuses nothing through it. Copies stay that the graph returns, or
    of what may lie in an input's memory, which is written at the end, or that a user's lowering makes.
    """
    if is_taken(aten.clone.default):
        return
    placeholders = gm.graph.find_nodes(op="placeholder")
    inputs = {None, *(storage_key(t) for n in placeholders for t in tensors_of(value_of(n)))}
    returned = set(gm.graph.output_node().all_input_nodes)
    for node in gm.graph.find_nodes(op="call_function", target=aten.clone.default):
        source = node.args[0]
        if node in returned or source.op != "call_function":
            continue
        copy, original = tensor_of(node), tensor_of(source)
        if (
            copy.stride() == original.stride()
            and order_of(original) is not None
            and storage_key(original) not in inputs
        ):
            node.replace_all_uses_with(source)
            gm.graph.erase_node(node)


def split_dropout(gm: fx.GraphModule) -> None:
    """Draw a dropout's mask by itself, so that only the draw is torch's, and reads no more than a shape.

    On a CPU ``native_dropout`` is ``bernoulli_(1 - p)``, in the order of the memory, and two products. (On a GPU it is
    a kernel that draws in its own way.) A lowering that a user has registered for it is left its node.
    """
    if is_taken(aten.native_dropout.default):
        return
    for node in list(gm.graph.find_nodes(op="call_function", target=aten.native_dropout.default)):
        x, p, train = node.args
        like = node.meta["val"][1]
        order = order_of(like)
        drawn = train is not False and isinstance(p, float) and 0 < p < 1 and like.numel() > 0
        if not drawn or like.device.type != "cpu" or order is None or _has_symbols(like):
            continue
        with gm.graph.inserting_before(node):
            mask = call_node(gm, aten.bernoulli.p, (_empty(gm, like.permute(order), node), 1.0 - p), node)
            if order != tuple(range(len(order))):
                mask = call_node(gm, aten.permute.default, (mask, [order.index(d) for d in range(len(order))]), node)
            kept = call_node(gm, aten.mul.Tensor, (x, mask), node)
            scaled = call_node(gm, aten.mul.Tensor, (kept, 1.0 / (1.0 - p)), node)
        for user in list(node.users):  # nothing but getitem
            user.replace_all_uses_with((scaled, mask)[user.args[1]])
            gm.graph.erase_node(user)
        gm.graph.erase_node(node)


def free_random_ops(gm: fx.GraphModule) -> None:
    """Let random ops that only look at a tensor's shape read an empty one, so that they need not wait for it.

    ``bernoulli.p`` and the ``*_like`` ops then run before the first region instead of splitting it.
    """
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target not in _SHAPE_ONLY:
            continue
        like = node.args[0]
        if not isinstance(like, fx.Node) or like.target is aten.empty_strided.default:
            continue
        value = value_of(like)
        if not isinstance(value, torch.Tensor) or order_of(value) is None or _has_symbols(value):
            continue
        with gm.graph.inserting_before(node):
            empty = _empty(gm, value, node)
        node.replace_input_with(like, empty)


_SHAPE_ONLY = {
    aten.bernoulli.p,
    aten.rand_like.default,
    aten.randn_like.default,
    aten.randint_like.default,
    aten.randint_like.low_dtype,
}


def gather_by_data(gm: fx.GraphModule) -> None:
    """Gather what is selected with an index that the host would read from a tensor, as a loop's backward does."""
    if is_taken(aten.select.int, aten.index.Tensor):
        return
    returned = set(gm.graph.output_node().all_input_nodes)
    for node in list(gm.graph.find_nodes(op="call_function", target=aten.select.int)):
        x, dim, index = node.args
        if not isinstance(index, fx.Node) or index.target is not aten._local_scalar_dense.default or node in returned:
            continue
        before = [None] * (dim % tensor_of(x).dim())
        with gm.graph.inserting_before(node):
            place = call_node(gm, aten.reshape.default, (index.args[0], []), node)
            gathered = call_node(gm, aten.index.Tensor, (x, [*before, place]), node)
        node.replace_all_uses_with(gathered)
        gm.graph.erase_node(node)
        if not index.users:
            gm.graph.erase_node(index)


def _empty(gm: fx.GraphModule, like: torch.Tensor, origin: fx.Node) -> fx.Node:
    """An uninitialised tensor with the sizes, strides and dtype of ``like``."""
    size, stride = list(like.shape), list(like.stride())
    return call_node(gm, aten.empty_strided.default, (size, stride), origin, dtype=like.dtype, device=like.device)


def _has_symbols(value: torch.Tensor) -> bool:
    return any(isinstance(s, torch.SymInt) for s in (*value.shape, *value.stride()))


PASSES = [
    inline_marked_regions,
    inline_flex_attention,
    inline_associative_scans,
    inline_maps,
    gather_by_data,
    share_equal_nodes,
    drop_copies,
    recognize_attention,
    simplify_masks,
    share_heads,
    fold_constants,
    recognize_gelu,
    split_dropout,
    free_random_ops,
]
