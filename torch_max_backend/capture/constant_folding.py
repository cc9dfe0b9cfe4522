"""Constant folding, of whole nodes: what depends on no input is computed once, by torch, while the graph is compiled.

Positions, masks and index arithmetic of models are such values. MAX would compile and run them in modules of their own
before it compiles the graph, which takes 10 to 15 s each; here they cost microseconds, and they enter regions
as inputs, so that graphs which differ in their values alone share an artifact.
"""

from __future__ import annotations

import logging
import operator
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from torch_max_backend.aten_functions.registry import aten_functions
from torch_max_backend.base.target import elsewhere, fake_like
from torch_max_backend.capture.fake_tensors import is_plain, order_of, storage_key, symbols_of, tensors_of, value_of
from torch_max_backend.capture.fx_nodes import map_nodes, source_of

aten = torch.ops.aten
log = logging.getLogger("torch_max_backend")

LARGEST_CONSTANT = 16 << 20
"""Bytes above which a value is computed in every call, where it may be fused, and not kept."""

FILLS = frozenset(
    getattr(aten, name)
    for name in (
        *("full", "zeros", "ones", "scalar_tensor", "full_like", "zeros_like", "ones_like"),
        *("new_full", "new_zeros", "new_ones"),
    )
)
"""Values that repeat one number: they cost nothing where they are used."""

UNINITIALIZED = frozenset(
    getattr(aten, name)
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
)


def fold_constants(gm: fx.GraphModule) -> None:
    """Replace nodes that depend on no input by attributes of ``gm`` that hold their values.

    Left as they are: random and uninitialised values, effects, ops that the user lowers, values above
    :data:`LARGEST_CONSTANT`, and what an output shares memory with, since every call returns fresh memory.
    """
    constants = constant_nodes(gm)
    read = _read_outside(gm, constants)
    wanted = [n for n in gm.graph.nodes if n in read and not is_fill(n)]
    if not wanted:
        return
    for node, value in evaluate(gm, wanted).items():
        with _disable_current_modes(), gm.graph.inserting_before(node):
            device = tensors_of(value_of(node))[0].device
            folded = _fill(gm, value, device) or _attribute(gm, f"_folded_{node.name}", value, device)
        folded.meta.update(val=value_of(node), **source_of(node))
        node.replace_all_uses_with(folded)
    gm.graph.eliminate_dead_code(lambda n: n not in constants)


def constant_nodes(gm: fx.GraphModule, largest: int = LARGEST_CONSTANT) -> set[fx.Node]:
    """All nodes of up to ``largest`` bytes that depend on no input, and the attributes that they read."""
    returned = {storage_key(t) for n in gm.graph.output_node().all_input_nodes for t in tensors_of(value_of(n))}
    found: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            found.add(node)
        elif node.op == "call_function" and all(n in found for n in node.all_input_nodes):
            value = value_of(node)
            if _may_run_now(node, largest) and isinstance(value, torch.Tensor) and storage_key(value) not in returned:
                found.add(node)
    return found


def _may_run_now(node: fx.Node, largest: int) -> bool:
    value = value_of(node)
    return (
        may_run_apart(node)
        and isinstance(value, torch.Tensor)
        and is_plain(value)
        and value.numel() * value.element_size() <= largest
        and (value.device.type == "cpu" or torch.cuda.is_available() or elsewhere() is not None)
    )


def may_run_apart(node: fx.Node) -> bool:
    """Whether torch may compute a node at another time than the graph's: a tensor of known sizes, without effects.

    Not of random numbers, memory as it was found, or an op that a user lowers.
    """
    target, value = node.target, value_of(node)
    if not isinstance(target, OpOverload) or not isinstance(value, torch.Tensor) or symbols_of(value):
        return False
    lowering = aten_functions.get(target)
    return (
        not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
        and target.overloadpacket not in UNINITIALIZED
        and (lowering is None or lowering.is_own)
        and target not in aten_functions.torch_ops
    )


def _read_outside(gm: fx.GraphModule, constants: set[fx.Node]) -> set[fx.Node]:
    """The constants that the rest of the graph reads, directly or through views with gaps or repeats in memory.

    Such views are computed in every call: as values of their own they would be larger than what they are made from.
    """
    read: set[fx.Node] = set()
    repeated: set[fx.Node] = set()
    for node in reversed(gm.graph.nodes):
        if node not in constants or node.op != "call_function":
            continue
        if any(user not in constants or user in repeated for user in node.users):
            (read if order_of(tensors_of(value_of(node))[0]) is not None else repeated).add(node)
    return read


def is_fill(node: fx.Node) -> bool:
    """Whether the node repeats one number."""
    return getattr(node.target, "overloadpacket", None) in FILLS


@torch.no_grad()
def evaluate(gm: fx.GraphModule, wanted: list[fx.Node]) -> dict[fx.Node, torch.Tensor]:
    """The values of ``wanted``, by running them and what they depend on; what raises will raise when it is called."""
    values: dict[fx.Node, torch.Tensor] = {}

    def value(node: fx.Node) -> torch.Tensor:
        if node not in values:
            if node.op == "get_attr":
                values[node] = operator.attrgetter(str(node.target))(gm)
            else:
                args, kwargs = map_nodes(node.args, value), map_nodes(dict(node.kwargs), value)
                values[node] = node.target(*_at_hand(args), **_at_hand(kwargs))
        return values[node]

    found = {}
    with _disable_current_modes():
        for node in wanted:
            try:
                found[node] = value(node)
            except Exception as error:  # whatever an op may raise
                log.info("%s is not folded: %s", node, error)
        for device in {v.device for v in found.values() if v.is_cuda}:
            torch.cuda.synchronize(device)  # calls may come from any stream
    return found


def _at_hand(arguments: Any) -> Any:
    """Arguments for a device that is here: the values of a graph for an absent GPU are computed on the CPU."""
    if elsewhere() is None:
        return arguments
    return pytree.tree_map_only(torch.device, lambda device: torch.device("cpu"), arguments)


def _fill(gm: fx.GraphModule, value: torch.Tensor, device: torch.device) -> fx.Node | None:
    """A node that repeats one number, if that is what the value does, to the bit."""
    if not value.numel() or value.is_complex():
        return None
    elements = value.detach().clone(memory_format=torch.contiguous_format).view(-1, 1).view(torch.uint8)
    if not bool((elements == elements[0]).all()):
        return None
    kwargs = {"dtype": value.dtype, "device": device}
    return gm.graph.call_function(aten.full.default, (list(value.shape), value.flatten()[0].item()), kwargs)


def _attribute(gm: fx.GraphModule, name: str, value: torch.Tensor, device: torch.device) -> fx.Node:
    if elsewhere() is not None:
        value = fake_like(value, device)
    gm.register_buffer(name, value, persistent=False)
    return gm.graph.get_attr(name)
