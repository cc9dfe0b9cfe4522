"""From a region to a MAX graph: walk the nodes, call their lowerings, hold every result against torch's promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import sympy
import torch
from max.dtype import DType
from max.graph import BufferType, BufferValue, DeviceRef, Dim, Graph, Module, StaticDim, TensorType, TensorValue, ops
from torch import fx
from torch.utils import _pytree as pytree

from torch_max_backend.aten_functions.conv.convolution import Epilogue, Norm, finished_convolution
from torch_max_backend.aten_functions.indexing.indexing import index_copy_in_place
from torch_max_backend.aten_functions.registry import aten, aten_functions
from torch_max_backend.aten_functions.support.broadcast_analysis import (
    COMBINING,
    is_index_check,
    operands_of,
    shape_of,
)
from torch_max_backend.aten_functions.support.channels_last import (
    channels_first,
    channels_last,
    is_channels_last,
    last_order,
)
from torch_max_backend.aten_functions.support.dtypes import max_dtype
from torch_max_backend.aten_functions.support.node_context import (
    CodeSettings,
    IndexReport,
    NodeContext,
    Promise,
    lowering_node,
)
from torch_max_backend.aten_functions.support.tensor_ops import (
    in_memory,
    materialized,
    permute,
    rebind,
    reshape,
)
from torch_max_backend.aten_functions.support.value_facts import GraphFacts, finish, remembering
from torch_max_backend.aten_functions.support.written_transpose import written_transpose
from torch_max_backend.base.errors import LoweringError, NeedsStatic, Unsupported
from torch_max_backend.capture.fake_tensors import expr_of, sizes_of, tensor_of, user_line, value_of
from torch_max_backend.capture.fx_nodes import is_getitem, map_nodes
from torch_max_backend.capture.specialization import may_be_negative, symbolic_numbers
from torch_max_backend.capture.view_ops import CUTS, EXPANDS, FREE_VIEWS, PERMUTES
from torch_max_backend.lowering.constant_ops import fold_constant_ops
from torch_max_backend.lowering.convolution_epilogues import Chain, convolution_chains, is_own
from torch_max_backend.lowering.elementwise_shapes import common_shape, is_elementwise, is_read_by_rows
from torch_max_backend.lowering.optimizer_updates import build_updates
from torch_max_backend.lowering.row_kernels import RowLowering
from torch_max_backend.lowering.transposed_reads import order_of_permute, stored, written_reads
from torch_max_backend.partition.index_checks import IndexChecks, index_checks
from torch_max_backend.partition.region import Region


class NodeRefused(Exception):
    """A lowering declined or failed; the partitioner makes the node an island.

    ``reason`` says which limit was hit; ``is_mismatch`` tells a broken promise (a defect) from a declared limit.
    ``symbols`` are those whose values the lowering would need to know.
    """

    def __init__(
        self, node: fx.Node, reason: str, is_mismatch: bool = False, symbols: frozenset[sympy.Symbol] = frozenset()
    ) -> None:
        super().__init__(reason)
        self.node, self.reason, self.is_mismatch, self.symbols = node, reason, is_mismatch, symbols


def device_ref(device: torch.device) -> DeviceRef:
    """The MAX device of a torch device."""
    return DeviceRef.CPU() if device.type == "cpu" else DeviceRef.GPU(device.index or 0)


def _is_on_gpu(device: torch.device) -> bool:
    return device_ref(device).is_gpu()


def build_graph(region: Region, name: str, module: Module, settings: CodeSettings) -> Graph:
    """Lower ``region`` into a new graph of ``module``.

    Raises:
        NodeRefused: A node cannot be lowered, or its lowering broke torch's promise.
    """
    if region.updates:
        return build_updates(region, name, module, device_ref(region.inputs[0].value.device))
    return _Builder(region, settings).build(name, module)


def refuse_negative_numbers(region: Region) -> None:
    """Check that every number that the region is handed as a size can be one.

    Raises:
        NodeRefused: The first node that takes a number which is negative, or may become so.
    """
    for expr in region.carriers:
        if expr in region.dims.sizes:
            continue
        node = next((n for n in region.nodes if symbolic_numbers(n) & expr.free_symbols), None)
        if node is not None and may_be_negative(node, expr):  # without one it is a part of a size, as n of n + 1
            limit = f"it takes the number {expr}, which may be negative: only sizes can vary without compiling again"
            raise NodeRefused(node, limit, symbols=frozenset(expr.free_symbols))


class _Builder:
    def __init__(self, region: Region, settings: CodeSettings) -> None:
        self.region, self.settings = region, settings
        self.env: dict[fx.Node, Any] = {}
        self.facts = GraphFacts()
        self.scalars: dict[Any, TensorValue] = {}
        self.buffers: dict[fx.Node, BufferValue] = {}
        self.written = broadcast_results(region)
        self.stored = {port.node for port in region.outputs} | {source for _, source in region.stores}
        """What is written to memory whatever reads it."""
        self.in_place = written_slices(region)
        """Nodes that write slices of an input which is theirs alone, and the input."""
        self.written_already: set[fx.Node] = set()
        chains = convolution_chains(region, _is_on_gpu)
        self.chains = {chain.last: chain for chain in chains}
        self.transposed_reads = written_reads(region, _is_on_gpu)
        self.reads_written: set[fx.Node] = set()
        self.transposed: dict[fx.Node, TensorValue] = {}
        """Transposes that were written to memory."""
        self.rows = RowLowering(region, _is_on_gpu, self._written, self._shape_of, products_add=settings.gpu != "cuda")
        self.checks = index_checks(region, _is_on_gpu) if settings.check_indices else IndexChecks()
        self.reports: dict[torch.device, TensorValue] = {}
        """The region's inputs for reports of indices that are out of range."""
        self.inside = {node for chain in chains for node in chain.nodes[:-1]} | self.rows.inside
        """Nodes that are computed where their chain ends."""

    def build(self, name: str, module: Module) -> Graph:
        with Graph(name, input_types=self._input_types(), module=module) as graph:
            with remembering(self.facts):
                outputs = self._walk(list(graph.inputs))
            graph.output(*outputs)
            fold_constant_ops(graph)
        return graph

    def _walk(self, values: list[Any]) -> list[TensorValue]:
        """Lower all nodes, and write into inputs; gives the outputs, in the order of their memory."""
        region = self.region
        for port in region.inputs:
            self._bind(port.node, port.order, values.pop(0))
        del values[: len(region.carriers)]
        for expr in region.scalars:
            self.scalars[expr] = values.pop(0).tensor
        self.reports = {d: v.tensor for d, v in zip(self.checks.devices, values, strict=True)}
        for node in region.nodes:
            if node not in self.inside:
                self.env[node] = self._lower(node)
        outputs = [stored(permute(self.env[port.node], port.order)) for port in region.outputs]
        for target, source in region.stores:
            if source in self.in_place:
                continue
            order = next(p.order for p in region.inputs if p.node is target)
            ops.buffer_store(self.buffers[target], stored(permute(self.env[source], order)))
        return outputs

    def _input_types(self) -> list[TensorType | BufferType]:
        types: list[TensorType | BufferType] = []
        for port in self.region.inputs:
            sizes = sizes_of(port.value)
            dims = [self.region.dims.names.get(sizes[d], sizes[d]) for d in port.order]
            dims = [d if isinstance(d, str) else int(d) for d in dims]
            kind = BufferType if port.mutable else TensorType
            types.append(kind(max_dtype(port.value.dtype), dims, device_ref(port.value.device)))
        cpu = DeviceRef.CPU()
        types += [TensorType(DType.uint8, [self.region.dims.names[e], 0], cpu) for e in self.region.carriers]
        types += [TensorType(DType.float64, [], cpu) for _ in self.region.scalars]
        types += [TensorType(DType.int64, [], device_ref(device)) for device in self.checks.devices]
        return types

    def _bind(self, node: fx.Node, order: tuple[int, ...], value: Any) -> None:
        if isinstance(value, BufferValue):
            self.buffers[node] = value
            if node in self.in_place.values():
                return  # it is read when it has been written
            value = ops.buffer_load(value)
        self.env[node] = self._as_promised(node, order, value.tensor)

    def _as_promised(self, node: fx.Node, order: tuple[int, ...], memory: TensorValue) -> TensorValue:
        """What lies in memory in this order of its dimensions, as the graph sees it."""
        inverse = sorted(range(len(order)), key=order.__getitem__)
        tensor = permute(memory, inverse)
        dims = self._shape_of(node)
        return tensor if list(tensor.shape) == dims else rebind(tensor, dims)

    def _write_in_place(self, node: fx.Node) -> TensorValue:
        """Write slices of an input where it is, and give it as it is then.

        Two inputs that are written alike, as a layer's keys and values, are written by one kernel.
        """
        if node not in self.written_already:
            _, dim, index, _ = node.args
            nodes = [node, *self._written_alike(node)]
            memories = [self.buffers[self.in_place[n]] for n in nodes]
            sources = [self._written(n.args[3]) for n in nodes]
            order = self._order_of_memory(node)
            index_copy_in_place(memories, order, dim % len(order), self.env[index], sources)
            self.written_already.update(nodes)
        loaded = ops.buffer_load(self.buffers[self.in_place[node]])
        return self._as_promised(node, self._order_of_memory(node), loaded)

    def _order_of_memory(self, node: fx.Node) -> tuple[int, ...]:
        return next(p.order for p in self.region.inputs if p.node is self.in_place[node])

    def _written_alike(self, node: fx.Node) -> list[fx.Node]:
        """Another node, if there is one, that writes at the same places of an equal tensor what is known by now."""

        def form(n: fx.Node) -> tuple[Any, ...]:
            values = (self.in_place[n], n.args[3])
            known = [(tensor_of(v).dtype, tensor_of(v).device, sizes_of(tensor_of(v))) for v in values]
            return n.args[1], n.args[2], self._order_of_memory(n), known

        others = (n for n in self.in_place if n is not node and n not in self.written_already and n.args[3] in self.env)
        return [n for n in others if form(n) == form(node)][:1]

    # -- one node ----------------------------------------------------------------------------------------------
    def _lower(self, node: fx.Node) -> Any:
        chain = self.chains.get(node)
        if is_getitem(node) and chain is None:
            return self.env[node.args[0]][node.args[1]]
        blamed = chain.convolution if chain else node
        promises = self._promises(node)
        shared = tuple(
            v for n in node.all_input_nodes if self._is_read_later(n, node) for v in _values_in(self.env.get(n))
        )
        used = self.region.used_outputs[node]
        report = self._index_report(self.rows.checked_as(node))
        context = NodeContext(str(node.target), promises, used, self.settings, shared, report=report)
        with lowering_node(context):
            try:
                result = self._call(node) if chain is None else self._call_chain(chain)
            except NeedsStatic as limit:
                raise NodeRefused(blamed, str(limit), symbols=self._symbols_of(limit.sizes)) from limit
            except Unsupported as limit:
                raise NodeRefused(blamed, str(limit)) from limit
            except Exception as error:  # perhaps it took a symbolic number for a Python one
                text = f"its lowering failed: {type(error).__name__}: {' '.join(str(error).split())[:500]}"
                raise NodeRefused(blamed, text, is_mismatch=True, symbols=symbolic_numbers(blamed)) from error
        for operand, value in context.stored:
            self.env.update({n: value for n in node.all_input_nodes if self.env.get(n) is operand})
        several = isinstance(value_of(node), list | tuple)
        results = list(result) if several else [result]
        if self.region.dims.names:
            self._refuse_second_broadcasts(node, results)
        kept = [
            self._check(node, i, r, p) if i in context.used else None
            for i, (r, p) in enumerate(zip(results, promises, strict=False))
        ]
        if several:
            return kept
        if kept[0] is not None and (node in self.stored or not _may_be_replaced(node)):
            finish(kept[0])
        return materialized(kept[0]) if node in self.written and kept[0] is not None else kept[0]

    def _index_report(self, node: fx.Node) -> IndexReport | None:
        sites = self.checks.of_node.get(node)
        return IndexReport(self.reports[tensor_of(node).device], sites) if sites else None

    def _is_read_later(self, operand: fx.Node, node: fx.Node) -> bool:
        """Whether others read what ``node`` reads, and all of them later."""
        others = [user for user in operand.users if user is not node]
        return bool(others) and not any(user in self.env for user in others)

    def _call(self, node: fx.Node) -> Any:
        if self.rows.serves(node):
            return self.rows.call(node)
        if node in self.in_place:
            return self._write_in_place(node)
        lowering = aten_functions.get(node.target)
        assert lowering is not None, f"{node.target} entered a region without a lowering"
        self.reads_written = self.transposed_reads.get(node, set())
        if self._keeps_channels_last(node):
            return self._call_channels_last(node, lowering.function)
        flat = self._common_shape(node)
        if flat is not None:
            return self._call_in_shape(node, lowering.function, *flat)
        return lowering.function(*self._arguments(node), **map_nodes(dict(node.kwargs), self._argument))

    def _common_shape(self, node: fx.Node) -> tuple[list[Dim], dict[fx.Node, TensorValue]] | None:
        """For a node on a GPU that looks at each element by itself: a better shape to compute in, if there is one."""
        if not self._may_change_shape(node):
            return None
        given = {n: self.env.get(n) for n in node.all_input_nodes}
        tensors = {n: v for n, v in given.items() if isinstance(v, TensorValue)}
        if len(tensors) < len(given):
            return None
        return common_shape({n: v for n, v in tensors.items() if v.rank}, self._shape_of(node))

    def _may_change_shape(self, node: fx.Node) -> bool:
        """Not so a user's lowering, and not with symbolic sizes: what is refused of them lies behind the operands."""
        value = value_of(node)
        if not is_elementwise(node) or not isinstance(value, torch.Tensor) or not _is_on_gpu(value.device):
            return False
        return is_own(node) and not self.region.dims.names

    def _call_in_shape(
        self, node: fx.Node, function: Callable[..., Any], shape: list[Dim], operands: dict[fx.Node, TensorValue]
    ) -> TensorValue:
        """Call a lowering with another shape than the node has, and reshape its result."""

        def argument(operand: fx.Node) -> Any:
            return operands.get(operand, self._argument(operand))

        (promised,) = self._promises(node)
        assert promised is not None
        flat = replace(promised, shape=tuple(shape), order=None)
        context = NodeContext(str(node.target), (flat,), self.region.used_outputs[node], self.settings)
        with lowering_node(context):
            result = function(*map_nodes(node.args, argument), **map_nodes(dict(node.kwargs), argument))
        problem = broken_promise(result, flat)
        if problem:
            raise ValueError(f"in another shape, its result {problem}")
        return reshape(result, promised.shape)

    def _keeps_channels_last(self, node: fx.Node) -> bool:
        """Whether the node looks at each element by itself, and at an image that has its channels last in memory."""
        value = value_of(node)
        if not is_elementwise(node) or not isinstance(value, torch.Tensor):
            return False
        operands = {n: v for n in node.all_input_nodes for v in _values_in(self.env.get(n)) if v.rank}
        whole = [is_channels_last(v) for n, v in operands.items() if sizes_of(value_of(n)) == sizes_of(value)]
        if value.dim() == 3 and False in whole and _is_on_gpu(value.device) and is_read_by_rows(node):
            return False  # a sequence, of which one operand comes from patches of an image, and not the image itself
        return all(v.rank == value.dim() for v in operands.values()) and any(whole)

    def _call_channels_last(self, node: fx.Node, function: Callable[..., Any]) -> TensorValue:
        """Call a lowering with images ``[N, *S, C]``, or their rows, and tell it that its result is one."""

        def turned(operand: Any) -> Any:
            return channels_last(operand) if isinstance(operand, TensorValue) and operand.rank else operand

        (promised,) = self._promises(node)
        assert promised is not None
        images = {n: pytree.tree_map(turned, self._argument(n)) for n in node.all_input_nodes}
        image = shape = tuple(promised.shape[d] for d in last_order(len(promised.shape)))
        if self._may_change_shape(node):
            flat = common_shape({n: v for n, v in images.items() if v.rank}, list(image))
            if flat is not None:
                shape = tuple(flat[0])
                images |= flat[1]
        promised = replace(promised, shape=shape)
        context = NodeContext(str(node.target), (promised,), self.region.used_outputs[node], self.settings)
        with lowering_node(context):
            result = function(
                *map_nodes(node.args, images.__getitem__), **map_nodes(dict(node.kwargs), images.__getitem__)
            )
        problem = broken_promise(result, promised)
        if problem:
            raise ValueError(f"with channels last, its result {problem}")
        return channels_first(reshape(result, image))

    def _written(self, node: fx.Node) -> Any:
        """The value of a node, a transpose as it is best read by a kernel of its own."""
        if node not in self.transposed and node.target in PERMUTES and node in self.region.nodes:
            written = written_transpose(self.env[node.args[0]], order_of_permute(node))
            self.transposed[node] = self.env[node] if written is None else written
        return self.transposed.get(node, self.env[node])

    def _call_chain(self, chain: Chain) -> TensorValue:
        norm = None
        if chain.norm is not None:
            # _native_batch_norm_legit_no_training(input, weight, bias, running_mean, running_var, momentum, eps)
            weight, bias, mean, variance, _, eps = map_nodes(chain.norm.args[1:], self._argument)
            norm = Norm(mean, variance, weight, bias, eps)
        addend = None if chain.addend is None else self.env[chain.addend]
        epilogue = Epilogue(norm, addend, chain.low, chain.high)
        return finished_convolution(self._arguments(chain.convolution), epilogue)

    def _arguments(self, node: fx.Node) -> Any:
        return map_nodes(node.args, self._argument)

    def _argument(self, node: fx.Node) -> Any:
        value = value_of(node)
        if isinstance(value, torch.SymInt):
            dim = self.region.dims.dim(expr_of(value))
            return int(dim) if isinstance(dim, StaticDim) else dim
        if isinstance(value, torch.SymFloat):
            expr = expr_of(value)
            return float(expr) if expr.is_number else self.scalars[expr]
        return self._written(node) if node in self.reads_written else self.env[node]

    def _refuse_second_broadcasts(self, node: fx.Node, results: list[Any]) -> None:
        """Have the node's sizes specialised if its lowering does what MAX gets wrong for symbolic ones."""
        tensors = [r for r in results if isinstance(r, TensorValue)]
        operands = [v for n in node.all_input_nodes for v in _values_in(self.env.get(n))]
        known = {v._mlir_value for operand in operands for v in (operand, in_memory(operand))}
        dims = second_broadcast(tensors, known)
        if dims:
            limit = "its lowering broadcasts what is a broadcast already, which MAX computes wrongly for symbolic sizes"
            raise NodeRefused(node, limit, symbols=self._symbols_of(dims))

    def _symbols_of(self, sizes: Iterable[object]) -> frozenset[sympy.Symbol]:
        """Torch's symbols in dims and scalars of the graph."""
        exprs = {name: expr for expr, name in self.region.dims.names.items()}
        found: set[sympy.Symbol] = set()
        for size in sizes:
            if isinstance(size, Dim):
                found |= {s for d in size.parameters for s in exprs[d.name].free_symbols}
            found |= {s for expr, value in self.scalars.items() if value is size for s in expr.free_symbols}
        return frozenset(found)

    def _promises(self, node: fx.Node) -> tuple[Promise | None, ...]:
        value = value_of(node)
        several = value if isinstance(value, list | tuple) else [value]
        return tuple(
            self._promise(v, self.region.orders.get((node, i))) if isinstance(v, torch.Tensor) else None
            for i, v in enumerate(several)
        )

    def _promise(self, value: torch.Tensor, order: tuple[int, ...] | None) -> Promise:
        shape = tuple(self.region.dims.dim(e) for e in sizes_of(value))
        return Promise(max_dtype(value.dtype), shape, device_ref(value.device), order)

    def _shape_of(self, node: fx.Node) -> list[Dim]:
        return [self.region.dims.dim(e) for e in sizes_of(value_of(node))]

    def _check(self, node: fx.Node, index: int, value: Any, promised: Promise | None) -> TensorValue | None:
        """The value, with its dims spelled as promised; an error where it cannot be what torch promises."""
        if promised is None:
            return None
        problem = broken_promise(value, promised)
        if problem:
            raise NodeRefused(node, f"output {index} {problem}", is_mismatch=True)
        tensor: TensorValue = value
        return tensor if list(tensor.shape) == list(promised.shape) else rebind(tensor, promised.shape)


