"""Parameters as constants, in inference: what depends on them alone is computed once and not in every call.

Casts of weights, scales of norms and weights packed for a library are such values. They become the results of one node,
which :class:`torch_max_backend.runtime.frozen.Frozen` runs, and which looks whether a parameter has changed.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from torch_max_backend.capture.constant_folding import is_fill, may_run_apart
from torch_max_backend.capture.fake_tensors import hint, order_of, storage_key, tensor_of, tensors_of, value_of
from torch_max_backend.capture.fx_nodes import map_nodes, source_of
from torch_max_backend.capture.joint_graph import SAVED_FROM
from torch_max_backend.capture.packed_weights import is_packing, pack_weights
from torch_max_backend.runtime.frozen import Frozen, Step, Steps, Value

OPAQUE = "torch_max_backend_opaque"
"""The key of a node's ``meta`` that says that only a library's function can read its tensor, which has no strides."""

SMALL = 1 << 16
"""Bytes up to which a value may be larger than what it is computed from."""


def freeze(gm: fx.GraphModule, static: Collection[int]) -> None:
    """Compute what depends on parameters alone in one node, after weights are packed for the library that reads them.

    A graph that is part of a training step, or has a tensor on another device than a CPU, stays as it is.

    Args:
        static: The positions of parameters and buffers among the placeholders.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    written = {n.args[0] for n in gm.graph.nodes if n.target is torch.ops.aten.copy_.default}
    parameters = [n for k, n in enumerate(placeholders) if k in static and n not in written and _is_cpu(n)]
    if not parameters or SAVED_FROM in gm.graph.output_node().meta or not all(map(_is_cpu, gm.graph.nodes)):
        return
    fixed = fixed_nodes(gm, parameters)
    pack_weights(gm, {n for n in fixed if not _grows(n, fixed)})
    _hoist(gm, fixed_nodes(gm, parameters), {storage_key(t) for n in parameters for t in tensors_of(value_of(n))})


def fixed_nodes(gm: fx.GraphModule, parameters: Collection[fx.Node]) -> set[fx.Node]:
    """``parameters`` and all nodes that depend on nothing but these."""
    found = set(parameters)
    for node in gm.graph.nodes:
        inputs = node.all_input_nodes
        if node.op == "call_function" and inputs and found.issuperset(inputs) and _may_run_once(node):
            found.add(node)
    return found


def _may_run_once(node: fx.Node) -> bool:
    return may_run_apart(node) and not is_fill(node) and (is_packing(node) or order_of(tensor_of(node)) is not None)


def _hoist(gm: fx.GraphModule, fixed: set[fx.Node], memory: set[int | None]) -> None:
    """Replace the fixed nodes that others read by results of one node.

    Not views, what would be much larger, and what may lie in ``memory`` or leaves: callers may write to it.
    """
    outside = {n for n in fixed if n.op == "call_function" and any(user not in fixed for user in n.users)}
    memory |= {storage_key(t) for n in gm.graph.output_node().all_input_nodes for t in tensors_of(value_of(n))}
    wanted = [n for n in gm.graph.nodes if n in outside and _pays(n, fixed, memory)]
    if not wanted:
        return
    given, steps, numbers = _steps_of(wanted, fixed)
    size = sum(_bytes(t) for n in wanted for t in tensors_of(value_of(n)))
    first = next(n for n in gm.graph.nodes if n.op != "placeholder")
    with gm.graph.inserting_before(first):
        node = gm.graph.call_function(Frozen(Steps(len(given), steps, numbers, size)), tuple(given))
    node.meta["val"] = tuple(value_of(n) for n in wanted)
    for k, old in enumerate(wanted):
        with gm.graph.inserting_before(old):
            new = gm.graph.call_function(operator.getitem, (node, k))
        new.meta.update(val=value_of(old), **source_of(old))
        new.meta[OPAQUE] = is_packing(old)
        old.replace_all_uses_with(new, lambda user: user not in fixed)
    gm.graph.eliminate_dead_code()


def _pays(node: fx.Node, fixed: set[fx.Node], memory: set[int | None]) -> bool:
    """Whether a value is worth to be kept: it is no view, and hardly larger than the parameters behind it."""
    if is_packing(node):
        return True
    (value,) = tensors_of(value_of(node))
    return storage_key(value) not in memory and not _grows(node, fixed)


def _grows(node: fx.Node, fixed: set[fx.Node]) -> bool:
    """Whether a value takes more memory than the parameters behind it, as an unpacked matrix of integers does."""
    behind = {n for n in _behind([node], fixed) if n.op == "placeholder"}
    most = max(SMALL, sum(_bytes(t) for n in behind for t in tensors_of(value_of(n))))
    return sum(map(_bytes, tensors_of(value_of(node)))) > most


def _behind(nodes: list[fx.Node], fixed: set[fx.Node]) -> set[fx.Node]:
    found, left = set(nodes), list(nodes)
    while left:
        for source in left.pop().all_input_nodes:
            if source in fixed and source not in found:
                found.add(source)
                left.append(source)
    return found


def _steps_of(wanted: list[fx.Node], fixed: set[fx.Node]) -> tuple[list[fx.Node], tuple[Step, ...], tuple[int, ...]]:
    """The parameters behind ``wanted``, the ops that compute these, and their numbers."""
    needed = _behind(wanted, fixed)
    order = [n for n in wanted[0].graph.nodes if n in needed]
    given = [n for n in order if n.op == "placeholder"]
    called = [n for n in order if n.op == "call_function"]
    numbers = {n: k for k, n in enumerate([*given, *called])}

    def value(node: fx.Node) -> Any:
        return Value(numbers[node])

    steps = tuple(Step(n.target, map_nodes(n.args, value), map_nodes(dict(n.kwargs), value)) for n in called)
    return given, steps, tuple(numbers[n] for n in wanted)


def _bytes(value: torch.Tensor) -> int:
    size = value.element_size()
    for n in value.shape:
        size *= hint(n)
    return size


def _is_cpu(node: fx.Node) -> bool:
    return all(t.device.type == "cpu" for t in tensors_of(value_of(node)))
