"""From a functional ATen graph to a compiled one: rewrite, partition, lower and compile the regions."""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from max.engine import Model
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torch_max_backend import aten_functions  # noqa: F401  (registers every lowering)
from torch_max_backend.base.errors import CompileError, ProgramError, UnsupportedOpError
from torch_max_backend.base.target import elsewhere, fake_like, is_faked
from torch_max_backend.capture.constant_folding import fold_constants
from torch_max_backend.capture.device_copies import name_device_copies
from torch_max_backend.capture.fake_tensors import symbols_of, tensors_of, value_of
from torch_max_backend.capture.freezing import freeze
from torch_max_backend.capture.graph_passes import rewrite
from torch_max_backend.capture.joint_graph import BACKWARD
from torch_max_backend.capture.pointwise_gradients import split_pointwise_gradients
from torch_max_backend.capture.specialization import specialize
from torch_max_backend.capture.user_controlled_ops import left_to_torch
from torch_max_backend.codegen.call_path_writer import RegionCheck, call_spec
from torch_max_backend.compile.compiler import (
    CompileStats,
    compile_early,
    compile_in_background,
    compile_regions,
    lower_only,
)
from torch_max_backend.compile.pending import is_deferring
from torch_max_backend.compile.programs import Program, libraries_of, programs_of, runs_programs
from torch_max_backend.diagnostics import dry_run
from torch_max_backend.diagnostics.perf_hints import hint_at_graph
from torch_max_backend.diagnostics.report import GraphReport, ProgramReport
from torch_max_backend.diagnostics.verify.stages import Stopped, where_to_stop
from torch_max_backend.frontend.compiled_graph import CompiledGraph
from torch_max_backend.frontend.saved_layouts import report_strides, set_free, take_strides
from torch_max_backend.frontend.subgraphs import compile_subgraphs
from torch_max_backend.loops.from_region import has_loops
from torch_max_backend.lowering.graph_builder import NodeRefused, mismatch_error
from torch_max_backend.options import Options
from torch_max_backend.partition.classify import as_run_by_torch
from torch_max_backend.partition.consumed_inputs import mark_consumed
from torch_max_backend.partition.partitioner import Plan, partition
from torch_max_backend.partition.region import Region
from torch_max_backend.runtime.call_path import Artifact, CallSpec
from torch_max_backend.runtime.grid_program import GridLibrary
from torch_max_backend.runtime.program import Library

log = logging.getLogger("torch_max_backend")

OP_BY_OP = "it is run op by op"
"""Why no op of a graph is in a region, in the plan for calls that are not admitted as compiled."""


def compile_graph(gm: fx.GraphModule, example_inputs: list[Any], *, options: Options) -> CompiledGraph:
    """Compile one functional ATen graph: rewrite, partition, lower and compile the regions, write the call path."""
    backward = gm.meta.pop(BACKWARD, None)
    take_strides(gm, example_inputs)
    stopped = where_to_stop()
    return _compiled(gm, backward, options) if stopped is None else _in_torch(gm, stopped)


def _in_torch(gm: fx.GraphModule, stopped: Stopped) -> CompiledGraph:
    stopped.graphs.append(rewrite(gm, stopped.passes).print_readable(print_output=False))
    return CompiledGraph(_eager(gm))


def _compiled(gm: fx.GraphModule, backward: fx.GraphModule | None, options: Options) -> CompiledGraph:
    static = _static_inputs(gm)
    with left_to_torch(options.torch_executed_ops):
        gm = _rewritten(gm, static, options)
    subgraphs = compile_subgraphs(gm, options, compile_graph)
    cut = _Cut(gm, options)
    unsaved = ""
    while True:
        plan, programs = cut.plan()
        _refuse_islands(plan, options)
        compile_id = str(torch._guards.CompileContext.current_compile_id() or "")
        graph = CompiledGraph(_eager(gm))
        build = _Build(gm, plan, static, options, compile_id, graph, programs, unsaved, subgraphs)
        try:
            rest = [region for k, region in enumerate(plan.regions) if k not in programs]
            if build.dry_run(rest):
                return build.graph
            loaded = build.compile_programs()
            if options.compile == "background" and not is_deferring():
                compiled = compile_in_background(rest, options, build.finish)
            else:
                compiled = compile_regions(rest, options, lambda: _begin_backward(backward, options))
            break
        except ProgramError as error:
            if options.fallback == "error" or cut.no_programs:
                raise
            log.warning("%s\nMAX compiles the graph instead.", error)
            cut.no_programs = True
        except NodeRefused as refusal:
            if refusal.symbols and specialize(refusal.node, refusal.symbols):
                continue
            if refusal.is_mismatch and options.fallback == "error":
                raise mismatch_error(refusal) from refusal
            cut.refused[refusal.node] = refusal.reason
        except CompileError as error:
            if options.fallback == "error":
                raise
            log.warning("%s\nTorch runs the graph instead.", error)
            unsaved = "MAX's compiler failed on it, and another process may have more luck"
            for region in plan.regions:
                cut.refused.update(dict.fromkeys(region.nodes, "MAX's compiler failed on its region"))
    hint_at_graph(gm, plan, programs.__contains__)
    report_strides(plan, gm, {k: p.written for k, p in programs.items()})
    if plan.islands:
        warnings.warn(build.report(CompileStats(len(plan.regions))).warning(), stacklevel=2)
    if compiled is not None and loaded and elsewhere() is None:
        build.finish(*compiled)
    return build.graph


