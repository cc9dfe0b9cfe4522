"""From a region of ATen nodes to a loop program: a rule or a library call for every node.

A node without either is taken apart by torch's own decomposition, and what that gives is treated the same way. Each
result is held against what torch promises for its node: dtype, rank and sizes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table as _torch_decompositions
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_max_backend.base.errors import LoweringError, Unsupported
from torch_max_backend.capture.fake_tensors import expr_of, order_of, tensor_of, tensors_of, user_line, value_of
from torch_max_backend.capture.fx_nodes import is_getitem
from torch_max_backend.loops.expr import SHORT, Load, Scalar
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.libraries import library_of
from torch_max_backend.loops.program import Call, Called, Definition, Input, Program, Ref
from torch_max_backend.loops.rules.registry import LeftToLibrary, rule_of
from torch_max_backend.loops.simplify import without_dead_definitions
from torch_max_backend.loops.tensor import Builder, Shape, Tensor, building, define, named
from torch_max_backend.partition.region import Region


class NodesWithoutLoopsError(Unsupported):
    """Nodes of a region have neither a loop rule nor a library call; ``reasons`` has each of them."""

    def __init__(self, reasons: Mapping[fx.Node, str]) -> None:
        super().__init__("; ".join(dict.fromkeys(reasons.values())))
        self.reasons = dict(reasons)


def program_of(region: Region) -> Program:
    """The loop program of a region.

    Raises:
        NodesWithoutLoopsError: Nodes have neither rule nor library call.
        Unsupported: The region has what programs do not.
        LoweringError: A rule broke torch's promise.
    """
    with building() as builder:
        return _FromRegion(region, builder).program()


class _FromRegion:
    def __init__(self, region: Region, builder: Builder) -> None:
        self.region, self.builder = region, builder
        self.env: dict[fx.Node, Any] = {}
        self.memory: dict[str, tuple[Shape, Shape]] = {}
        """Sizes and strides of what lies in memory, by name: inputs, results of library calls, what these read."""

    def program(self) -> Program:
        program = self.builder.program
        for k, port in enumerate(self.region.inputs):
            if port.value.device.type != "cpu":
                raise Unsupported(f"programs run on a CPU, not on {port.value.device}")
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
            name = self._own(x, leaving, dense_strides(x.shape, port.order))
            leaving.add(name)
            program.outputs.append((name, port.order))
        for target, source in self.region.stores:
            stored = self._own(self.env[source], leaving, self._stored_strides(target, source))
            leaving.add(stored)
            program.stores.append((_source_of(self.env[target]), stored))
        return without_dead_definitions(program)

    def _input(self, name: str, value: torch.Tensor) -> Tensor:
        sizes, strides = _numbers(value.shape), _numbers(value.stride())
        self.builder.program.inputs[name] = Input(name, _dtype(value), sizes, strides)
        self.memory[name] = sizes, strides
        return named(name, sizes, value.dtype)

    def _unknown(self, value: object) -> Any:
        """What stands for the result of a node without loops, so that the nodes behind it are looked at too."""
        if isinstance(value, torch.Tensor):
            name, sizes = self.builder.name(), _numbers(value.shape)
            self.memory[name] = sizes, _numbers(value.stride())
            return named(name, sizes, _dtype(value))
        return tuple(map(self._unknown, value)) if isinstance(value, list | tuple) else None

    def _own(self, x: Tensor, taken: set[str], strides: Shape) -> str:
        """The name of a definition or a call's result that is exactly ``x``, that nobody else returns, and that lies
        in these strides or still may.

        A library that reads a definition has been told its strides already.
        """
        name = _source_of(x)
        free = name not in self.memory or self.memory[name][1] == strides
        if name and name not in taken and free and self._is_whole(x, name):
            return name
        return _source_of(define(x.shape, x.dtype, x.at))

    def _stored_strides(self, target: fx.Node, source: fx.Node) -> Shape:
        """The strides of what is written into an input: the input's, if the sizes are the same."""
        given, x = self.builder.program.inputs[_source_of(self.env[target])], self.env[source]
        return given.strides if given.sizes == x.shape else dense_strides(x.shape)

    def _leaving_strides(self, d: Definition) -> Shape:
        """The strides with which a definition will leave, as far as that is known when a library reads it."""
        for port in self.region.outputs:
            x = self.env.get(port.node)
            if isinstance(x, Tensor) and _source_of(x) == d.name and self._is_whole(x, d.name):
                return dense_strides(d.sizes, port.order)
        for target, source in self.region.stores:
            x = self.env.get(source)
            if isinstance(x, Tensor) and _source_of(x) == d.name and self._is_whole(x, d.name):
                return self._stored_strides(target, source)
        return dense_strides(d.sizes)

    def _is_whole(self, x: Tensor, name: str) -> bool:
        variables = tuple(Var(f"d{k}", s.constant) for k, s in enumerate(x.shape))
        index = tuple(map(Index.of, variables))
        for step in self.builder.program.steps:
            results = step.results if isinstance(step, Call) else (step,)
            for found in results:
                if found is not None and found.name == name:
                    return x.at(index) == Load(name, index, x.dtype) and found.sizes == x.shape
        return False

    # -- nodes -------------------------------------------------------------------------------------------------
    def _node(self, node: fx.Node) -> Any:
        args, kwargs = (fx.node.map_arg(a, self._value) for a in (node.args, dict(node.kwargs)))
        if is_getitem(node):
            return args[0][args[1]]
        self.builder.where = f"{node.target} at {user_line(node)}" if user_line(node) else str(node.target)
        if node.target in _STRIDED:
            result = _as_strided(args[0], tensor_of(node.args[0]), *args[1:], **kwargs)
        else:
            result = self._apply(node.target, args, kwargs, value_of(node))
        self._hold_against_promise(node, result)
        return result

    def _value(self, node: fx.Node) -> Any:
        value = value_of(node)
        if node in self.env:
            return self.env[node]
        if isinstance(value, torch.SymInt) and expr_of(value).is_number:
            return int(value)
        raise Unsupported(f"{node} is known only when the program is called")

    def _apply(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], promise: object) -> Any:
        for value in tensors_of(promise):
            _dtype(value)
            if value.device.type not in ("cpu", "meta"):
                raise Unsupported(f"programs run on a CPU, not on {value.device}")
        rule = rule_of(target)
        if rule is not None:
            self.builder.promise = promise
            with contextlib.suppress(LeftToLibrary):
                return rule(*args, **kwargs)
        if library_of(target):
            return self._call(target, args, kwargs, promise)
        return self._taken_apart(target, args, kwargs)

    def _hold_against_promise(self, node: fx.Node, result: Any) -> None:
        promised, found = tensors_of(value_of(node)), _tensors(result)
        if isinstance(value_of(node), torch.Tensor):
            pairs = list(zip(promised, found, strict=True))
        else:
            values = [v for v in value_of(node) if isinstance(v, torch.Tensor)]  # type: ignore[attr-defined]
            pairs = list(zip(values, [r for r in result if isinstance(r, Tensor)], strict=False))
        for want, got in pairs:
            if want.dtype is not got.dtype or _numbers(want.shape) != got.shape:
                shape = [str(s) for s in got.shape]
                raise LoweringError(
                    f"the loop rule of {node.target} gives {SHORT[got.dtype]}{shape}, and torch promises "
                    f"{SHORT[want.dtype]}{list(want.shape)} (at {user_line(node)})"
                )

    # -- decompositions ----------------------------------------------------------------------------------------
    def _taken_apart(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        function = _torch_decompositions.get(target)
        if not isinstance(target, OpOverload) or function is None:
            raise Unsupported(f"{target} has no loop rule")
        flat, structure = tree_flatten((list(args), dict(kwargs)))
        flat = [x.constant if isinstance(x, Index) else x for x in flat]
        tensors = [x for x in flat if isinstance(x, Tensor)]

        def run(*given: torch.Tensor) -> Any:
            left = iter(given)
            own_args, own_kwargs = tree_unflatten([next(left) if isinstance(x, Tensor) else x for x in flat], structure)
            return function(*own_args, **own_kwargs)

        try:
            fakes = [torch.empty([s.constant for s in x.shape], dtype=x.dtype, device="meta") for x in tensors]
            graph = make_fx(run)(*fakes).graph
        except Exception as error:  # a decomposition may refuse in any way
            raise Unsupported(f"{target} has no loop rule, and its decomposition fails: {error}") from error
        return self._inner(graph, tensors, target)

    def _inner(self, graph: fx.Graph, inputs: Sequence[Tensor], target: Any) -> Any:
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
            args, kwargs = (fx.node.map_arg(a, env.__getitem__) for a in (node.args, dict(node.kwargs)))
            if is_getitem(node):
                env[node] = args[0][args[1]]
            elif isinstance(node.target, type):  # a named tuple of results
                env[node] = tuple(args[0]) if len(args) == 1 else tuple(args)
            else:
                env[node] = self._apply(node.target, args, kwargs, node.meta.get("val"))
        raise LoweringError(f"the decomposition of {target} returns nothing")

    # -- library calls -----------------------------------------------------------------------------------------
    def _call(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], promise: object) -> Any:
        def as_ref(x: Any) -> Any:
            if isinstance(x, Tensor):
                return self._ref(x)
            if isinstance(x, Index):
                return x.constant
            return type(x)(as_ref(v) for v in x) if isinstance(x, list | tuple) else x

        many = isinstance(promise, list | tuple)
        results: list[Called | None] = []
        for value in promise if isinstance(promise, list | tuple) else [promise]:
            if not isinstance(value, torch.Tensor):
                results.append(None)
                continue
            found = Called(self.builder.name(), _dtype(value), _numbers(value.shape), _numbers(value.stride()))
            self.memory[found.name] = found.sizes, found.strides
            results.append(found)
        given = tuple(as_ref(a) for a in args), {k: as_ref(v) for k, v in kwargs.items()}
        self.builder.program.steps.append(Call(library_of(target), target, *given, tuple(results), self.builder.where))
        tensors = [named(r.name, r.sizes, r.dtype) if r else None for r in results]
        return tuple(tensors) if many else tensors[0]

    def _ref(self, x: Tensor) -> Ref:
        """How a library reads ``x``: where it is, if it is a view of memory, else from a copy."""
        return self._in_place(x) or self._in_place(define(x.shape, x.dtype, x.at), new=True)  # type: ignore[return-value]

    def _in_place(self, x: Tensor, new: bool = False) -> Ref | None:
        variables = [Var(f"d{k}", s.constant) for k, s in enumerate(x.shape)]
        load = x.at(tuple(map(Index.of, variables)))
        if not isinstance(load, Load):
            return None
        if load.source not in self.memory:
            step = next(s for s in self.builder.program.steps if isinstance(s, Definition) and s.name == load.source)
            self.memory[load.source] = step.sizes, self._leaving_strides(step)
        sizes, strides = self.memory[load.source]
        if x.shape == sizes and load.index == tuple(map(Index.of, variables)):
            return Ref(load.source, sizes, strides, Index.of(0))
        address = Index.of(0)
        for i, stride in zip(load.index, strides, strict=True):
            address = address + i * stride
        if any(atom not in variables for atom, _ in address.terms):
            return None
        return Ref(
            load.source, x.shape, tuple(Index.of(address.coefficient(v)) for v in variables), Index.of(address.constant)
        )


