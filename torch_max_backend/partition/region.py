"""A region: the part of a graph that becomes one MAX graph, with its boundary and its canonical text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import sympy
import torch
from sympy import Expr
from torch import fx

from torch_max_backend.capture.fake_tensors import expr_of, sizes_of, tensors_of, user_line, value_of
from torch_max_backend.capture.fx_nodes import is_getitem
from torch_max_backend.partition.optimizer_updates import Update
from torch_max_backend.partition.symbolic_dims import DimTable

RESTRIDED = "torch_max_backend_restrided"
"""The key of a placeholder's ``meta`` that says that its strides are not those that torch traced."""


@dataclass(frozen=True)
class Port:
    """A tensor that enters or leaves a region.

    ``order`` is the permutation of its dimensions in which it is contiguous at the boundary. ``mutable`` marks an
    input that the region writes in place, ``consumed`` one that nobody reads behind it, which a program frees itself;
    ``free`` marks an output that may lie in memory in any way: only a backward reads it, which is told.
    """

    node: fx.Node
    order: tuple[int, ...]
    mutable: bool = False
    free: bool = False
    consumed: bool = False

    @property
    def value(self) -> torch.Tensor:
        """The fake tensor of the node."""
        return self.node.meta["val"]

    @property
    def is_permuted(self) -> bool:
        """Whether memory order differs from the order of the dimensions."""
        return self.order != tuple(range(len(self.order)))


@dataclass
class Region:
    """Nodes in topological order, tensors in and out, in-place stores, and the host values that are passed in.

    ``stores`` pairs an input node with the node whose value is written into it. ``scalars`` are SymFloat expressions
    that enter as 0-d float64 tensors. ``updates`` are what a region is made of that has nothing else; its inputs enter
    flat, in one dimension.
    """

    nodes: list[fx.Node]
    inputs: list[Port]
    outputs: list[Port]
    stores: list[tuple[fx.Node, fx.Node]] = field(default_factory=list)
    updates: tuple[Update, ...] = ()

    def begins_at(self) -> str:
        """The first line of the user's program that it is made from; empty if torch does not know it."""
        return next((where for node in self.nodes if (where := user_line(node))), "")

    @cached_property
    def dims(self) -> DimTable:
        """The names of all symbolic sizes; inputs first, so that they bind as much as possible."""
        table = DimTable()
        for port in self.inputs:
            sizes = sizes_of(port.value)
            table.bind_input([sizes[d] for d in port.order])
        values = [p.value for p in self.inputs] + [t for n in self.nodes for t in tensors_of(value_of(n))]
        for value in values:
            for size in sizes_of(value):
                table.use_size(size)
        for node in self.nodes:
            for expr in _symints(node):
                table.use_number(expr)
        return table

    @cached_property
    def carriers(self) -> list[Expr]:
        """Sizes computed on the host, each passed in as the first size of an empty tensor."""
        return self.dims.carriers()

    @cached_property
    def scalars(self) -> list[Expr]:
        """SymFloat arguments, passed in as 0-d float64 tensors."""
        found: dict[Expr, None] = {}
        for node in self.nodes:
            for arg in node.all_input_nodes:
                value = value_of(arg)
                if isinstance(value, torch.SymFloat) and not expr_of(value).is_number:
                    found[expr_of(value)] = None
        return list(found)

    @cached_property
    def used_outputs(self) -> dict[fx.Node, frozenset[int]]:
        """Per node the indices of the outputs that somebody reads."""
        return {n: _used(n) for n in self.nodes}

    @cached_property
    def orders(self) -> dict[tuple[fx.Node, int], tuple[int, ...]]:
        """The memory order in which outputs leave, by the node that computes them and the number of its output."""
        found = {}
        for port in self.outputs:
            node, index = port.node, 0
            if is_getitem(node):
                node, index = node.args[0], int(node.args[1])
            found[node, index] = port.order
        return found

    @cached_property
    def text(self) -> str:
        """The canonical form: equal for two regions exactly if they compile to the same code."""
        return _Canonical(self).text()

    @property
    def compute_nodes(self) -> int:
        """Nodes other than ``getitem``."""
        return sum(not is_getitem(n) for n in self.nodes)


