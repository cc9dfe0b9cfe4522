"""A region as an FX graph of its own, and parts of such a graph."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch import fx

from torch_max_backend.capture.fake_tensors import expr_of, value_of
from torch_max_backend.capture.fx_nodes import map_nodes
from torch_max_backend.partition.classify import as_run_by_torch
from torch_max_backend.partition.region import Region


def graph_of(region: Region) -> tuple[fx.GraphModule, tuple[sympy.Basic, ...]]:
    """The region's nodes as torch runs them, and the expressions of the numbers that it takes.

    Its arguments are the region's inputs in order and the numbers behind them. Its results are the region's outputs,
    and behind them what it stores, in the order of ``region.stores``.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    for k, port in enumerate(region.inputs):
        copies[port.node] = _placeholder(graph, f"x{k}", port.value)
    numbers: dict[sympy.Basic, fx.Node] = {}
    for number in (n for node in region.nodes for n in _numbers((node.args, node.kwargs))):
        expr = _expr(number)
        if expr not in numbers and not expr.is_number:
            numbers[expr] = _placeholder(graph, f"n{len(numbers)}", number)

    def own(arg: Any) -> Any:
        if isinstance(arg, fx.Node) and arg in copies:
            return copies[arg]
        number = value_of(arg) if isinstance(arg, fx.Node) else arg
        expr = _expr(number)
        return numbers[expr] if expr in numbers else _python_number(number, expr)

    for node in region.nodes:
        args, kwargs = (_mapped(a, own) for a in (node.args, dict(node.kwargs)))
        copy = copies[node] = graph.create_node("call_function", as_run_by_torch(node.target), args, kwargs, node.name)
        copy.meta = {k: node.meta[k] for k in ("val", "stack_trace") if k in node.meta}
    leaving = [p.node for p in region.outputs] + [source for _, source in region.stores]
    graph.output(tuple(copies[n] for n in leaving))
    return fx.GraphModule(torch.nn.Module(), graph), tuple(numbers)


def _placeholder(graph: fx.Graph, name: str, value: Any) -> fx.Node:
    node = graph.placeholder(name)
    node.meta = {"val": value}
    return node


SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _numbers(arg: Any) -> Iterator[Any]:
    """Sizes and other numbers among arguments that may be known only at a call."""
    if isinstance(arg, fx.Node):
        if isinstance(value_of(arg), SYMBOLIC):
            yield value_of(arg)
    elif isinstance(arg, SYMBOLIC):
        yield arg
    elif isinstance(arg, list | tuple | dict):
        for part in arg.values() if isinstance(arg, dict) else arg:
            yield from _numbers(part)


def _expr(number: Any) -> sympy.Basic:
    return number.node.expr if isinstance(number, torch.SymBool) else expr_of(number)


def _python_number(number: Any, expr: Any) -> int | float | bool:
    if isinstance(number, torch.SymBool):
        return bool(expr)
    return float(expr) if isinstance(number, torch.SymFloat | float) else int(expr)


def _mapped(arg: Any, own: Any) -> Any:
    """``arg`` with its nodes and symbolic numbers replaced."""
    if isinstance(arg, SYMBOLIC):
        return own(arg)
    if isinstance(arg, dict):
        return {k: _mapped(v, own) for k, v in arg.items()}
    if isinstance(arg, list | tuple) and not hasattr(arg, "_fields"):
        return type(arg)(_mapped(a, own) for a in arg)
    return map_nodes(arg, own)


# -- parts of a graph ----------------------------------------------------------------------------------------------
def is_tensor(node: fx.Node) -> bool:
    """Whether the node gives one tensor."""
    return isinstance(value_of(node), torch.Tensor)


def computed(gm: fx.GraphModule) -> list[fx.Node]:
    """The nodes that compute a tensor, in order."""
    return [n for n in gm.graph.nodes if n.op == "call_function" and is_tensor(n)]


def cone(node: fx.Node, depth: int) -> set[fx.Node]:
    """A node and what is computed up to ``depth`` steps before it; several tensors of one op are one step."""
    members: set[fx.Node] = set()
    front = {node}
    for _ in range(depth + 1):
        members |= front
        whole = {s for n in front for s in _called(n) if not is_tensor(s)}
        members |= whole
        front = {s for n in front | whole for s in _called(n) if is_tensor(s)}
    return members


def _called(node: fx.Node) -> list[fx.Node]:
    return [n for n in node.all_input_nodes if n.op == "call_function"]


def part(
    gm: fx.GraphModule, members: Collection[fx.Node], results: Sequence[fx.Node]
) -> tuple[fx.GraphModule, list[fx.Node]]:
    """Some nodes of a graph as a graph of their own, and the nodes of ``gm`` that are its arguments."""
    graph = fx.Graph()
    inside = [n for n in gm.graph.nodes if n in members]
    read = {s for n in inside for s in n.all_input_nodes}
    given = [n for n in gm.graph.nodes if n not in members and (n in read or n in results)]
    copies = {n: _placeholder(graph, f"x{k}", n.meta["val"]) for k, n in enumerate(given)}
    for node in inside:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[n] for n in results))
    return fx.GraphModule(torch.nn.Module(), graph), given