def _rewritten(gm: fx.GraphModule, static: frozenset[int], options: Options) -> fx.GraphModule:
    """The graph after all passes. ``freeze`` needs programs and this machine's weights, and no comparison."""
    gm = rewrite(gm)
    if runs_programs(options):
        split_pointwise_gradients(gm)
        if name_device_copies(gm):
            fold_constants(gm)  # of the host, which beside tensors of a GPU would be copied in every call
    if options.freeze and not options.verify and runs_programs(options) and elsewhere() is None:
        freeze(gm, static)
    return gm


@dataclass
class _Cut:
    """How a graph is cut: the nodes that MAX's lowerings refused, and those that have no loops, as far as is known."""

    gm: fx.GraphModule
    options: Options
    refused: dict[fx.Node, str] = field(default_factory=dict)
    without_loops: set[fx.Node] = field(default_factory=set)
    no_programs: bool = False

    def plan(self) -> tuple[Plan, dict[int, Program]]:
        """A plan, cut around what has no loops, and the regions of it that are programs, by position."""
        least = 1 if self.options.fallback == "error" else self.options.min_block_size
        executed = self.options.torch_executed_ops
        while True:
            plan = partition(self.gm.graph, self.refused, executed, least, self.without_loops, self._may_have_loops)
            known = len(self.without_loops)
            if self.options.compile == "wait" and not self.no_programs:
                set_free(plan, self.gm)
            if not self.options.verify:  # which reads a region's inputs again
                mark_consumed(plan, self.gm.graph)
            programs = {} if self.no_programs else programs_of(plan.regions, self.options, self.without_loops)
            if len(self.without_loops) > known:
                continue
            left = [n for k, region in enumerate(plan.regions) if k not in programs for n in region.nodes]
            nobody = {n: plan.only_loops[n] for n in left if n in plan.only_loops}
            if not nobody:
                return plan, programs
            self.refused.update(nobody)

    def _may_have_loops(self, node: fx.Node) -> bool:
        if self.no_programs or not runs_programs(self.options):
            return False
        values = (value_of(node), *map(value_of, node.all_input_nodes))
        devices = {t.device.type for v in values for t in tensors_of(v)} - {"meta"}
        on_one = len(devices) <= 1 and devices <= {"cpu", "cuda"}
        return on_one and has_loops(node.target)


def _begin_backward(backward: fx.GraphModule | None, options: Options) -> None:
    """Have the backward of a graph compiled while its forward is, cut and lowered as it will be when it is called.

    Left for then: whatever is wrong with it, and one with symbolic sizes, which may need guards.
    """
    if backward is None or options.compile_workers == 1 or os.cpu_count() == 1:
        return
    if any(symbols_of(n.meta.get("val")) for n in backward.graph.nodes):
        return
    try:
        with unset_fake_temporarily():
            gm = copy.deepcopy(backward)
        with left_to_torch(options.torch_executed_ops):
            gm = _rewritten(gm, frozenset(), options)
        cut = _Cut(gm, options)
        while True:
            plan, programs = cut.plan()
            if options.fallback == "error" and plan.islands:
                return
            try:
                return compile_early([r for k, r in enumerate(plan.regions) if k not in programs], options)
            except NodeRefused as refusal:
                cut.refused[refusal.node] = refusal.reason
    except Exception as error:  # the backward says what is wrong when it is called
        log.info("a backward is not compiled early: %s", error)