def canonical_call(region: Region, node: fx.Node) -> str:
    """The op with the types of its operands, whatever nodes these are: equal for equal nodes of equal regions."""
    return _Canonical(region).call(node)


def _used(node: fx.Node) -> frozenset[int]:
    value = value_of(node)
    if not isinstance(value, list | tuple):
        return frozenset({0})
    picks = [u for u in node.users if is_getitem(u)]
    return frozenset(int(u.args[1]) for u in picks if u.users)


def _symints(node: fx.Node) -> Iterable[Expr]:
    for arg in node.all_input_nodes:
        value = value_of(arg)
        if isinstance(value, torch.SymInt):
            yield expr_of(value)


class _Canonical:
    """Prints a region with nodes numbered and atoms named, so that names of the program do not matter."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.index = {p.node: f"i{k}" for k, p in enumerate(region.inputs)}
        self.index.update({n: f"n{k}" for k, n in enumerate(region.nodes)})

    def text(self) -> str:
        r = self.region
        if r.updates:
            return "\n".join(self._update(u) for u in r.updates)
        lines = [f"in {self._tensor(p.value)} order={p.order} mutable={p.mutable}" for p in r.inputs]
        lines += [f"carrier {self._expr(e)}" for e in r.carriers]
        lines += [f"scalar {e}" for e in r.scalars]
        for n in r.nodes:
            used = sorted(r.used_outputs[n])
            args, kwargs = self._arg(n.args), self._arg(dict(n.kwargs))
            lines.append(f"{self.index[n]} = {n.target}{args}{kwargs} -> {self._value(value_of(n))} used={used}")
        lines += [f"out {self.index[p.node]} order={p.order}" for p in r.outputs]
        lines += [f"store {self.index[target]} <- {self.index[source]}" for target, source in r.stores]
        return "\n".join(lines)

    def call(self, node: fx.Node) -> str:
        """A node by its op, the types of its operands and that of its result."""
        self.index = {}
        return f"{node.target}{self._arg(node.args)}{self._arg(dict(node.kwargs))} -> {self._value(value_of(node))}"

    def _update(self, update: Update) -> str:
        """The code takes operands of any size."""
        device = update.operands[0].meta["val"].device
        numbers = [self.index[n] for n in update.operands]
        return f"update {update.program} first={update.first}{numbers} @{device.type}:{device.index or 0}"

    def _expr(self, expr: Expr) -> str:
        names = {e: sympy.Symbol(name) for e, name in self.region.dims.names.items()}
        return str(expr.xreplace(names))

    def _tensor(self, value: torch.Tensor) -> str:
        sizes = ",".join(self._expr(e) for e in sizes_of(value))
        return f"{str(value.dtype).removeprefix('torch.')}[{sizes}]@{value.device.type}:{value.device.index or 0}"

    def _value(self, value: object) -> str:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, list | tuple):
            return "(" + ", ".join(self._value(v) for v in value) + ")"
        return self._arg(value)

    def _arg(self, arg: object) -> str:
        if isinstance(arg, fx.Node):
            if arg in self.index:
                return self.index[arg]
            return self._value(value_of(arg))
        if isinstance(arg, torch.SymInt | torch.SymFloat):
            return self._expr(expr_of(arg))
        if isinstance(arg, list | tuple):
            return "(" + ", ".join(self._arg(a) for a in arg) + ")"
        if isinstance(arg, dict):
            return "{" + ", ".join(f"{k}={self._arg(v)}" for k, v in sorted(arg.items())) + "}"
        if isinstance(arg, float):
            return arg.hex()
        return repr(arg)
