"""PyTorch's minifier behind AOTAutograd, ``TORCHDYNAMO_REPRO_AFTER=aot``, with this backend as the compiler.

PyTorch has it for Inductor alone: its wrapper is around Inductor's compiler, and the files that it writes compile with
Inductor again. So the wrapper is put around this backend's compiler here, and the files call :func:`repro_with`, which
has PyTorch's commands ("run", "minify", "analyze") compile with this backend. Everything used here is private to torch.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch import fx

from torch_max_backend.options import Options, resolve

Compiler = Callable[[fx.GraphModule, list[Any]], Any]

_COMPILER = "torch._inductor.compile_fx.compile_fx_inner"
"""What PyTorch's commands compile with."""
_IMPORT = re.compile(r"^( *)from torch\._dynamo\.repro\.after_aot import run_repro$", re.MULTILINE)


def under_minifier(compile_graph: Compiler, options: Options) -> Compiler:
    """A compiler whose graphs are compared with PyTorch, or whose failures are written down, as the level says.

    Args:
        compile_graph: The compiler of one functional ATen graph. It may change the graph.
        options: Those of the call, which the files have too.
    """
    from torch._dynamo.repro.after_aot import wrap_compiler_debug

    name: Any = "inductor"  # PyTorch compares for no other
    wrapped = wrap_compiler_debug(_as_function(compile_graph), name)

    def compile_and_compare(gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        with _written_with(options):
            compiled: Any = wrapped(gm, example_inputs)

        def call(args: list[Any]) -> Any:
            with _written_with(options):
                return compiled(args)

        return _boxed(call)

    return compile_and_compare


def repro_with(given: Mapping[str, Any]) -> Callable[..., Any]:
    """PyTorch's ``run_repro``, which compiles with this backend. Files that the minifier writes call it.

    Args:
        given: The options that are not the default.
    """
    options = resolve(given)

    def run_repro(mod: torch.nn.Module, load_args: Any, **how: Any) -> Any:
        from torch._dynamo.repro import after_aot

        with mock.patch(_COMPILER, _as_function(_compiler_of_values(options))), _written_with(options):
            return after_aot.run_repro(mod, load_args, **how)

    return run_repro


def _as_function(compile_graph: Compiler) -> Callable[..., Any]:
    """The compiler as PyTorch's tools call it: it leaves the graph as it is, and what it makes can be copied."""

    def compile_copy(gm: fx.GraphModule, example_inputs: list[Any], **_: Any) -> Any:
        copied = fx.GraphModule(gm, copy.deepcopy(gm.graph))
        copied.meta = dict(gm.meta)
        compiled = compile_graph(copied, example_inputs)
        return _boxed(lambda args: compiled(list(args)))

    return compile_copy


def _compiler_of_values(options: Options) -> Compiler:
    """A compiler of graphs that were traced with tensors, or cut since: each node gets its fake value first."""

    def compile_graph(gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        from torch._guards import detect_fake_mode
        from torch._subclasses import FakeTensorMode
        from torch.fx.passes.fake_tensor_prop import FakeTensorProp

        from torch_max_backend.frontend import pipeline

        mode = detect_fake_mode(example_inputs)
        if mode is None:
            FakeTensorProp(gm, mode=FakeTensorMode()).propagate(*example_inputs)
        else:
            FakeTensorProp(gm, mode=mode).propagate_dont_convert_inputs(*example_inputs)
        return pipeline.compile_graph(gm, example_inputs, options=options)

    return compile_graph


def _boxed(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    function._boxed_call = True  # type: ignore[attr-defined]
    return function


@contextlib.contextmanager
def _written_with(options: Options) -> Iterator[None]:
    """Have the files that PyTorch writes meanwhile call :func:`repro_with`."""
    from torch._dynamo.repro import after_aot

    changed = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    changed = {name: value for name, value in changed.items() if value != getattr(Options(), name)}
    ours = rf"\1from {__name__} import repro_with\n\n\1run_repro = repro_with({changed!r})"
    write = after_aot.save_graph_repro

    def save(fd: Any, *args: Any, **how: Any) -> None:
        text = io.StringIO()
        write(text, *args, **how)
        fd.write(_IMPORT.sub(lambda found: found.expand(ours), text.getvalue()))

    with mock.patch.object(after_aot, "save_graph_repro", save):
        yield
