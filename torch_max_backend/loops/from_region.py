"""From a region of ATen nodes to a loop program: a rule or a library call for every node.

A node without either is taken apart by torch's own decomposition, and what that gives is treated the same way. Each
result is held against what torch promises for its node: dtype, rank and sizes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table as _torch_decompositions
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from torch_max_backend.aten_functions.torch_executed.collectives import COLLECTIVES, STARTS, WAITS
from torch_max_backend.base.errors import LoweringError, Unsupported
from torch_max_backend.capture.fake_tensors import (
    expr_of,
    order_of,
    tensor_of,
    tensors_of,
    user_line,
    user_module,
    value_of,
)
from torch_max_backend.capture.fx_nodes import is_getitem
from torch_max_backend.loops import few_rows, pointwise_convolution, small_products
from torch_max_backend.loops.convolution_layout import CHANNELS_LAST, Convolution
from torch_max_backend.loops.expr import SHORT, Load, Scalar, loads, rewrite
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.libraries import PACKED_CONVOLUTIONS, PACKED_LINEARS, library_of
from torch_max_backend.loops.narrow_products import PRODUCTS, packed_product, product_as_loops, product_of_a_row
from torch_max_backend.loops.program import Call, Called, Definition, Input, Program, Ref, Scatter, dense_strides
from torch_max_backend.loops.rules.registry import LeftToLibrary, rule_of
from torch_max_backend.loops.simplify import without_dead_definitions
from torch_max_backend.loops.tensor import Builder, Shape, Tensor, define, named, sized
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
    found = {port.value.device for port in (*region.inputs, *region.outputs)}
    found = {torch.device("cuda", d.index or 0) if d.type == "cuda" else d for d in found}
    if len(found) > 1:
        raise Unsupported(f"a program runs on one device, not on {', '.join(sorted(map(str, found)))}")
    device = found.pop() if found else torch.device("cpu")
    if device.type not in ("cpu", "cuda"):
        raise Unsupported(f"programs run on a CPU or an NVIDIA GPU, not on {device}")
    return device


class FromRegion:
    """The walk over a region's nodes, on a CPU."""

    channels_last: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    """Dtypes of convolutions for which channels may be put last."""
    row_bytes = 1
    """At multiples of how many bytes rows begin in a tensor that may lie in any way."""
    has_row_products = True
    """Whether loops compute the product of a row with a matrix of narrow elements."""
    adds_bias = False
    """Whether the bias of the convolution at work is a loop's."""

    def __init__(self, region: Region, builder: Builder) -> None:
        self.region, self.builder, self.symbols = region, builder, builder.symbols
        self.device = device_of(region)
        self.env: dict[fx.Node, Any] = {}
        self.memory: dict[str, tuple[Shape, Shape]] = {}
        """Sizes and strides of what lies in memory, by name: inputs, results of library calls, what these read."""
        self.at_work: dict[str, tuple[str, ...]] = {}
        """What collectives read, by the names of their results."""
        self.defined: dict[Any, Tensor] = {}
        """What was computed for libraries to read, by shape, dtype and the scalar at an index."""
        self.node = next(iter(region.nodes), None)
        """The node at work."""
        self.convolutions = sum(n.target is torch.ops.aten.convolution.default for n in region.nodes)

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
            name = self._own(x, leaving, None if port.free else dense_strides(x.shape, port.order))
            leaving.add(name)
            program.outputs.append((name, self._as_it_lies(name, x) if port.free else port.order))
            program.shapes[name] = x.shape
        for target, source in self.region.stores:
            stored = self._own(self.env[source], leaving, self._stored_strides(target, source))
            leaving.add(stored)
            program.stores.append((source_of(self.env[target]), stored))
        program.symbols = self.symbols.given()
        return without_dead_definitions(program)

    def _input(self, name: str, value: torch.Tensor) -> Tensor:
        sizes, strides = self.symbols.shape(value.shape), self.symbols.shape(value.stride())
        self.builder.program.inputs[name] = Input(name, _dtype(value), sizes, strides)
        self.memory[name] = sizes, strides
        return named(name, sizes, value.dtype)

    def _unknown(self, value: object) -> Any:
        """What stands for the result of a node without loops, so that the nodes behind it are looked at too."""
        if isinstance(value, torch.Tensor):
            name, sizes = self.builder.name(), self.symbols.shape(value.shape)
            self.memory[name] = sizes, self.symbols.shape(value.stride())
            return named(name, sizes, _dtype(value))
        return tuple(map(self._unknown, value)) if isinstance(value, list | tuple) else None

    def _as_it_lies(self, name: str, x: Tensor) -> tuple[int, ...]:
        """The order in memory of an output that may lie in any way: as a library has it, or as what it is made from."""
        order = tuple(range(x.rank))
        strides = self.memory[name][1] if name in self.memory else None
        if strides is None:
            found = next((y for y in loads(x.at(tuple(map(Index.of, _variables(x))))) if y.source == name), None)
            step = next((s for s in self.builder.program.steps if isinstance(s, Definition) and s.name == name), None)
            order = order if found is None or step is None else self._order_of_a_source(step)
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

    def _stored_strides(self, target: fx.Node, source: fx.Node) -> Shape:
        """The strides of what is written into an input: the input's, if the sizes are the same."""
        given, x = self.builder.program.inputs[source_of(self.env[target])], self.env[source]
        return given.strides if given.sizes == x.shape else dense_strides(x.shape)

    def _leaving_strides(self, d: Definition) -> Shape | None:
        """The strides with which a definition will leave, if it will, as far as is known when a library reads it."""
        for port in self.region.outputs:
            x = None if port.free else self.env.get(port.node)
            if isinstance(x, Tensor) and source_of(x) == d.name and self._is_whole(x, d.name):
                return dense_strides(d.sizes, port.order)
        for target, source in self.region.stores:
            x = self.env.get(source)
            if isinstance(x, Tensor) and source_of(x) == d.name and self._is_whole(x, d.name):
                return self._stored_strides(target, source)
        return None

    def _is_whole(self, x: Tensor, name: str) -> bool:
        index = tuple(map(Index.of, _variables(x)))
        for step in self.builder.program.steps:
            results = step.results if isinstance(step, Call) else (step,)
            for found in results:
                if found is not None and found.name == name:
                    return x.at(index) == Load(name, index, x.dtype) and found.sizes == x.shape
        return False

    # -- nodes -------------------------------------------------------------------------------------------------
    def _node(self, node: fx.Node) -> Any:
        self.node = node
        args, kwargs = (fx.node.map_arg(a, self._value) for a in (node.args, dict(node.kwargs)))
        if is_getitem(node):
            return args[0][args[1]]
        self.builder.module = user_module(node)
        self.builder.where = f"{node.target} at {user_line(node)}" if user_line(node) else str(node.target)
        if node.target in _STRIDED:
            result = self._as_strided(args[0], tensor_of(node.args[0]), *args[1:], **kwargs)
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
            _dtype(value)
            if value.device not in (self.device, torch.device("meta")):
                raise Unsupported(f"a program on {self.device} has no tensor on {value.device}")
        rule = rule_of(target)
        if self.has_row_products and (found := self._special_product(target, args, dict(kwargs), promise)):
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
            return self._library(torch.ops.aten._weight_int8pack_mm.default, packed, {}, promise)
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

    # -- decompositions ----------------------------------------------------------------------------------------
    def _taken_apart(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        function = _torch_decompositions.get(target)
        if not isinstance(target, OpOverload) or function is None:
            raise Unsupported(f"{target} has no loop rule")
        flat, structure = tree_flatten((list(args), dict(kwargs)))
        inputs = [x for x in flat if isinstance(x, Tensor | Index)]
        symbolic = any(isinstance(x, Index) or not all(s.is_constant for s in x.shape) for x in inputs)

        def run(*given: Any) -> Any:
            left = iter(given)
            own = [next(left) if isinstance(x, Tensor | Index) else x for x in flat]
            own_args, own_kwargs = tree_unflatten(own, structure)
            return function(*own_args, **own_kwargs)

        try:
            graph = self._traced_by_symbols(run, inputs) if symbolic else make_fx(run)(*map(self._fake, inputs)).graph
        except Exception as error:  # a decomposition may refuse in any way
            raise Unsupported(f"{target} has no loop rule, and its decomposition fails: {error}") from error
        return self._inner(graph, inputs, target)

    def _fake(self, x: Tensor | Index, device: str = "meta") -> Any:
        if isinstance(x, Index):
            return self.symbols.back(x)
        return torch.empty([self.symbols.back(s) for s in x.shape], dtype=x.dtype, device=device)

    def _traced_by_symbols(self, run: Callable[..., Any], inputs: Sequence[Any]) -> fx.Graph:
        """A decomposition in terms of the region's own symbols; what it asks of them torch guards, while it can."""
        env = self.symbols.environment
        ignored = env.counter["ignored_backward_guard"]
        with FakeTensorMode(shape_env=env):
            graph = make_fx(run)(*[self._fake(x, "cpu") for x in inputs]).graph
        if env.counter["ignored_backward_guard"] > ignored:
            raise Unsupported("it asks for a size that torch cannot guard any more")
        return graph

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
                env[node] = self._apply(node.target, args, kwargs, node.meta.get("val"))
        raise LoweringError(f"the decomposition of {target} returns nothing")

    # -- library calls -----------------------------------------------------------------------------------------
    def _is_for_library(self, target: Any, args: Sequence[Any]) -> bool:
        """Whether a library computes what a rule could."""
        return False

    def _library(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], promise: Any) -> Any:
        if target is torch.ops.aten.convolution.default and pointwise_convolution.is_product(args):
            places = math.prod(args[0].shape[2:], start=Index.of(1))
            if small_products.is_pointwise(*args[:2]):
                return self._small_pointwise(args, promise)
            if places == 1 or not self._leaves() or promise.stride(1) == 1:
                return self._pointwise(args, promise)
        return self._call(target, args, kwargs, promise)

    def _pointwise(self, args: Sequence[Any], promise: torch.Tensor) -> Tensor:
        """A convolution of one tap, by a product. Its result has channels last."""
        rows, weight = pointwise_convolution.operands(args[0], args[1])
        like = promise.movedim(1, -1).flatten(0, -2).contiguous()
        given = (rows, weight) if args[2] is None else (args[2], rows, weight)
        op = torch.ops.aten.mm.default if args[2] is None else torch.ops.aten.addmm.default
        shape = self.symbols.shape(promise.shape)
        return pointwise_convolution.image_of(self._call(op, given, {}, like), shape)

    def _small_pointwise(self, args: Sequence[Any], promise: torch.Tensor) -> Tensor:
        """A convolution of one tap, by a product that is a loop."""
        rows, weight = pointwise_convolution.operands(args[0], args[1])
        given = (rows, weight) if args[2] is None else (args[2], rows, weight)
        return pointwise_convolution.image_of(product_as_loops(given, {}), self.symbols.shape(promise.shape))

    def _reference(self, target: Any, x: Tensor) -> Ref:
        """How a library reads an argument."""
        if target in STARTS:
            return self._contiguous(x)
        return self._image(x) if target in CONVOLUTIONS else self._ref(x)

    def _call(
        self,
        target: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        promise: object,
        strides: Sequence[Shape | None] = (),
    ) -> Any:
        """Add a call of a library; ``strides`` are those of results, where they are others than torch promises."""

        def as_ref(x: Any) -> Any:
            if isinstance(x, Tensor):
                return self._reference(target, x)
            return type(x)(as_ref(v) for v in x) if isinstance(x, list | tuple) else x

        many = isinstance(promise, list | tuple)
        image = self._convolution(args, promise) if target is torch.ops.aten.convolution.default else None
        if target in COLLECTIVES:
            strides = [dense_strides(self.symbols.shape(value.shape)) for value in tensors_of(promise)]
        known = dict(enumerate(strides if image is None else [image[2]]))
        results: list[Called | None] = []
        for k, value in enumerate(promise if isinstance(promise, list | tuple) else [promise]):
            if not isinstance(value, torch.Tensor):
                results.append(None)
                continue
            planned = known.get(k) or self.symbols.shape(value.stride())
            found = Called(self.builder.name(), _dtype(value), self.symbols.shape(value.shape), planned)
            self.builder.program.modules[found.name] = self.builder.module
            self.memory[found.name] = found.sizes, found.strides
            results.append(found)
        placed = dict(enumerate(image[:2])) if image is not None else {}
        if target in PACKED_CONVOLUTIONS:  # oneDNN would copy any other image
            placed = {0: self._ordered(args[0])}
        elif target in PACKED_LINEARS:
            placed = {0: self._contiguous(args[0])}
        refs = [placed[k] if k in placed else as_ref(a) for k, a in enumerate(args)]
        given = tuple(refs), {k: as_ref(v) for k, v in kwargs.items()}
        self.builder.program.steps.append(
            Call(
                library_of(target) or "ATen",
                target,
                *given,
                tuple(results),
                self.builder.where,
                self.node.name if self.node else "",
                self._held_by(target, given, results),
            )
        )
        tensors = [named(r.name, r.sizes, r.dtype) if r else None for r in results]
        return tuple(tensors) if many else tensors[0]

    def _held_by(self, target: Any, given: tuple[Any, Any], results: Sequence[Called | None]) -> tuple[str, ...]:
        """What a wait holds: all that the collectives read whose results it waits for."""
        names = [r.name for r in tree_leaves(given) if isinstance(r, Ref)]
        if target in STARTS:
            self.at_work.update((r.name, tuple(dict.fromkeys(names))) for r in results if r)
        return tuple(dict.fromkeys(x for n in names for x in self.at_work.get(n, ()))) if target in WAITS else ()

    def _contiguous(self, x: Tensor) -> Ref:
        """``x`` without gaps and in its own order, copied unless it lies so."""
        ref = self._ref(x)
        if _lie_alike(x.shape, ref.strides, dense_strides(x.shape)):
            return ref
        return self._ref(define(x.shape, x.dtype, x.at))

    def _ref(self, x: Tensor) -> Ref:
        """How a library reads ``x``: where it is, if it is a view of memory, else from a copy."""
        return self._in_place(x) or self._in_place(self._defined(x))  # type: ignore[return-value]

    def _defined(self, x: Tensor) -> Tensor:
        """``x`` in memory of its own; the same as before, if it has been asked for already."""
        key = x.shape, x.dtype, x.at(tuple(map(Index.of, _variables(x))))
        if key not in self.defined:
            self.defined[key] = define(x.shape, x.dtype, x.at)
        return self.defined[key]

    # convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation,
    #     bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor
    def _convolution(self, args: Sequence[Any], promise: torch.Tensor) -> tuple[Ref, Ref, Shape] | None:
        """An image and a weight as a convolution shall read them, and the strides of its result.

        ``None`` if they are read where they lie. What is to leave with other strides is copied again.
        """
        x, weight, groups = args[0], args[1], args[8]
        shape = self.symbols.shape(promise.shape)
        sizes = [[Index.of(s) for s in of] for of in (x.shape, weight.shape, shape)]
        if x.rank != 4 or x.dtype not in self.channels_last or not all(s.is_constant for of in sizes for s in of):
            return None
        image, kernel, result = ([int(s.constant) for s in of] for of in sizes)
        convolution = self._kind(image, kernel, result, args[6], groups, x.dtype)
        if self._leaves() and not self.adds_bias and not convolution.is_worth_copies:
            return None
        is_ordered = convolution.orders_weight and self._last(weight, self._in_place(weight)) is not None
        if convolution.is_heavy and not is_ordered:
            ref = self._ref(x)
            if not _lie_alike(x.shape, ref.strides, dense_strides(x.shape)):
                ref = self._ref(define(x.shape, x.dtype, x.at))
            return ref, self._image(weight), dense_strides(shape)
        ordered = self._with_channels_last(x, convolution)
        if ordered is None:
            return None
        placed = self._ordered(weight) if convolution.orders_weight else self._image(weight)
        return ordered, placed, dense_strides(shape, CHANNELS_LAST)

    def _kind(self, *sizes: Any) -> Convolution:
        """What decides about the layout of a convolution; ``sizes`` are its fields and the dtype."""
        return Convolution(*sizes[:-1])

    def _leaves(self) -> bool:
        """Whether the result of the node at work leaves the region."""
        return any(port.node is self.node and not port.free for port in self.region.outputs)

    def _with_channels_last(self, x: Tensor, convolution: Convolution) -> Ref | None:
        """``x`` with channels last: as it lies, as it may lie, or copied if that pays."""
        is_placed = source_of(x) in self.memory
        found = self._last(x, self._in_place(x)) if is_placed else None
        if found is not None:
            return found
        if not is_placed and convolution.gains(self.convolutions, copies=False):
            found = self._last(x, self._in_place(x, CHANNELS_LAST))
        if found is None and convolution.gains(self.convolutions, copies=True):
            found = self._in_place(define(x.shape, x.dtype, x.at), CHANNELS_LAST)
        return found

    def _ordered(self, x: Tensor) -> Ref:
        """``x`` with channels last, copied unless it lies so."""
        ref = self._last(x, self._in_place(x, CHANNELS_LAST))
        ref = ref or self._in_place(define(x.shape, x.dtype, x.at), CHANNELS_LAST)
        assert ref is not None
        return ref

    def _image(self, x: Tensor) -> Ref:
        """``x`` contiguous, or as it is with channels last; else copied, as ATen's kernels would do, and slower."""
        ref = self._ref(x)
        if x.rank >= 4 and ref.strides[1] == 1:  # dense or not, that makes ATen give a result with channels last
            return ref
        return self._contiguous(x)

    def _last(self, x: Tensor, ref: Ref | None) -> Ref | None:
        """The reference, if it is one to channels last."""
        last = dense_strides(x.shape, CHANNELS_LAST)
        return ref if ref is not None and _lie_alike(x.shape, ref.strides, last) else None

    def _in_place(
        self, x: Tensor, order: tuple[int, ...] | None = None, multiple: int = 1, shortest: int = 8
    ) -> Ref | None:
        """``x`` where it is.

        A definition that may still lie in any way will lie in ``order``, or its rows begin at a multiple of elements,
        if they are at least ``shortest`` such multiples long.
        """
        variables = _variables(x)
        load = x.at(tuple(map(Index.of, variables)))
        if not isinstance(load, Load):
            return None
        if load.source not in self.memory:
            step = next(s for s in self.builder.program.steps if isinstance(s, Definition) and s.name == load.source)
            leaving = self._leaving_strides(step)
            if leaving is None and order is not None and self._is_whole(x, load.source):
                self.builder.program.orders[load.source] = order
                leaving = dense_strides(step.sizes, order)
            elif leaving is None and (rows := self._spread(step, multiple, shortest)) is not None:
                leaving = dense_strides(step.sizes, rows=rows)
            self.memory[load.source] = step.sizes, leaving or dense_strides(step.sizes)
        sizes, strides = self.memory[load.source]
        if x.shape == sizes and load.index == tuple(map(Index.of, variables)):
            return Ref(load.source, sizes, strides, Index.of(0))
        address = Index.of(0)
        for i, stride in zip(load.index, strides, strict=True):
            address = address + i * stride
        steps = [address.stride(v) for v in variables]
        offset = address.substitute({v: Index.of(0) for v in variables})
        own = tuple(s for s in steps if s is not None and s.is_fixed)
        if len(own) != len(steps) or not offset.is_fixed or min(i.bounds[0] for i in (offset, *own)) < 0:
            return None  # torch has no tensors with negative strides
        return Ref(load.source, x.shape, own, offset)

    def _spread(self, d: Definition, multiple: int, shortest: int = 8) -> tuple[int, int] | None:
        """Put the rows of a definition so far apart that they begin at multiples of elements, if they are uneven."""
        if multiple < 2 or not _is_uneven(d, multiple, shortest):
            return None
        length = int(d.sizes[-1].constant)
        rows = self.builder.program.rows[d.name] = length, -(-length // multiple) * multiple
        return rows

    # as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)
    def _as_strided(
        self, x: Tensor, like: torch.Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
    ) -> Tensor:
        """A view of memory. ``like`` says how ``x`` lies in it, which must be densely and from its beginning."""
        order = order_of(like)
        if order is None or expr_of(like.storage_offset()) != 0:
            raise Unsupported(f"as_strided of a dense tensor, not of strides {like.stride()}")
        steps = self.symbols.shape(like.stride())

        def at(index: Shape) -> Scalar:
            place = Index.of(0 if storage_offset is None else storage_offset)
            for i, step in zip(index, stride, strict=True):
                place = place + i * step
            own = [place // steps[d] % x.shape[d] if k else place // steps[d] for k, d in enumerate(order)]
            return x.at(tuple(own[order.index(d)] for d in range(x.rank)))

        return Tensor(tuple(map(Index.of, size)), x.dtype, at)


_STRIDED = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default)
CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)


