"""The front door: ``torch.compile(model, backend="max_backend")`` arrives here."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from max.engine import Model
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from torch_max_backend import aten_functions  # noqa: F401  (registers every lowering)
from torch_max_backend.compiler.compile import CompileStats, compile_in_background, compile_regions, is_batching
from torch_max_backend.compiler.lowering import NodeRefused, mismatch_error
from torch_max_backend.diagnostics import logs
from torch_max_backend.diagnostics.report import GraphReport, record
from torch_max_backend.errors import CompileError, UnsupportedOpError
from torch_max_backend.graph.decompositions import decomposition_table
from torch_max_backend.graph.partition import Island, Plan, partition
from torch_max_backend.graph.rewrites import rewrite
from torch_max_backend.graph.specialize import specialize
from torch_max_backend.options import Options, resolve
from torch_max_backend.runtime.executable import build_executable
from torch_max_backend.runtime.session import check_device

log = logging.getLogger("torch_max_backend")


def max_backend(
    gm: fx.GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph with MAX.

    Args:
        gm: The graph that Dynamo captured.
        example_inputs: Its inputs, as fake or real tensors and numbers.
        mode: ``torch.compile``'s mode: default, reduce-overhead, max-autotune or max-autotune-no-cudagraphs.
        options: See :class:`torch_max_backend.options.Options`.

    Returns:
        A function with the graph's signature.

    Raises:
        OptionError: An unknown option or mode.
        EnvironmentUnsupportedError: A tensor is on a device that this backend cannot drive.
        UnsupportedOpError: With ``fallback="error"``, an op that MAX cannot run.
    """
    chosen = resolve(options, mode)
    logs.configure(chosen)
    for value in example_inputs:
        if isinstance(value, torch.Tensor):
            check_device(value.device)
    compiler = functools.partial(compile_graph, options=chosen)
    return aot_autograd(
        fw_compiler=compiler,
        bw_compiler=compiler,
        inference_compiler=compiler,
        decompositions=decomposition_table(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )(gm, example_inputs)


def compile_graph(gm: fx.GraphModule, example_inputs: list[Any], *, options: Options) -> Callable[[list[Any]], Any]:
    """Compile one functional ATen graph: rewrite, partition, lower and compile the regions, write the call path."""
    gm = rewrite(gm)
    static = _static_inputs(gm)
    refused: dict[fx.Node, str] = {}
    while True:
        plan = partition(gm.graph, refused, options.torch_executed_ops, _min_block(options))
        if options.fallback == "error" and plan.islands:
            raise _strict_error(plan.islands)
        build = _Build(gm, plan, static, options, str(torch._guards.CompileContext.current_compile_id() or ""))
        later = _Switch(build)
        try:
            if options.compile == "background" and not is_batching():
                compiled = compile_in_background(plan.regions, options, later.ready)
            else:
                compiled = compile_regions(plan.regions, options)
            break
        except NodeRefused as refusal:
            if refusal.symbols and specialize(refusal.node, refusal.symbols):
                continue
            if refusal.is_mismatch and options.fallback == "error":
                raise mismatch_error(refusal) from refusal
            refused[refusal.node] = refusal.reason
        except CompileError as error:
            if options.fallback == "error":
                raise
            log.warning("%s\nTorch runs the graph instead.", error)
            for region in plan.regions:
                refused.update(dict.fromkeys(region.nodes, "MAX's compiler failed on its region"))
    if plan.islands:
        warnings.warn(_fallback_warning(plan), stacklevel=2)
    if compiled is None:
        return later
    return build.finish(*compiled)


@dataclass(frozen=True)
class _Build:
    """A graph that is cut and lowered, and lacks its models."""

    gm: fx.GraphModule
    plan: Plan
    static: frozenset[int]
    options: Options
    compile_id: str

    def finish(self, models: list[Model], stats: CompileStats) -> Callable[[list[Any]], Any]:
        """Write the call path, and report."""
        call = build_executable(self.gm, self.plan, models, self.static, self.options.profile)
        report = GraphReport.of(self.compile_id, self.gm, self.plan, stats)
        record(report)
        log.info("%s\n%s", report.summary(), call.source)  # type: ignore[attr-defined]
        return call


class _Switch:
    """Runs a graph in torch until its models are ready, and with them from the next call on."""

    _boxed_call = True

    def __init__(self, build: _Build) -> None:
        self.build = build
        self.call: Callable[[list[Any]], Any] = self._eager

    def __call__(self, args: list[Any]) -> Any:
        return self.call(args)

    def ready(self, models: list[Model], stats: CompileStats) -> None:
        """Take the models. A call that is under way ends as it began."""
        self.call = self.build.finish(models, stats)

    def _eager(self, args: list[Any]) -> Any:
        values = list(args)
        args.clear()
        return fx.Interpreter(self.build.gm).run(*values)


def _min_block(options: Options) -> int:
    return 1 if options.fallback == "error" else options.min_block_size


def _static_inputs(gm: fx.GraphModule) -> frozenset[int]:
    """Placeholders whose memory stays where it is from call to call: parameters, buffers, marked static inputs."""
    context = torch._guards.TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    indices = set(getattr(metadata, "static_input_indices", None) or ())
    names = [n for n in gm.graph.nodes if n.op == "placeholder"]
    first_is_forward = bool(names) and not any(str(n.target).startswith("tangents") for n in names)
    return frozenset(indices) if first_is_forward else frozenset()


def _strict_error(islands: list[Island]) -> UnsupportedOpError:
    first = islands[0]
    lines = [f"MAX cannot run {first.op}: {first.reason}."]
    if first.where:
        lines.append(f"  at {first.where}")
    others = sorted({i.op for i in islands} - {first.op})
    if others:
        lines.append(f"  and {len(others)} more: {', '.join(others)}")
    lines.append("  Use options={'fallback': 'eager'} to let torch run such ops, or register a lowering with @map_to.")
    return UnsupportedOpError("\n".join(lines))


def _fallback_warning(plan: Plan) -> str:
    groups: dict[tuple[str, str], list[str]] = {}
    for island in plan.islands:
        groups.setdefault((island.op, island.reason), []).append(island.where)
    lines = [
        f"max_backend: torch runs {len(plan.islands)} op(s) of this graph, between {len(plan.regions)} MAX region(s):"
    ]
    for (op, reason), where in groups.items():
        place = next((w for w in where if w), "")
        lines.append(f"  {len(where)} x {op}: {reason}" + (f" (first at {place})" if place else ""))
    return "\n".join(lines)
