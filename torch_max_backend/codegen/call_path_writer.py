"""The call path of a compiled graph: a Python function written out for its plan.

The function's text names every region and every torch op in the order in which they run; ``TORCH_MAX_BACKEND_VERBOSE``
shows it. Variables are deleted after their last use, so that memory is freed as early as in eager.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import sympy
import torch
from sympy import Expr
from torch import fx
from torch.utils._sympy.printers import PythonPrinter

from torch_max_backend.base.errors import LoweringError
from torch_max_backend.capture.fake_tensors import (
    expr_of,
    hint,
    order_of,
    sizes_of,
    storage_key,
    symbols_of,
    tensors_of,
    value_of,
)
from torch_max_backend.capture.inlining import name_of
from torch_max_backend.capture.joint_graph import SAVED_FROM
from torch_max_backend.codegen.call_memory_writer import NOTHING, CallMemoryWriter, Effect, node_peaks, region_peaks
from torch_max_backend.codegen.program_writer import WrittenProgram
from torch_max_backend.codegen.region_spec import region_spec
from torch_max_backend.options import Options
from torch_max_backend.partition.classify import as_run_by_torch
from torch_max_backend.partition.control_flow import is_control_flow
from torch_max_backend.partition.partitioner import Plan
from torch_max_backend.partition.region import Port, Region
from torch_max_backend.runtime.call_path import CallSpec
from torch_max_backend.runtime.control_flow import RUN
from torch_max_backend.runtime.cuda_graphs.output_copies import COPY_LIMIT
from torch_max_backend.runtime.program import HELD, ProgramSpec
from torch_max_backend.runtime.region_spec import RegionSpec


def call_spec(
    gm: fx.GraphModule,
    plan: Plan,
    static: frozenset[int],
    options: Options,
    programs: Mapping[int, WrittenProgram] = MappingProxyType({}),
    checks: Sequence[RegionCheck] = (),
    subgraphs: Mapping[str, Any] = MappingProxyType({}),
) -> CallSpec:
    """The call path that runs ``plan``.

    Args:
        static: Indices of placeholders whose memory stays (parameters and buffers).
        programs: Regions that are programs, by position.
        options: Whether profiler ranges are put around regions and torch ops, and whether indices are checked.
        checks: With the option ``verify``, what holds a region's results against torch's, for each region.
        subgraphs: What runs the graphs of control flow, by the attribute that holds each.
    """
    return _Writer(gm, plan, static, options, programs, checks, subgraphs).write()


@runtime_checkable
class RegionCheck(Protocol):
    """What a call path calls before and after a region; ``numbers`` are what it wants to know of sizes."""

    @property
    def numbers(self) -> Sequence[sympy.Basic]:
        """Expressions in the graph's symbols."""

    def before(self, *inputs: torch.Tensor) -> Any:
        """Called with the region's inputs; gives what ``after`` gets first."""

    def after(self, kept: Any, inputs: Sequence[Any], outputs: Sequence[Any], numbers: Sequence[Any]) -> None:
        """Called with the inputs, what the region returned, and the numbers' values."""


def copies_together(copies: Sequence[fx.Node], inputs: Sequence[fx.Node]) -> list[tuple[list[fx.Node], list[fx.Node]]]:
    """Targets and sources of ``copy_`` nodes that one call can do: of one dtype and one device.

    What may lie in an input's memory is copied by itself and before all others, which may write to that input.
    """
    memory = {None, *(storage_key(t) for node in inputs for t in tensors_of(value_of(node)))}
    alone: list[tuple[list[fx.Node], list[fx.Node]]] = []
    groups: dict[Any, tuple[list[fx.Node], list[fx.Node]]] = {}
    for copy in copies:
        target, source = copy.args[0], copy.args[1]
        values = [t for node in (target, source) for t in tensors_of(value_of(node))]
        kinds = [(t.dtype, t.device) for t in values]
        if kinds[0] == kinds[1] and storage_key(values[1]) not in memory:
            targets, sources = groups.setdefault(kinds[0], ([], []))
            targets.append(target)
            sources.append(source)
        else:
            alone.append(([target], [source]))
    return [*alone, *groups.values()]