def _lie_alike(sizes: Shape, a: Shape, b: Shape) -> bool:
    return all(x == y for n, x, y in zip(sizes, a, b, strict=True) if n != 1)


def _is_uneven(d: Definition, multiple: int, shortest: int) -> bool:
    """Whether rows are no multiple of so many elements, and long enough for a gap behind them."""
    length = d.sizes[-1].constant if len(d.sizes) > 1 and all(n.is_constant for n in d.sizes) else 0
    return length >= shortest * multiple and length % multiple != 0


def source_of(x: Tensor) -> str:
    """The name that ``x`` is loaded from; empty if it is computed."""
    scalar = x.at(tuple(map(Index.of, _variables(x))))
    return scalar.source if isinstance(scalar, Load) else ""


def _variables(x: Tensor) -> list[Var]:
    """A variable for each dimension."""
    return [sized(f"d{k}", size) for k, size in enumerate(x.shape)]


def _may_be_equal(a: Index, b: Index) -> bool:
    """Whether two spellings of a size may be one: they are symbolic, and as far as hints say, equal."""
    return a == b or (not (a.is_constant and b.is_constant) and a.typical == b.typical)


def _dtype(value: torch.Tensor) -> torch.dtype:
    if value.dtype not in SHORT:
        raise Unsupported(f"programs have no dtype for {value.dtype}")
    return value.dtype
