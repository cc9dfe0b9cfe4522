"""A program of an op's reference: traced with symbolic sizes and strides, and compiled as a graph of this backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.printers import PythonPrinter

from torch_max_backend.base.errors import CompileError
from torch_max_backend.capture.decompositions import decomposition_table
from torch_max_backend.capture.inlining import nothing_else_active
from torch_max_backend.compile.pending import is_deferring
from torch_max_backend.frontend.pipeline import compile_graph
from torch_max_backend.ops.declaration import Declaration
from torch_max_backend.ops.eager_call import SHORT, STRIDE, Layout, Signature
from torch_max_backend.ops.kept_programs import OpProgram, keep_program, parts_of
from torch_max_backend.options import Options
from torch_max_backend.runtime.session import check_device, choose_memory_share

TYPICAL = 1024
"""What a long size counts as where a program is scheduled. Other sizes run the same program."""


class _Sizes:
    """The symbols of a trace by name, each with a value of its own that is typical of it."""

    def __init__(self, values: dict[str, int], as_they_are: bool) -> None:
        self.values, self.as_they_are, self.env = values, as_they_are, ShapeEnv(duck_shape=False)
        self.symbols: dict[str, sympy.Symbol] = {}
        self.sizes: dict[str, Any] = {}
        self.free_strides = iter([name for name in values if name.startswith(STRIDE)])

    def size(self, name: str) -> Any:
        if name not in self.sizes:
            count = len(self.sizes)
            typical = TYPICAL * 64 + 8 * count if name.startswith(STRIDE) else TYPICAL + 8 * count
            if name.endswith(" short"):
                typical = SHORT // 4 + 2 * count
            if self.as_they_are:
                typical = self.values[name]
            source = ConstantSource(f"s{count}")
            symbol = self.env.create_symbol(typical, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
            self.symbols[name] = symbol
            self.sizes[name] = self.env.create_symintnode(symbol, hint=typical, source=source)
        return self.sizes[name]

    def tensor(self, layout: Layout) -> torch.Tensor:
        """A fake tensor of the layout."""
        shape = [times * self.size(name) if name else times for times, name in layout.sizes]
        strides: list[Any] = [1] * len(shape)
        extent: Any = 1
        for d in layout.order:
            code = layout.strides[d]
            if code is not None:
                strides[d] = code
            else:
                strides[d] = extent if layout.follows[d] else self.size(next(self.free_strides))
            extent = strides[d] * shape[d] if code != 0 else 1
        return torch.empty_strided(shape, strides, dtype=layout.dtype, device=layout.device)


def traced_program(
    declaration: Declaration, signature: Signature, values: dict[str, int], args: Sequence[Any], options: Options
) -> OpProgram | None:
    """Trace and compile the reference, and keep what that gives; nothing comes back if the compile is put off.

    Args:
        values: What the names of a signature are in the call at hand.
        args: All arguments of that call; those that are tensors are looked at for their device alone.

    Raises:
        CompileError: Mojo refuses the kernels.
    """
    places = [k for k in declaration.tensors if args[k] is not None]

    def run(sizes: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        own = list(args)
        for k, x in zip(places, tensors, strict=True):
            own[k] = x
        results = declaration.dense_reference(*own)
        return [results] if isinstance(results, torch.Tensor) else list(results)

    layouts = [layout for layout in signature.layouts if layout is not None]
    as_they_are = any(layout.device.type != "cpu" for layout in layouts)
    return compiled_program(run, layouts, values, declaration.name, repr(signature), options, as_they_are=as_they_are)


def compiled_program(
    run: Callable[[Sequence[Any], Sequence[torch.Tensor]], list[torch.Tensor]],
    layouts: Sequence[Layout],
    values: dict[str, int],
    name: str,
    signature: str,
    options: Options,
    *,
    as_they_are: bool = False,
) -> OpProgram | None:
    """Trace and compile a function of sizes and tensors, and keep what that gives; nothing if the compile is put off.

    Args:
        run: Gets all sizes, in the order of ``values``, and a tensor of each layout. Returns new tensors.
        values: What the names in the layouts are in the call at hand.
        name: Names the function in the store, together with ``signature``.
        as_they_are: Sizes count as what they are in the call at hand, and not as typical ones, which may contradict
            one another where a size follows from others.

    Raises:
        CompileError: Mojo refuses the kernels, or the function returns one of its arguments.
    """
    devices = {layout.device for layout in layouts}
    if any(device.type != "cpu" for device in devices):
        choose_memory_share(options.gpu_memory_share, options.device_graphs)
    for device in devices:
        check_device(device)
    with nothing_else_active():
        sizes = _Sizes(values, as_they_are)
        with FakeTensorMode(shape_env=sizes.env) as mode:
            tensors = [sizes.tensor(layout) for layout in layouts]
        for size in values:
            sizes.size(size)
        names = list(sizes.sizes)
        order = [names.index(size) for size in values]

        def traced(*given: Any) -> list[torch.Tensor]:
            return run([given[k] for k in order], given[len(names) :])

        inputs = [*sizes.sizes.values(), *tensors]
        with mode, enable_python_dispatcher():
            gm = make_fx(traced, decomposition_table=decomposition_table())(*inputs)
        graph = compile_graph(gm, inputs, options=dataclasses.replace(options, memory_budget=""))
    if graph.direct is None and is_deferring():
        return None
    if graph.direct is None:
        raise CompileError(f"the reference of {name} returns one of its arguments")
    places_of = {symbol: sympy.Symbol(f"s{k}", integer=True) for k, symbol in enumerate(sizes.symbols.values())}
    guards = tuple(PythonPrinter().doprint(guard.expr.xreplace(places_of)) for guard in sizes.env.guards)
    program = OpProgram(graph.direct, tuple(sizes.symbols), guards)
    if graph.saved is not None and all(device.type == "cpu" for device in devices):
        keep_program(parts_of(name, signature, options), options, graph.saved.spec, graph.saved.keys, program)
    return program