@dataclass(frozen=True)
class _Build:
    """A graph that is cut and lowered, and lacks its models; ``graph`` runs in torch until they are there."""

    gm: fx.GraphModule
    plan: Plan
    static: frozenset[int]
    options: Options
    compile_id: str
    graph: CompiledGraph
    programs: dict[int, Program] = field(default_factory=dict)
    unsaved: str = ""
    """Why other processes shall not take the graph from AOTAutograd's cache."""
    subgraphs: dict[str, CompiledGraph] = field(default_factory=dict)
    libraries: dict[int, Library | GridLibrary | None] = field(default_factory=dict)
    program_stats: list[CompileStats] = field(default_factory=list)

    def dry_run(self, rest: list[Region]) -> bool:
        """Whether somebody wants to know of the graph and nothing else; then it is noted, and runs in torch.

        Args:
            rest: The regions that are no programs.

        Raises:
            NodeRefused: A lowering declined a node.
        """
        if not dry_run.is_wanted():
            return False
        lower_only(rest, self.options)
        dry_run.note(self.gm, self.plan, self.programs)
        return True

    def compile_programs(self) -> bool:
        """Load or compile what the programs among the regions need; whether that is done, and not put off.

        Raises:
            ProgramError: Mojo could not compile one.
        """
        stats = CompileStats()
        try:
            found = libraries_of(list(self.programs.values()), self.options, stats)
        except CompileError as error:
            raise ProgramError(str(error)) from error
        self.program_stats.append(stats)
        if found is None:
            return False
        self.libraries.update(zip(self.programs, found, strict=True))
        return True

    def finish(self, models: list[Model], stats: CompileStats) -> None:
        """Write the call path, and report. ``models`` are those of the regions that are no programs."""
        (own,) = self.program_stats
        keys, rest = iter(stats.keys), iter(models)
        every = range(len(self.plan.regions))
        stats.keys = [self.programs[k].key if k in self.programs else next(keys) for k in every]
        stats.regions, stats.programs = len(every), len(self.programs)
        stats.hits += own.hits
        stats.compile_s += own.compile_s
        written = {k: p.written for k, p in self.programs.items()}
        spec = call_spec(self.gm, self.plan, self.static, self.options, written, self._checks(), self.subgraphs)
        artifacts: list[Artifact] = [self.libraries[k] if k in self.programs else next(rest) for k in every]
        options, unsaved = self.options, self.unsaved
        if options.verify:  # what is compared is not replayed, and needs the graph
            options, unsaved = dataclasses.replace(options, device_graphs=False), "the option verify is on"
        self.graph.ready(spec, artifacts, self.report(stats), options, unsaved, self._op_by_op())

    def _op_by_op(self) -> CallSpec:
        """The call path on which torch runs every op, without the tensors of the graph's own."""
        called = [n for n in self.gm.graph.nodes if n.op == "call_function"]
        plan = partition(self.gm.graph, dict.fromkeys(called, OP_BY_OP))
        options = dataclasses.replace(self.options, profile=False)
        spec = call_spec(self.gm, plan, self.static, options, subgraphs=self.subgraphs)
        others = {name: value for name, value in spec.values.items() if name not in spec.constants}
        return dataclasses.replace(spec, values=others)

    def _checks(self) -> list[RegionCheck]:
        if not self.options.verify:
            return []
        from torch_max_backend.diagnostics.verify.region_check import ComparedRegion

        return [ComparedRegion(region, k, self.options) for k, region in enumerate(self.plan.regions)]

    def report(self, stats: CompileStats) -> GraphReport:
        nodes = sum(n.op == "call_function" for n in self.gm.graph.nodes)
        max_nodes = sum(r.compute_nodes for r in self.plan.regions)
        programs = tuple(ProgramReport.of(p.written.spec) for p in self.programs.values())
        return GraphReport(self.compile_id, nodes, max_nodes, tuple(self.plan.islands), stats, programs=programs)


class _InTorch(fx.Interpreter):
    """Runs a graph's ops in torch."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return super().call_function(as_run_by_torch(target), args, kwargs)


def _eager(gm: fx.GraphModule) -> Any:
    """The graph in torch."""

    def call(args: list[Any]) -> Any:
        values = list(args)
        args.clear()
        if is_faked() and (results := _as_traced(gm, values)) is not None:
            return results
        return _InTorch(gm).run(*values)

    return call


def _as_traced(gm: fx.GraphModule, values: Sequence[Any]) -> list[Any] | None:
    """Fake results of fake ``values``, as AOTAutograd saw them; nothing where they have symbolic sizes.

    Running the graph may give other strides, since composite ops are taken apart then.
    """
    inputs = dict(zip(gm.graph.find_nodes(op="placeholder"), values, strict=True))
    (output,) = gm.graph.find_nodes(op="output")
    results = []
    for node in output.args[0]:
        value = node.meta.get("val") if isinstance(node, fx.Node) else node
        if node in inputs:
            value = inputs[node]
        elif isinstance(value, torch.Tensor) and not any(isinstance(d, torch.SymInt) for d in value.shape):
            value = fake_like(value, value.device)
        elif isinstance(node, fx.Node):
            return None
        results.append(value)
    return results


def _static_inputs(gm: fx.GraphModule) -> frozenset[int]:
    """Placeholders whose memory stays where it is from call to call: parameters, buffers, marked static inputs."""
    context = torch._guards.TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    indices = set(getattr(metadata, "static_input_indices", None) or ())
    names = [n for n in gm.graph.nodes if n.op == "placeholder"]
    first_is_forward = bool(names) and not any(str(n.target).startswith("tangents") for n in names)
    return frozenset(indices) if first_is_forward else frozenset()


def _refuse_islands(plan: Plan, options: Options) -> None:
    """Raise ``UnsupportedOpError`` in strict mode where torch would have to run something."""
    islands = plan.islands
    if options.fallback != "error" or not islands:
        return
    first = islands[0]
    lines = [f"MAX cannot run {first.op}: {first.reason}."]
    if first.where:
        lines.append(f"  at {first.where}")
    others = sorted({i.op for i in islands} - {first.op})
    if others:
        lines.append(f"  and {len(others)} more: {', '.join(others)}")
    lines.append("  Use options={'fallback': 'eager'} to let torch run such ops, or register a lowering with @map_to.")
    raise UnsupportedOpError("\n".join(lines))
