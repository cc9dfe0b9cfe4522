"""FX nodes and their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx


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