def _may_be_replaced(node: fx.Node) -> bool:
    """Whether what reads the node's value may compute another in its place: one reader, or readers of parts."""
    return len(node.users) == 1 or all(user.target in CUTS for user in node.users)


def broadcast_results(region: Region) -> set[fx.Node]:
    """Nodes whose results another node broadcasts, directly or as a view, in a region with symbolic sizes.

    MAX computes those wrongly unless the result is in memory: see ``materialized``.
    """
    if not region.dims.names:
        return set()
    computed = {n for n in region.nodes if any(isinstance(value_of(a), torch.Tensor) for a in n.all_input_nodes)}
    written = set()
    for node in region.nodes:
        if node.target in _NEVER_SPREAD:
            continue
        for source in node.all_input_nodes:
            if _may_spread(value_of(source), value_of(node)):
                root = source
                while root.target in _NEVER_SPREAD and root in computed:
                    root = root.all_input_nodes[0]
                if root in computed:
                    written.add(root)
    return written


def second_broadcast(results: list[TensorValue], known: set[Any]) -> list[Dim]:
    """The symbolic sizes of a value, among those that ``results`` are computed from, that is broadcast again.

    Args:
        known: Values (of MLIR) at which to stop: what other nodes computed is written to memory where it must be.
    """
    spread: dict[Any, bool] = {}
    found: list[Dim] = []

    def visit(value: Any) -> bool:
        """Whether the value is the result of a broadcast, through ops that keep it one."""
        if value in known or value in spread:
            return spread.get(value, False)
        spread[value] = False
        operation, operands = value.owner, operands_of(value)
        shape = shape_of(value)
        wide = [(o, visit(o)) for o in operands]
        if type(operation).__name__ in COMBINING and shape is not None:
            for operand, is_spread in wide:
                other = shape_of(operand)
                if other is None or other == shape or all(d == 1 for d in other):
                    continue
                spread[value] = True
                if is_spread:
                    found.extend(d for d in shape if not isinstance(d, StaticDim))
            spread[value] = spread[value] or any(s for o, s in wide if shape_of(o) == shape)
        elif is_index_check(operation) or (len(wide) == 1 and (shape_of(operands[0]) == shape or _moves(operation))):
            spread[value] = wide[0][1]
        return spread[value]

    for result in results:
        visit(result._mlir_value)
    return found