class _Writer:
    def __init__(
        self,
        gm: fx.GraphModule,
        plan: Plan,
        static: frozenset[int],
        options: Options,
        programs: Mapping[int, WrittenProgram],
        checks: Sequence[RegionCheck] = (),
        subgraphs: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.gm, self.plan, self.profile, self.programs, self.checks = gm, plan, options.profile, programs, checks
        self.check_indices = options.check_indices
        self.values: dict[str, Any] = {}
        self.profiled: dict[str, str] = {}
        self.regions: list[RegionSpec | ProgramSpec] = []
        self.placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self.names: dict[Any, str] = {n: f"a{i}" for i, n in enumerate(self.placeholders)}
        self.static_nodes = {n for i, n in enumerate(self.placeholders) if i in static}
        self.symbols: dict[Expr, str] = {}
        self.symbol_lines: dict[str, str] = {}
        self.lines: list[tuple[str, set[str], Effect]] = []  # text, names it reads, what it does to memory
        self.reads: set[str] = set()
        for node in self.placeholders:
            self._learn_symbols(node)
        for node in gm.graph.nodes:
            if node.op == "get_attr":
                found = subgraphs.get(str(node.target))
                self.names[node] = self._global("c", _attribute(gm, str(node.target)) if found is None else found)
        self.constants = tuple(name for name, v in self.values.items() if isinstance(v, torch.Tensor))

    # -- text --------------------------------------------------------------------------------------------------
    def write(self) -> CallSpec:
        """The function's text, and what its names mean."""
        for step in self.plan.steps:
            if isinstance(step, Region):
                self._checked(step) if self.checks else self._region(step)
            else:
                self._torch(step)
        for targets, sources in copies_together(self.plan.copies, self.placeholders):
            names = [", ".join(map(self._name, nodes)) for nodes in (targets, sources)]
            if len(targets) == 1:
                self._emit(f"{names[0]}.copy_({names[1]})")
            else:
                self._emit(f"{self._global('together', torch._foreach_copy_)}([{names[0]}], [{names[1]}])")
        written = [copy.args[0] for copy in self.plan.copies]
        results = self.gm.graph.output_node()
        outputs = [self._output(o) for o in results.args[0]]
        self.raises = self.check_indices and any(spec.gpus for spec in self.regions)
        if self.raises:
            self.lines.append(("raise_reported()", set(), NOTHING))
        self._emit(f"return ({', '.join(outputs)}{',' if outputs else ''})")
        self.key = self._sizes_known_at_first()
        self.freed = self._freed()
        self.memory = CallMemoryWriter(self.freed, self._size_text, lambda s: self.symbols.get(s) in self.key)
        mutable = [p.node for r in self.plan.regions for p in r.inputs if p.mutable]
        is_plain = not mutable and not written and self._are_new(results.args[0])
        plain = (len(self.placeholders), len(outputs)) if is_plain else None
        source = self._assemble(plain is not None)
        own = [self.values[name] for name in self.constants]
        return CallSpec(
            source,
            tuple(self.regions),
            self.values,
            self.profiled,
            self._positions(self.static_nodes),
            tuple(sorted(self._positions(n for n in self.placeholders if symbols_of(value_of(n))))),
            self._positions([*mutable, *written]),
            frozenset(range(results.meta.get(SAVED_FROM, len(outputs)), len(outputs))),
            plain,
            len(outputs),
            self._unrecordable(results),
            self.memory.memory(self.key, own),
            self.constants,
        )

    def _sizes_known_at_first(self) -> tuple[str, ...]:
        """The names of the integers among the symbols that arguments give: what a call's memory depends on."""
        names = {name: expr for expr, name in self.symbols.items() if expr.is_integer}
        return tuple(name for name in self.symbol_lines if name in names)

    def _size_text(self, expr: sympy.Basic) -> str:
        """Python text of an expression that no line of the call path reads."""
        reads, self.reads = self.reads, set()
        try:
            return self._expr(expr)
        finally:
            self.reads = reads

    def _freed(self) -> list[tuple[str, fx.Node]]:
        """Arguments that end with their last use: what a backward gets that its forward has computed."""
        if not any(str(n.target).startswith("tangents") for n in self.placeholders):
            return []
        kept = ("primals", "tangents")
        return [(self.names[n], n) for n in self.placeholders if not str(n.target).startswith(kept)]

    def _unrecordable(self, results: fx.Node) -> str:
        """Why torch's CUDA graphs cannot hold the call; empty if they can.

        What they replay is what a GPU did. They tell shapes apart by integers among the arguments.
        """
        if SAVED_FROM in results.meta or any(str(n.target).startswith("tangents") for n in self.placeholders):
            return "it is a part of a training step"
        if self.plan.islands:
            return f"PyTorch runs {self.plan.islands[0].op} in it"
        values = {n: value_of(n) for n in self.placeholders}
        floats = [n for n, v in values.items() if isinstance(v, torch.SymFloat)]
        if floats:
            return f"its argument {floats[0]} is a float, which no recording is told apart by"
        numbers = {expr_of(v) for v in values.values() if isinstance(v, torch.SymInt)}
        untold = sorted(map(str, set().union(*map(symbols_of, values.values())) - numbers))
        if untold:
            return f"none of its arguments is the size {untold[0]}, which no recording is told apart by"
        chosen = [n for n in self.plan.steps if not isinstance(n, Region) and is_control_flow(n)]
        if chosen:
            return f"the host decides in {chosen[0]} what runs"
        steps = [n for step in self.plan.steps for n in (step.nodes if isinstance(step, Region) else [step])]
        for node in (*self.placeholders, *steps):
            if any(t.device.type == "cpu" for t in tensors_of(value_of(node))):
                return f"{node} is on the CPU"
        memory = {storage_key(t) for v in values.values() for t in tensors_of(v)}
        leaving = [(r, t) for r in results.args[0] if isinstance(r, fx.Node) for t in tensors_of(value_of(r))]
        for node, tensor in leaving:
            if node in values or storage_key(tensor) in memory:
                return f"its result {node} shares memory with an argument"
        size = sum(math.prod(hint(d) for d in t.shape) * t.element_size() for _, t in leaving)
        if size > COPY_LIMIT:
            return f"its results, which are copied, have {size >> 20} MiB, more than {COPY_LIMIT >> 20}"
        return ""

    def _are_new(self, results: Sequence[Any]) -> bool:
        """Whether results are tensors, and none shares memory with an argument, a constant or another one."""
        given = [n for n in self.gm.graph.nodes if n.op in ("placeholder", "get_attr")]
        values = [value_of(r) if isinstance(r, fx.Node) else None for r in results]
        if any(r in self.plan.alias for r in results) or not all(isinstance(v, torch.Tensor) for v in values):
            return False
        taken = {storage_key(t) for n in given for t in tensors_of(value_of(n))}
        own = [storage_key(v) for v in values if isinstance(v, torch.Tensor)]
        return None not in own and len(set(own)) == len(own) and taken.isdisjoint(own)

    def _positions(self, nodes: Iterable[Any]) -> frozenset[int]:
        index = {n: i for i, n in enumerate(self.placeholders)}
        return frozenset(index[n] for n in nodes if n in index)

    def _assemble(self, is_plain: bool) -> str:
        used = set().union(*(reads for _, reads, _ in self.lines)) | {*self.key}
        last: dict[str, int] = {}
        for i, (_, reads, _) in enumerate(self.lines):
            last.update(dict.fromkeys(reads, i))
        first = ["    raise_reported()"] if self.raises else []
        first += [f"    {line}" for name, line in self.symbol_lines.items() if name in used]
        body: list[str] = []
        for i, (text, reads, effect) in enumerate(self.lines):
            dead = sorted(r for r in reads if last[r] == i and r[0] in "av" and not text.startswith("return"))
            if effect.held:
                body.append(f"    {HELD} = [{', '.join(effect.held)}]")
            handed = [name for name in dead if name in effect.held]
            body += [f"    del {', '.join(handed)}"] * bool(handed)
            body.append(f"    {text}")
            ended = [name for name in dead if name not in effect.held]
            body += [f"    del {', '.join(ended)}"] * bool(ended)
            self.memory.note(effect, dead)
        arguments = ", ".join(self.names[n] for n in self.placeholders)
        unpacked = [f"    {arguments}, = args"] if arguments else []
        forgotten = [f"del {arguments}"] if arguments and self.freed else []
        gate = self._gate("args", [*forgotten, "return other(args)"])
        own = [f"    {', '.join(self.constants)}, = constants()"] if self.constants else []
        call = ["def call(args):", *unpacked, *first, *gate, "    args.clear()", *own, *body]
        gate = self._gate(f"[{arguments}]", [f"return other([{arguments}])"])
        direct = [f"def direct({arguments}):", *first, *gate, *own, *body] if is_plain else []
        return "\n".join(call + direct) + "\n"

    def _gate(self, arguments: str, otherwise: Sequence[str]) -> list[str]:
        """What asks for admission, where somebody judges and has not admitted a call with these sizes."""
        key = f"({', '.join(self.key)}{',' if len(self.key) == 1 else ''})"
        return [
            f"    if admitted is not None and {key} not in admitted:",
            f"        other = judge({key}, {arguments})",
            "        if other is not None:",
            *(f"            {line}" for line in otherwise),
        ]

    def _emit(self, text: str, effect: Effect = NOTHING) -> None:
        self.lines.append((text, self.reads, effect))
        self.reads = set()

    def _global(self, prefix: str, value: Any) -> str:
        name = f"{prefix}_{len(self.values)}"
        self.values[name] = value
        return name

    def _name(self, node: Any) -> str:
        name = self.names[node]
        if name[0] in "av":
            self.reads.add(name)
        return name

    # -- host arithmetic on sizes ------------------------------------------------------------------------------
    def _learn_symbols(self, node: fx.Node) -> None:
        """Note which symbols a value gives: an integer by itself, a tensor by its sizes, strides and offset."""
        value, name = value_of(node), self.names[node]
        if isinstance(value, torch.SymInt | torch.SymFloat):
            self._learn(expr_of(value), name)
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided and value._has_symbolic_sizes_strides:
            for d, size in enumerate(value.shape):
                self._learn(expr_of(size), f"{name}.size({d})")
            for d, step in enumerate(value.stride()):
                self._learn(expr_of(step), f"{name}.stride({d})")
            self._learn(expr_of(value.storage_offset()), f"{name}.storage_offset()")

    def _learn(self, expr: Expr, source: str) -> None:
        if isinstance(expr, sympy.Symbol) and expr not in self.symbols:
            name = self.symbols[expr] = f"s{len(self.symbols)}"
            self.symbol_lines[name] = f"{name} = {source}"

    def _expr(self, expr: sympy.Basic) -> str:
        """Python text of a size or of a condition on sizes."""
        missing = [s for s in expr.free_symbols if s not in self.symbols]
        if missing:
            raise LoweringError(f"the size {expr} depends on {missing}, which no input of the graph tells")
        renamed = expr.xreplace({s: sympy.Symbol(self.symbols[s], **s._assumptions_orig) for s in expr.free_symbols})
        self.reads |= {self.symbols[s] for s in expr.free_symbols}
        return PythonPrinter().doprint(renamed)

    def _exprs(self, values: Sequence[Any]) -> str:
        texts = [self._expr(v if isinstance(v, sympy.Basic) else expr_of(v)) for v in values]
        return f"({', '.join(texts)}{',' if texts else ''})"

    # -- steps -------------------------------------------------------------------------------------------------
    def _checked(self, region: Region) -> None:
        """A region between two calls of its check: it sees the inputs before and after, and what the region returns."""
        check, inputs = self.checks[len(self.regions)], [p.node for p in region.inputs]
        name, kept = self._global("check", check), f"v{len(self.names)}"
        self.names[object()] = kept
        self._emit(f"{kept} = {name}.before({', '.join(map(self._name, inputs))})")
        self._region(region)
        groups = ["".join(f"{self._name(n)}, " for n in nodes) for nodes in (inputs, [p.node for p in region.outputs])]
        self.reads.add(kept)
        self._emit(f"{name}.after({kept}, ({groups[0]}), ({groups[1]}), {self._exprs(check.numbers)})")

    def _region(self, region: Region) -> None:
        function = f"region{len(self.regions)}"
        program = self.programs.get(len(self.regions))
        if program is not None:
            self._program(region, program, function)
            return
        static = [
            (p.node.op == "get_attr" or p.node in self.static_nodes) and order_of(p.value) is not None
            for p in region.inputs
        ]
        self.regions.append(
            region_spec(region, frozenset(k for k, stays in enumerate(static) if stays), self.check_indices)
        )
        if self.profile:
            self.profiled[function] = function
        groups = [[p.node for p, stays in zip(region.inputs, static) if stays is kind] for kind in (True, False)]
        text = ", ".join("(" + "".join(f"{self._name(n)}, " for n in nodes) + ")" for nodes in groups)
        if region.carriers or region.scalars:
            text += f", {self._exprs(region.carriers)}, {self._exprs(region.scalars)}"
        for port in region.outputs:
            self.names[port.node] = f"v{len(self.names)}"
        self._call_of(region, f"{function}({text})", region_peaks(region))
        for port in region.outputs:
            self._give_strides(port)

    def _program(self, region: Region, program: WrittenProgram, function: str) -> None:
        self.regions.append(program.spec)
        if self.profile:
            self.profiled[function] = f"program{len(self.regions) - 1}"
        given = [self._name(p.node) for p in region.inputs if not p.consumed]
        held = tuple(self._name(p.node) for p in region.inputs if p.consumed)
        text = ", ".join([*given, *([HELD] if held else []), *map(self._expr, program.symbols)])
        for port in region.outputs:
            self.names[port.node] = f"v{len(self.names)}"
        self._call_of(region, f"{function}({text})", program.peaks, held)
        for k, port in enumerate(region.outputs):
            if k not in program.strides:
                self._give_strides(port)

    def _call_of(self, region: Region, call: str, peaks: tuple[Any, ...], held: tuple[str, ...] = ()) -> None:
        made = tuple((self.names[p.node], p.node) for p in region.outputs)
        targets = "".join(f"{name}, " for name, _ in made)
        device = next((str(t.device) for n in region.nodes for t in tensors_of(value_of(n))), "cpu")
        self._emit(f"{targets}= {call}" if targets else call, Effect(made, True, peaks, device, held))

    def _give_strides(self, port: Port) -> None:
        """From the memory order that the region returns to the strides that torch promises."""
        name, value = self.names[port.node], port.value
        if order_of(value) is None:
            self.reads.add(name)
            self._emit(f"{name} = restride({name}, {self._exprs(value.shape)}, {self._exprs(value.stride())})")
            return
        sizes, natural, step = sizes_of(value), {}, sympy.Integer(1)
        for d in reversed(port.order):
            natural[d] = step
            step = step * sympy.Max(1, sizes[d]) if sizes[d].is_number else step * sizes[d]
        strides = [expr_of(s) for s in value.stride()]
        is_empty = any(size == 0 for size in sizes)  # MAX gives such tensors other strides than torch
        if port.is_permuted or is_empty or any(natural[d] != strides[d] for d in natural if strides[d].is_number):
            self.reads.add(name)
            self._emit(f"{name} = {name}.as_strided({self._exprs(value.shape)}, {self._exprs(strides)})")

    def _torch(self, node: fx.Node) -> None:
        function = self._global("op", RUN[name_of(node)] if is_control_flow(node) else as_run_by_torch(node.target))
        if self.profile:
            self.profiled[function] = f"torch {node.target}"
        args = [self._argument(a) for a in node.args] + [f"{k}={self._argument(v)}" for k, v in node.kwargs.items()]
        self.names[node] = f"v{len(self.names)}"
        made = ((self.names[node], node),)
        self._emit(f"{self.names[node]} = {function}({', '.join(args)})", Effect(made, peaks=node_peaks(node)))
        known = set(self.symbols)
        self._learn_symbols(node)
        for symbol in [s for s in self.symbols if s not in known]:  # data-dependent: known only from here on
            line = self.symbol_lines.pop(self.symbols[symbol])
            self.reads.add(self.names[node])
            self._emit(line)

    def _argument(self, arg: Any) -> str:
        if isinstance(arg, fx.Node):
            value = value_of(arg)
            if arg not in self.names and isinstance(value, torch.SymInt | torch.SymFloat):
                return self._expr(expr_of(value))
            if arg not in self.names and isinstance(value, torch.SymBool):
                return f"({self._expr(value.node.expr)})"
            return self._name(arg)
        if isinstance(arg, torch.SymInt | torch.SymFloat):
            return self._expr(expr_of(arg))
        if isinstance(arg, list | tuple) and not hasattr(arg, "_fields"):
            inner = "".join(f"{self._argument(a)}, " for a in arg)
            return f"[{inner}]" if isinstance(arg, list) else f"({inner})"
        if isinstance(arg, dict):
            return "{" + ", ".join(f"{k!r}: {self._argument(v)}" for k, v in arg.items()) + "}"
        if arg is None or isinstance(arg, bool | int | str):
            return repr(arg)
        return self._global("k", arg)

    def _output(self, arg: Any) -> str:
        if not isinstance(arg, fx.Node):
            return self._argument(arg)
        base = self.plan.alias.get(arg)
        if base is None:
            return self._argument(arg)
        value, origin = tensors_of(value_of(arg))[0], tensors_of(value_of(base))[0]
        shift = expr_of(value.storage_offset()) - expr_of(origin.storage_offset())
        size, stride = self._exprs(value.shape), self._exprs(value.stride())
        return f"view_of({self._name(base)}, {size}, {stride}, {self._expr(sympy.sympify(shift))})"


def _attribute(gm: fx.GraphModule, path: str) -> Any:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
    return value
