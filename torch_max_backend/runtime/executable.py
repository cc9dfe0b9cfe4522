"""The call path of a compiled graph: a Python function written out for its plan.

The function's text names every region and every torch op in the order in which they run; ``TORCH_MAX_BACKEND_VERBOSE``
shows it. Variables are deleted after their last use, so that memory is freed as early as in eager.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from max.engine import Model
from sympy import Expr
from torch import fx
from torch.utils._sympy.printers import PythonPrinter

from torch_max_backend.errors import LoweringError
from torch_max_backend.graph.partition import Plan
from torch_max_backend.graph.region import Port, Region
from torch_max_backend.graph.tensors import expr_of, order_of, sizes_of, tensors_of, value_of
from torch_max_backend.runtime.region_call import RegionCall


def build_executable(
    gm: fx.GraphModule, plan: Plan, models: Sequence[Model], static: frozenset[int], profile: bool
) -> Callable[[list[Any]], Any]:
    """A boxed callable that runs ``plan``.

    Args:
        models: One per region.
        static: Indices of placeholders whose memory stays (parameters and buffers).
        profile: Put profiler ranges around regions and torch ops.
    """
    writer = _Writer(gm, plan, static, profile)
    source = writer.write(models)
    name = f"<max_backend {id(writer):x}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), writer.scope)  # the text is ours: names, numbers and calls
    call = writer.scope["call"]
    call._boxed_call = True
    call.source = source
    return call


def restride(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A copy of ``tensor`` with the given strides, for values that torch promises with gaps or repeats in memory."""
    result = target = torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)
    for dim, step in enumerate(stride):
        if step == 0 and size[dim] > 1:  # all elements along it are one in memory
            tensor, target = tensor.narrow(dim, 0, 1), target.narrow(dim, 0, 1)
    target.copy_(tensor)
    return result


def view_of(base: torch.Tensor, size: Sequence[int], stride: Sequence[int], shift: int) -> torch.Tensor:
    """A view of ``base``'s memory, ``shift`` elements after its first one."""
    return base.as_strided(size, stride, base.storage_offset() + shift)


def _profiled(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.profiler.record_function(name):
            return function(*args, **kwargs)

    return call


class _Writer:
    def __init__(self, gm: fx.GraphModule, plan: Plan, static: frozenset[int], profile: bool) -> None:
        self.gm, self.plan, self.profile = gm, plan, profile
        self.scope: dict[str, Any] = {"torch": torch, "math": math, "restride": restride, "view_of": view_of}
        self.placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self.names = {n: f"a{i}" for i, n in enumerate(self.placeholders)}
        self.static_nodes = {n for i, n in enumerate(self.placeholders) if i in static}
        self.symbols: dict[Expr, str] = {}
        self.symbol_lines: dict[str, str] = {}
        self.lines: list[tuple[str, set[str]]] = []  # text, names it reads
        self.reads: set[str] = set()
        for node in self.placeholders:
            self._learn_symbols(node)
        for node in gm.graph.nodes:
            if node.op == "get_attr":
                self.names[node] = self._global("c", _attribute(gm, str(node.target)))

    # -- text --------------------------------------------------------------------------------------------------
    def write(self, models: Sequence[Model]) -> str:
        """The function's source."""
        remaining = list(models)
        for step in self.plan.steps:
            if isinstance(step, Region):
                self._region(step, remaining.pop(0))
            else:
                self._torch(step)
        for copy in self.plan.copies:
            self._emit(f"{self._name(copy.args[0])}.copy_({self._name(copy.args[1])})")
        output = self.gm.graph.output_node().args[0]
        outputs = [self._output(o) for o in output]
        self._emit(f"return ({', '.join(outputs)}{',' if outputs else ''})")
        return self._assemble()

    def _assemble(self) -> str:
        used = set().union(*(reads for _, reads in self.lines))
        head = ["def call(args):"]
        if self.placeholders:
            head.append(f"    {', '.join(self.names[n] for n in self.placeholders)}, = args")
        head.append("    args.clear()")
        head += [f"    {line}" for name, line in self.symbol_lines.items() if name in used]
        last: dict[str, int] = {}
        for i, (_, reads) in enumerate(self.lines):
            last.update(dict.fromkeys(reads, i))
        body = []
        for i, (text, reads) in enumerate(self.lines):
            body.append(f"    {text}")
            dead = sorted(r for r in reads if last[r] == i and r[0] in "av" and not text.startswith("return"))
            if dead:
                body.append(f"    del {', '.join(dead)}")
        return "\n".join(head + body) + "\n"

    def _emit(self, text: str) -> None:
        self.lines.append((text, self.reads))
        self.reads = set()

    def _global(self, prefix: str, value: Any) -> str:
        name = f"{prefix}_{len(self.scope)}"
        self.scope[name] = value
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
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
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
    def _region(self, region: Region, model: Model) -> None:
        number = sum(isinstance(v, RegionCall) for v in self.scope.values())
        static = frozenset(
            k
            for k, p in enumerate(region.inputs)
            if (p.node.op == "get_attr" or p.node in self.static_nodes) and order_of(p.value) is not None
        )
        call: Any = RegionCall(region, model, static)
        function = f"region{number}"
        self.scope[function] = call
        if self.profile:
            self.scope[f"{function}_call"] = _profiled(f"max_backend::{function}", call)
            function = f"{function}_call"
        groups = [[region.inputs[k].node for k in positions] for positions in (call.static, call.dynamic)]
        text = ", ".join("(" + "".join(f"{self._name(n)}, " for n in nodes) + ")" for nodes in groups)
        if region.carriers or region.scalars:
            text += f", {self._exprs(region.carriers)}, {self._exprs(region.scalars)}"
        for port in region.outputs:
            self.names[port.node] = f"v{len(self.names)}"
        targets = "".join(f"{self.names[p.node]}, " for p in region.outputs)
        self._emit(f"{targets}= {function}({text})" if targets else f"{function}({text})")
        for port in region.outputs:
            self._give_strides(port)

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
        function = self._global("op", node.target)
        if self.profile:
            self.scope[function] = _profiled(f"max_backend::torch::{node.target}", node.target)
        args = [self._argument(a) for a in node.args] + [f"{k}={self._argument(v)}" for k, v in node.kwargs.items()]
        self.names[node] = f"v{len(self.names)}"
        self._emit(f"{self.names[node]} = {function}({', '.join(args)})")
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