def _moves(operation: Any) -> bool:
    """Whether the op only moves or renames its operand, so that MAX fuses it."""
    return any(word in type(operation).__name__ for word in ("Reshape", "queeze", "Rebind", "Transpose", "Slice"))


def _values_in(value: Any) -> list[TensorValue]:
    if isinstance(value, TensorValue):
        return [value]
    return [v for part in value for v in _values_in(part)] if isinstance(value, list | tuple) else []


def _may_spread(source: object, result: object) -> bool:
    """Whether a node that makes ``result`` may broadcast ``source``. An op with several results hides what it does."""
    if not isinstance(source, torch.Tensor) or not source.dim():
        return False
    if isinstance(result, torch.Tensor):
        return sizes_of(source) != sizes_of(result)
    return 1 in sizes_of(source)


_NEVER_SPREAD = FREE_VIEWS - EXPANDS
"""Views that MAX may fuse into the broadcast of their result, and that broadcast nothing themselves."""


def written_slices(region: Region) -> dict[fx.Node, fx.Node]:
    """The nodes that copy slices into an input which then is overwritten with the result, by node.

    A cache of keys is written so, a token at a time. Nothing else may read what the input was before.
    """
    inside, returned = set(region.nodes), {p.node for p in region.outputs}
    found = {}
    for target, source in region.stores:
        if source.target is not aten.index_copy.default or source not in inside or source.args[0] is not target:
            continue
        memory, copied = tensor_of(target), tensor_of(source.args[3])
        is_alone = [u for u in target.users if u in inside] == [source] and source.args.count(target) == 1
        is_known = all(d.is_number and d != 0 for x in (memory, copied) for d in sizes_of(x))
        if is_own(source) and is_alone and is_known and target not in returned and memory.dim() == copied.dim() > 0:
            found[source] = target
    return found


def broken_promise(value: Any, promised: Promise) -> str:
    """What is wrong with a lowered value, or an empty string."""
    if not isinstance(value, TensorValue):
        return f"is {type(value).__name__}, not a tensor"
    if value.dtype != promised.dtype:
        return f"has dtype {value.dtype}, torch promises {promised.dtype}"
    if value.device != promised.device:
        return f"is on {value.device}, torch promises {promised.device}"
    if value.rank != len(promised.shape):
        return f"has shape {list(value.shape)}, torch promises {list(promised.shape)}"
    for have, want in zip(value.shape, promised.shape, strict=True):
        if isinstance(have, StaticDim) and isinstance(want, StaticDim) and have != want:
            return f"has shape {list(value.shape)}, torch promises {list(promised.shape)}"
    return ""


def mismatch_error(refused: NodeRefused) -> LoweringError:
    """The error for a broken promise."""
    where = user_line(refused.node)
    return LoweringError(
        f"{refused.node.target}: {refused.reason}."
        + (f"\n  at {where}" if where else "")
        + "\n  This is a defect of the lowering. Run the op in torch with options={'torch_executed_ops': "
        + f"['{refused.node.target!s}']}} until it is mended."
    )
