"""Performance hints about the function that torch compiles: compiled again, for which argument; a graph break.

It imports little, since a graph that AOTAutograd has kept passes here too.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch import fx

from torch_max_backend.base.torch_logs import PERF_HINTS, is_wanted, show
from torch_max_backend.diagnostics.recompiles import function_compiled_now

RESUMED = "torch_dynamo_resume_in_"
"""How Dynamo names what is behind a graph break."""

_arguments: weakref.WeakKeyDictionary[CodeType, dict[str, str]] = weakref.WeakKeyDictionary()
"""The arguments for which a function was compiled last."""


def hint_at_function(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """Say whether torch compiles a function again, for which argument, and whether a graph break is before it."""
    if not is_wanted(PERF_HINTS):
        return
    code = function_compiled_now()
    if code is None:
        return
    if code.co_name.startswith(RESUMED):
        name = code.co_name.removeprefix(RESUMED).rpartition("_at_")[0]
        text = (
            "graph break: %s goes on at %s:%d in a graph of its own, and nothing is fused across the break. "
            "TORCH_LOGS=graph_breaks says why, fullgraph=True makes it an error"
        )
        show(PERF_HINTS, text, name, code.co_filename, _first_line(code))
    nodes = gm.graph.find_nodes(op="placeholder")
    now = {_name(n): described(n.meta.get("example_value", x)) for n, x in zip(nodes, example_inputs, strict=False)}
    before, _arguments[code] = _arguments.get(code), now
    compile_id = torch._guards.CompileContext.current_compile_id()
    if before is not None and compile_id is not None and compile_id.frame_compile_id:
        text = "recompiled: %s is compiled the %d. time: %s"
        show(PERF_HINTS, text, code.co_name, compile_id.frame_compile_id + 1, _change(before, now))


def _first_line(code: CodeType) -> int:
    """The line at which a function goes on behind a graph break, as Dynamo's name for it says."""
    return max(code.co_firstlineno, *(line for _, _, line in code.co_lines() if line is not None))


def _name(node: fx.Node) -> str:
    source = getattr(node.meta.get("grapharg"), "source", None) or node.meta.get("_dynamo_source")
    try:
        name = source.name() if callable(source.name) else source.name
    except (AttributeError, NotImplementedError):  # there is no source, or one without a name
        return node.name
    return str(name).removeprefix("L['").replace("']", "", 1)


def described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        strides = "" if value.is_contiguous() else f" of strides {tuple(value.stride())}"
        return f"{kind}{list(value.shape)}{strides}".replace("'", "")
    return str(value)


def _change(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    both = [f"{name} is {now[name]}, was {before[name]}" for name in now if before.get(name, now[name]) != now[name]]
    if not both:
        return "TORCH_LOGS=recompiles shows which guard failed"
    return (
        f"{'; '.join(both)}. torch._dynamo.mark_dynamic or dynamic=True has one compile for all sizes "
        "(docs/symbolic-sizes.md)"
    )
