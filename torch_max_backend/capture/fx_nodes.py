"""FX nodes and their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from torch_max_backend.capture.fake_tensors import tensor_of, value_of


def is_getitem(node: fx.Node) -> bool:
    """Whether the node picks one output of another node."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def map_nodes(arg: Any, function: Callable[[fx.Node], Any]) -> Any:
    """``arg`` with every node inside replaced; lists and tuples keep their kind."""
    if isinstance(arg, fx.Node):
        return function(arg)
    if isinstance(arg, list | tuple):
        return type(arg)(map_nodes(a, function) for a in arg) if not hasattr(arg, "_fields") else arg
    if isinstance(arg, dict):
        return {k: map_nodes(v, function) for k, v in arg.items()}
    if isinstance(arg, slice):
        return slice(*(map_nodes(a, function) for a in (arg.start, arg.stop, arg.step)))
    return arg


def source_of(node: fx.Node) -> dict[str, Any]:
    """What a node's ``meta`` tells of where it comes from: the user's line and modules."""
    return {key: node.meta[key] for key in _SOURCE if key in node.meta}


_SOURCE = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack")


def call_node(gm: fx.GraphModule, op: Any, args: tuple[Any, ...], origin: fx.Node, **kwargs: Any) -> fx.Node:
    """A new node. Its value is a new fake tensor: values that share memory count as views of each other."""
    node = gm.graph.call_function(op, args, kwargs)
    values = fx.node.map_arg(args, value_of)
    with tensor_of(origin).fake_mode:
        node.meta.update(val=op(*values, **kwargs), **source_of(origin))
    return node


def calls_like(gm: fx.GraphModule, origin: fx.Node) -> Callable[..., fx.Node]:
    """A function that adds a node of the user's line of ``origin``: ``call(op, *args, **kwargs)``."""
    return lambda op, *args, **kwargs: call_node(gm, op, args, origin, **kwargs)