_STRIDED = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default)


# as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)
def _as_strided(
    x: Tensor, like: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """A view of memory. ``like`` says how ``x`` lies in it, which must be densely and from its beginning."""
    order = order_of(like)
    if order is None or like.storage_offset() != 0:
        raise Unsupported(f"as_strided of a dense tensor, not of strides {like.stride()}")
    steps = _numbers(like.stride())

    def at(index: Shape) -> Scalar:
        place = Index.of(storage_offset or 0)
        for i, step in zip(index, stride, strict=True):
            place = place + i * step
        own = [place // steps[d] % x.shape[d] if k else place // steps[d] for k, d in enumerate(order)]
        return x.at(tuple(own[order.index(d)] for d in range(x.rank)))

    return Tensor(_numbers(size), x.dtype, at)


def dense_strides(sizes: Shape, order: Sequence[int] | None = None) -> Shape:
    """The strides of a tensor without gaps, in elements; ``order`` has its dimensions as memory has them."""
    strides, step = [Index.of(1)] * len(sizes), Index.of(1)
    for d in reversed(range(len(sizes)) if order is None else order):
        strides[d] = step
        step = step * (sizes[d] if sizes[d] != 0 else 1)
    return tuple(strides)


def _source_of(x: Tensor) -> str:
    """The name that ``x`` is loaded from; empty if it is computed."""
    scalar = x.at(tuple(Index.of(Var(f"d{k}", s.constant)) for k, s in enumerate(x.shape)))
    return scalar.source if isinstance(scalar, Load) else ""


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [t for r in result for t in _tensors(r)] if isinstance(result, list | tuple) else []


def _numbers(sizes: Sequence[Any]) -> Shape:
    found = []
    for size in sizes:
        if not isinstance(size, int) and not expr_of(size).is_number:
            raise Unsupported(f"programs of known sizes, not {size}")
        found.append(Index.of(int(size)))
    return tuple(found)


def _dtype(value: torch.Tensor) -> torch.dtype:
    if value.dtype not in SHORT:
        raise Unsupported(f"programs have no dtype for {value.dtype}")
    return value.dtype
