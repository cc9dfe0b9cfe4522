"""From a region of ATen nodes to a loop program: a rule or a library call for every node.

A node without either is taken apart by torch's own decomposition, and what that gives is treated the same way. Each
result is held against what torch promises for its node: dtype, rank and sizes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table as _torch_decompositions
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from torch_max_backend.base.errors import LoweringError, Unsupported
from torch_max_backend.capture.device_copies import devices_of
from torch_max_backend.capture.fake_tensors import (
    tensor_of,
    tensors_of,
    user_line,
    user_module,
    value_of,
)
from torch_max_backend.capture.fx_nodes import is_getitem
from torch_max_backend.loops import few_rows, small_products
from torch_max_backend.loops.expr import SHORT, loads, rewrite
from torch_max_backend.loops.index import Index, product
from torch_max_backend.loops.libraries import library_of
from torch_max_backend.loops.library_calls import LibraryCalls, dtype_of, source_of
from torch_max_backend.loops.narrow_products import PRODUCTS, packed_product, product_as_loops, product_of_a_row
from torch_max_backend.loops.program import Called, Definition, Input, Program, Ref, Scatter, dense_strides
from torch_max_backend.loops.rules.registry import LeftToLibrary, rule_of
from torch_max_backend.loops.simplify import without_dead_definitions
from torch_max_backend.loops.strided import STRIDED
from torch_max_backend.loops.tensor import Builder, Shape, Tensor, define, named
from torch_max_backend.partition.region import Region


class NodesWithoutLoopsError(Unsupported):
    """Nodes of a region have neither a loop rule nor a library call; ``reasons`` has each of them."""

    def __init__(self, reasons: Mapping[fx.Node, str]) -> None:
        super().__init__("; ".join(dict.fromkeys(reasons.values())))
        self.reasons = dict(reasons)


def device_of(region: Region) -> torch.device:
    """The device of all tensors that enter or leave a region.

    Raises:
        Unsupported: They are on several, or on one that programs do not run on.
    """
    found: dict[torch.device, str] = {}
    for port in (*region.inputs, *region.outputs):
        for device in devices_of(port.node):
            found.setdefault(device, port.node.name)
    if len(found) > 1:
        told = ", ".join(sorted(f"{device} ({name})" for device, name in found.items()))
        raise Unsupported(f"a program runs on one device, not on {told}")
    device = next(iter(found), torch.device("cpu"))
    if device.type not in ("cpu", "cuda"):
        raise Unsupported(f"programs run on a CPU or an NVIDIA GPU, not on {device}")
    return device


def place_of(node: fx.Node) -> str:
    """A node's op, and the user's line that it comes from."""
    return f"{node.target} at {user_line(node)}" if user_line(node) else str(node.target)


def has_loops(target: object) -> bool:
    """Whether a rule or a library computes an op; where neither covers a node, the walk over its region says so."""
    return rule_of(target) is not None or target in STRIDED or bool(library_of(target))


class FromRegion(LibraryCalls):
    """The walk over a region's nodes, on a CPU."""

    def __init__(self, region: Region, builder: Builder) -> None:
        super().__init__(region, builder)
        self.device = device_of(region)
        self._decomposed: dict[Hashable, fx.Graph] = {}
        """The graphs of decompositions, by function and arguments: layers have the same."""

    def program(self) -> Program:
        program = self.builder.program
        for k, port in enumerate(self.region.inputs):
            self.env[port.node] = self._input(f"x{k}", port.value)
        without_loops: dict[fx.Node, str] = {}
        for node in self.region.nodes:
            try:
                self.env[node] = self._node(node)
            except Unsupported as limit:
                without_loops[node] = str(limit)
                self.env[node] = self._unknown(value_of(node))
        if without_loops:
            raise NodesWithoutLoopsError(without_loops)
        leaving: set[str] = set(program.inputs)
        for port in self.region.outputs:
            x = self.env[port.node]
            strides = None if port.free else dense_strides(x.shape, port.order)
            if (view := self._view_of_a_result(x, leaving, strides)) is not None:
                name, order = view.name, tuple(range(len(self.memory[view.name][0])))
                program.views[name] = view.sizes, view.strides
                if port.free:
                    program.free[name] = tuple(int(s.constant) for s in view.strides)
            else:
                name = self._own(x, leaving, strides)
                order = self._as_it_lies(name, x) if port.free else port.order
            leaving.add(name)
            program.outputs.append((name, order))
            program.shapes[name] = x.shape
        for target, source in self.region.stores:
            stored = self._own(self.env[source], leaving, self._stored_strides(target, source))
            leaving.add(stored)
            program.stores.append((source_of(self.env[target]), stored))
        program.symbols = self.symbols.given()
        return without_dead_definitions(program)

    def _input(self, name: str, value: torch.Tensor) -> Tensor:
        sizes, strides = self.symbols.shape(value.shape), self.symbols.shape(value.stride())
        self.builder.program.inputs[name] = Input(name, dtype_of(value), sizes, strides)
        self.memory[name] = sizes, strides
        return named(name, sizes, value.dtype)

    def _unknown(self, value: object) -> Any:
        """What stands for the result of a node without loops, so that the nodes behind it are looked at too."""
        if isinstance(value, torch.Tensor):
            name, sizes = self.builder.name(), self.symbols.shape(value.shape)
            self.memory[name] = sizes, self.symbols.shape(value.stride())
            return named(name, sizes, dtype_of(value))
        return tuple(map(self._unknown, value)) if isinstance(value, list | tuple) else None

    def _as_it_lies(self, name: str, x: Tensor) -> tuple[int, ...]:
        """The order in memory of an output that may lie in any way: as a library has it, or as what it is made from."""
        order = tuple(range(x.rank))
        strides = self.memory[name][1] if name in self.memory else None
        if strides is None:
            step = next((s for s in self.builder.program.steps if isinstance(s, Definition) and s.name == name), None)
            order = order if step is None else self._order_of_a_source(step)
            rows = None
            if step is not None and order[-1:] == (x.rank - 1,):
                rows = self._spread(step, self.row_bytes // step.dtype.itemsize)
            strides = dense_strides(x.shape, order, rows)
        else:
            order = self.builder.program.orders.get(name, order)
        self.builder.program.free[name] = tuple(int(s.constant) for s in strides)
        return order

    def _order_of_a_source(self, d: Definition) -> tuple[int, ...]:
        """The order in memory of a tensor that a definition is made from, element by element or by windows."""
        index, seen = tuple(map(Index.of, d.variables)), {d.name}
        definitions = {s.name: s for s in self.builder.program.steps if isinstance(s, Definition)}
        left = list(loads(d.body))
        while left:
            x = left.pop(0)
            if len(x.index) != len(index) or sum(i == own for i, own in zip(x.index, index, strict=True)) < 2:
                continue
            sizes, strides = self.memory.get(x.source, ((), ()))
            if strides and all(s.is_constant for s in strides):
                order = tuple(sorted(range(len(sizes)), key=lambda k: -strides[k].constant))
                if dense_strides(sizes, order) == strides:
                    return order
            step = definitions.get(x.source)
            if step is not None and not isinstance(step.how, Scatter) and step.name not in seen:
                seen.add(step.name)
                left += loads(rewrite(step.body, dict(zip(step.variables, index, strict=True))))
        return tuple(range(len(d.variables)))

    def _own(self, x: Tensor, taken: set[str], strides: Shape | None) -> str:
        """The name of a definition or a call's result that is exactly ``x``, that nobody else returns, and that lies
        in these strides or still may.

        A library that reads a definition has been told its strides already.
        """
        name = source_of(x)
        free = name not in self.memory or strides is None or self.memory[name][1] == strides
        if name and name not in taken and free and self._is_whole(x, name):
            return name
        return source_of(define(x.shape, x.dtype, x.at))

    def _view_of_a_result(self, x: Tensor, taken: set[str], strides: Shape | None) -> Ref | None:
        """Where ``x`` is, if that is all of a library's result in other dimensions, which nobody else returns: as the
        image that a product of its pixels has given. It lies in these strides, or may lie in any."""
        name = source_of(x)
        found = self._result_named(name) if name and name not in taken else None
        if not isinstance(found, Called) or self._is_whole(x, name) or not _are_known(x.shape, found.sizes):
            return None
        ref = self._in_place(x)
        if ref is None or not _are_known(ref.strides, found.strides) or ref.offset != 0:
            return None
        order = tuple(sorted(range(x.rank), key=lambda d: -ref.strides[d].constant))
        is_whole = product(x.shape) == product(found.sizes) and found.strides == dense_strides(found.sizes)
        dense = dense_strides(x.shape, order)
        return ref if is_whole and ref.strides == dense and strides in (None, dense) else None

    # -- nodes -------------------------------------------------------------------------------------------------
    def _node(self, node: fx.Node) -> Any:
        self.node = node
        args, kwargs = (fx.node.map_arg(a, self._value) for a in (node.args, dict(node.kwargs)))
        if is_getitem(node):
            return args[0][args[1]]
        self.builder.module = user_module(node)
        self.builder.where = place_of(node)
        self.builder.wanted = _wanted(node)
        if (by_places := STRIDED.get(node.target)) is not None:
            result = by_places(tensor_of(node.args[0]), self.symbols.shape, *args, **kwargs)
        else:
            result = self._apply(node.target, args, kwargs, value_of(node))
        return self._held_against_promise(node, result)

    def _value(self, node: fx.Node) -> Any:
        value = value_of(node)
        if node in self.env:
            return self.env[node]
        if isinstance(value, torch.SymInt):
            found = self.symbols.of(value)
            return found.constant if found.is_constant else found
        raise Unsupported(f"{node} is known only when the program is called")

    def _apply(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], promise: object) -> Any:
        for value in tensors_of(promise):
            dtype_of(value)
            if value.device not in (self.device, torch.device("meta")):
                raise Unsupported(f"a program on {self.device} has no tensor on {value.device}")
        rule = rule_of(target)
        is_multiplied = kwargs.get("alpha") != 0  # what NaN in a product times 0 gives is up to libraries
        if is_multiplied and (found := self._special_product(target, args, dict(kwargs), promise)) is not None:
            return found
        if self._is_for_library(target, args):
            return self._library(target, args, kwargs, promise)
        if rule is not None:
            self.builder.promise = promise
            with contextlib.suppress(LeftToLibrary):
                return rule(*args, **kwargs)
        if library_of(target):
            return self._library(target, args, kwargs, promise)
        return self._taken_apart(target, args, kwargs)

    def _special_product(
        self, target: Any, args: Sequence[Any], kwargs: dict[str, Any], promise: object
    ) -> Tensor | None:
        """What a product gives that takes the time of reading its matrix, or that unpacks one for many rows."""
        if (row := product_of_a_row(self.builder.program, self.node, target, args, kwargs)) is not None:
            return row
        if (packed := packed_product(self.builder.program, target, args)) is not None:
            return self._library(*packed, {}, promise)
        if target not in (*PRODUCTS, *small_products.BATCHES):
            return None
        if small_products.is_product(args):
            return product_as_loops(args, kwargs)
        if target not in PRODUCTS or any(factor != 1 for factor in kwargs.values()):
            return None
        matrix = self._in_place(args[-1]) if source_of(args[-1]) in self.memory else None
        return product_as_loops(args, kwargs) if few_rows.is_product(args, matrix) else None

    def _held_against_promise(self, node: fx.Node, result: Any) -> Any:
        """The result, with symbolic sizes as torch spells them."""
        value = value_of(node)
        if isinstance(value, torch.Tensor):
            return self._held(node, value, result)
        values = iter([v for v in value if isinstance(v, torch.Tensor)])  # type: ignore[attr-defined]
        held = []
        for x in result:
            want = next(values, None) if isinstance(x, Tensor) else None
            held.append(x if want is None else self._held(node, want, x))
        return tuple(held)

    def _held(self, node: fx.Node, want: torch.Tensor, got: Tensor) -> Tensor:
        sizes = self.symbols.shape(want.shape)
        if want.dtype is got.dtype and sizes == got.shape:
            return got
        if want.dtype is got.dtype and len(sizes) == got.rank and all(map(_may_be_equal, sizes, got.shape)):
            return Tensor(sizes, got.dtype, got.at)
        shape = [str(s) for s in got.shape]
        raise LoweringError(
            f"the loop rule of {node.target} gives {SHORT[got.dtype]}{shape}, and torch promises "
            f"{SHORT[want.dtype]}{list(map(str, sizes))} (at {user_line(node)})"
        )

    def _with_zeros(self, x: Tensor, padding: Sequence[int | Index]) -> Tensor:
        """``x`` in memory of its own, with zeros as ``torch.ops.aten.constant_pad_nd`` has them."""
        pad = rule_of(torch.ops.aten.constant_pad_nd.default)
        assert pad is not None
        return self._defined(pad(x, padding, 0))

    # -- decompositions ----------------------------------------------------------------------------------------
    def _taken_apart(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        function = _torch_decompositions.get(target)
        if not isinstance(target, OpOverload) or function is None:
            raise Unsupported(f"{target} has no loop rule")
        return self._by(function, target, args, kwargs)

    def _by(
        self, function: Callable[..., Any], target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """What a function of torch's ops gives that computes the same as ``target``."""
        flat, structure = tree_flatten((list(args), dict(kwargs)))
        inputs = [x for x in flat if isinstance(x, Tensor | Index)]
        symbolic = any(isinstance(x, Index) or not all(s.is_constant for s in x.shape) for x in inputs)

        def run(*given: Any) -> Any:
            left = iter(given)
            own = [next(left) if isinstance(x, Tensor | Index) else x for x in flat]
            own_args, own_kwargs = tree_unflatten(own, structure)
            return function(*own_args, **own_kwargs)

        key = None if symbolic else (function, _spelled([args, dict(kwargs)]))
        graph = self._decomposed.get(key)
        if graph is None:
            try:
                traced = self._traced_by_symbols(run, inputs) if symbolic else self._traced(run, inputs)
            except Exception as error:  # a decomposition may refuse in any way
                raise Unsupported(f"{target} has no loop rule, and its decomposition fails: {error}") from error
            graph = traced.graph
            if key is not None:
                self._decomposed[key] = graph
        return self._inner(graph, inputs, target)

    def _traced(self, run: Callable[..., Any], inputs: Sequence[Tensor | Index]) -> fx.GraphModule:
        """By tensors without memory, so that the device of what ``run`` makes need not be here."""
        return make_fx(run, tracing_mode="real" if inputs else "fake")(*map(self._fake, inputs))

    def _fake(self, x: Tensor | Index, device: str = "meta") -> Any:
        if isinstance(x, Index):
            return self.symbols.back(x)
        return torch.empty([self.symbols.back(s) for s in x.shape], dtype=x.dtype, device=device)

    def _traced_by_symbols(self, run: Callable[..., Any], inputs: Sequence[Any]) -> fx.GraphModule:
        """A decomposition in terms of the region's own symbols; what it asks of them torch guards, while it can."""
        env = self.symbols.environment
        ignored = env.counter["ignored_backward_guard"]
        with FakeTensorMode(shape_env=env):
            traced = make_fx(run)(*[self._fake(x, "cpu") for x in inputs])
        if env.counter["ignored_backward_guard"] > ignored:
            raise Unsupported("it asks for a size that torch cannot guard any more")
        return traced

    def _inner(self, graph: fx.Graph, inputs: Sequence[Tensor | Index], target: Any) -> Any:
        env: dict[fx.Node, Any] = dict(zip(graph.find_nodes(op="placeholder"), inputs, strict=True))
        for node in graph.nodes:
            if node.op == "output":
                return fx.node.map_arg(node.args[0], env.__getitem__)
            if node.op == "get_attr":
                raise Unsupported(f"the decomposition of {target} has constants")
            if node.op != "call_function":
                continue
            if node.target is target:
                raise Unsupported(f"{target} has no loop rule")
            if isinstance(node.meta.get("val"), torch.SymInt):
                env[node] = self.symbols.of(node.meta["val"])
                continue
            args, kwargs = (fx.node.map_arg(a, env.__getitem__) for a in (node.args, dict(node.kwargs)))
            args, kwargs = tree_map_only(torch.SymInt, self.symbols.of, (args, kwargs))
            if is_getitem(node):
                env[node] = args[0][args[1]]
            elif isinstance(node.target, type):  # a named tuple of results
                env[node] = tuple(args[0]) if len(args) == 1 else tuple(args)
            else:
                self.builder.wanted = _wanted(node)
                env[node] = self._apply(node.target, args, kwargs, node.meta.get("val"))
        raise LoweringError(f"the decomposition of {target} returns nothing")


def _spelled(x: Any) -> Hashable:
    """An op's argument as a key: a tensor counts by its sizes and dtype, a number by its type, too."""
    if isinstance(x, Tensor):
        return x.shape, x.dtype
    if isinstance(x, list | tuple):
        return (type(x), *map(_spelled, x))
    if isinstance(x, dict):
        return tuple((name, _spelled(value)) for name, value in x.items())
    return type(x), x.hex() if isinstance(x, float) else x


def _are_known(*shapes: Shape) -> bool:
    """Whether no size depends on a call."""
    return all(n.is_constant for shape in shapes for n in shape)


def _may_be_equal(a: Index, b: Index) -> bool:
    """Whether two spellings of a size may be one: they are symbolic, and as far as hints say, equal."""
    return a == b or (not (a.is_constant and b.is_constant) and a.typical == b.typical)


def _wanted(node: fx.Node) -> frozenset[int] | None:
    """The numbers of a node's results that others read, if all of them read one each."""
    return frozenset(user.args[1] for user in node.users) if all(map(is_getitem, node.users)) else None
