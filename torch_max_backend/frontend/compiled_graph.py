"""A compiled graph as AOTAutograd knows it: called with a list of arguments, kept in AOTAutograd's cache."""

from __future__ import annotations

import copy
import dataclasses
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_max_backend.admission_control.gate import GraphAdmission, MemoryGate, OpByOp
from torch_max_backend.base.torch_logs import CACHE, ISLANDS, add_page, show
from torch_max_backend.compile.cache.configured_store import store_for
from torch_max_backend.compile.cache.store import Entry
from torch_max_backend.compile.stats import CompileStats
from torch_max_backend.diagnostics import logs
from torch_max_backend.diagnostics.report import GraphReport, record
from torch_max_backend.frontend import cache_artifacts
from torch_max_backend.frontend.warm_start import graphs_of_trace, options_of_call
from torch_max_backend.options import Options
from torch_max_backend.runtime.call_memory import CallMemory
from torch_max_backend.runtime.call_path import Artifact, CallSpec, NotSavableError
from torch_max_backend.runtime.cuda_graphs.recorded_program import RecordedProgram
from torch_max_backend.runtime.cuda_graphs.replay import Replayed, with_replay
from torch_max_backend.runtime.cuda_launch import CUBIN, LAUNCHER
from torch_max_backend.runtime.grid_program import GridLibrary
from torch_max_backend.runtime.program import LIBRARY, ProgramSpec, load_library
from torch_max_backend.runtime.region_spec import Model, RegionSpec

try:
    from torch._inductor.output_code import OutputCode
except ImportError:  # a torch whose AOTAutograd keeps nothing
    OutputCode = object

log = logging.getLogger("torch_max_backend")

PAGE = "max_backend_graph"
"""The page of a structured trace that has a graph's report and its call path."""


@dataclass(frozen=True)
class SavedGraph:
    """What a compiled graph is made of: its call path, the keys of its regions in the store, its report.

    Behind the keys of its own regions are those of the graphs that its call path chooses between or repeats.
    ``op_by_op`` is the call path on which torch runs the graph's ops, and what that allocates, if it could be written.
    """

    spec: bytes
    keys: tuple[str, ...]
    report: GraphReport
    options: Options
    op_by_op: tuple[bytes, CallMemory] | None = None


class MissingRegionsError(Exception):
    """A saved graph cannot be used here; the message says why."""


class CompiledGraph(OutputCode):
    """A graph that runs, or will once it is loaded.

    Args:
        call: The call path; takes a list of arguments and empties it.

    ``direct`` is the same with the arguments one by one, for a graph that reads its arguments and returns new tensors;
    ``plain`` are their numbers then.
    """

    def __init__(self, call: Callable[[list[Any]], Any] | None = None) -> None:
        self._boxed_call = True  # of the instance: torch's wrappers copy an object's own attributes
        self.call = call
        self.saved: SavedGraph | None = None
        self.direct: Callable[..., Any] | None = None
        self.plain: tuple[int, int] | None = None
        self.unsaved_because = "it is still being compiled"
        self.before_saving: Callable[[], None] | None = None

    def __call__(self, args: list[Any]) -> Any:
        return self.call(args)  # type: ignore[misc]

    def ready(
        self,
        spec: CallSpec,
        models: Sequence[Artifact],
        report: GraphReport,
        options: Options,
        unsaved_because: str = "",
        op_by_op: CallSpec | None = None,
    ) -> None:
        """Take the models. A call that is under way ends as it began. With a reason, the graph is not kept.

        ``op_by_op`` is the graph as torch runs it, for calls that are not admitted.
        """
        path = OpByOp(op_by_op, op_by_op.memory) if op_by_op is not None else None
        gate = MemoryGate(report.compile_id, spec.memory, path, options, report.admission)
        call = with_replay(spec, models, options, gate)
        report = dataclasses.replace(report, frozen=spec.frozen)
        _tell(report, spec)
        self.unsaved_because = unsaved_because
        if not unsaved_because:
            try:
                keys = [*report.stats.keys, *(key for part in _parts(spec) if part.saved for key in part.saved.keys)]
                kept = dataclasses.replace(report, admission=GraphAdmission(), frozen=None)
                self.saved = SavedGraph(spec.dumps(), tuple(keys), kept, options, _dumped(path))
                cache_artifacts.note(self.saved.keys, options)
            except NotSavableError as error:
                self.unsaved_because = str(error)
        self._run_by(call, spec, gate)

    def _run_by(self, call: Callable[[list[Any]], Any], spec: CallSpec, gate: MemoryGate) -> None:
        self.direct, self.plain = getattr(call, "direct", None), spec.plain
        if self.saved is not None and not isinstance(call, RecordedProgram | Replayed):
            gate.reload_from(self.saved.spec)  # what is recorded reads its constants where they are
        self.call = call
        made = graphs_of_trace.get()
        if made is not None:
            made.append(self)

    # -- AOTAutograd's cache -----------------------------------------------------------------------------------
    def prepare_for_serialization(self) -> None:
        """Called on a copy before it is pickled."""
        if self.before_saving is not None:
            self.before_saving()
        if self.saved is None:
            from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache

            log.info("the graph is traced again in other processes: %s", self.unsaved_because)
            show(CACHE, "AOTAutograd's cache cannot keep the graph: %s", self.unsaved_because)
            raise BypassAOTAutogradCache(f"max_backend cannot save the graph: {self.unsaved_because}")

    def __reduce__(self) -> Any:
        if self.saved is None:
            raise NotSavableError(f"a graph that it calls cannot be saved: {self.unsaved_because}")
        return _restored, (self.saved,)

    def __copy__(self) -> CompiledGraph:
        twin = type(self)(self.call)
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: Any) -> CompiledGraph:
        return copy.copy(self)  # nothing in it ever changes

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Called after unpickling: load the models, so that the graph can be called.

        Raises:
            FXGraphCacheMiss: Torch's word for it: a region is not in the store any more, or cannot be loaded.
        """
        if self.call is not None or self.saved is None:
            return
        try:
            self._load(self.saved)
        except Exception as error:  # whatever is wrong with what was saved, compiling again is the way out
            from torch._functorch._aot_autograd.autograd_cache import FXGraphCacheMiss

            log.info("a graph is traced and compiled again: %s", error)
            show(CACHE, "a graph of AOTAutograd's cache is traced again: %s", error)
            raise FXGraphCacheMiss(str(error)) from error

    def _load(self, saved: SavedGraph, options: Options | None = None) -> None:
        options = options or options_of_call.get() or saved.options  # what is saved serves every mode
        logs.configure(options)
        spec = CallSpec.loads(saved.spec)
        for part in _parts(spec):
            assert part.saved is not None
            part._load(part.saved, options=dataclasses.replace(options, device_graphs=False))
        cache_artifacts.note(saved.keys, options)
        count = len(spec.regions)
        compile_id = str(torch._guards.CompileContext.current_compile_id() or "")
        stats = CompileStats(count, saved.report.stats.programs, hits=count, keys=list(saved.keys[:count]))
        report = dataclasses.replace(
            saved.report,
            compile_id=compile_id,
            stats=stats,
            warm=True,
            admission=GraphAdmission(),
            frozen=spec.frozen,
        )
        path = OpByOp(*saved.op_by_op) if saved.op_by_op is not None else None
        gate = MemoryGate(compile_id, spec.memory, path, options, report.admission)
        self._run_by(with_replay(spec, models_of(saved, spec, options), options, gate), spec, gate)
        _tell(report, spec)
        show(CACHE, "graph %s is from AOTAutograd's cache: it was not traced again", compile_id)
        if report.islands:
            warnings.warn(report.warning(), stacklevel=2)


def _tell(report: GraphReport, spec: CallSpec) -> None:
    """Add a graph to the reports, and print what is asked for."""
    record(report)
    log.info("%s\n%s", report.summary(), spec.source)
    add_page(PAGE, "%s\n\n%s", report.summary(), spec.source)
    if report.islands:
        lines = (f"{i.op}{f' at {i.where}' if i.where else ''}: {i.reason}" for i in report.islands)
        show(ISLANDS, "graph %s: torch runs\n%s", report.compile_id, "\n".join(lines))


def _parts(spec: CallSpec) -> list[CompiledGraph]:
    """The graphs that a call path chooses between or repeats."""
    return list({id(value): value for value in spec.values.values() if isinstance(value, CompiledGraph)}.values())


def _dumped(path: OpByOp | None) -> tuple[bytes, CallMemory] | None:
    """A path op by op for other processes; nothing where a value in it cannot be written."""
    if path is None or not isinstance(path.path, CallSpec):
        return None
    try:
        return path.path.dumps(), path.memory
    except NotSavableError as error:
        log.info("other processes cannot run a graph op by op where memory does not suffice: %s", error)
        return None


_carried: dict[str, Model | Entry] = {}


def carry(models: dict[str, Model | Entry]) -> None:
    """Have :func:`models_of` find these models and libraries, by key, without a store. A launcher's key is its name."""
    _carried.update(models)


def models_of(saved: SavedGraph, spec: CallSpec, options: Options) -> list[Artifact]:
    """The models and libraries of a saved graph's regions, from what was loaded with it or from the options' store.

    Raises:
        MissingRegionsError: A region is not in the store.
    """
    return [_model(key, region, options) for key, region in zip(saved.keys, spec.regions, strict=False)]


def _model(key: str, region: RegionSpec | ProgramSpec, options: Options) -> Artifact:
    if not key:  # a program of library calls alone
        return None
    entry = _carried.get(key)
    if entry is not None and not isinstance(entry, Entry):
        return entry
    if entry is None:
        store = store_for(options)
        entry = store.get(key)
        if entry is None:
            raise MissingRegionsError(f"region {key[:12]}… is not in the cache {store.folder}")
        store.note_lookup(key, "hit")
    if entry.graph == LIBRARY:
        return load_library(entry.blob, entry.sha)
    if entry.graph == CUBIN:
        return GridLibrary(entry.blob.read_bytes(), entry.sha, _launcher(options), region.gpus[0])
    from torch_max_backend.runtime.session import load  # imports MAX

    return load(entry.blob, entry.sha)[entry.graph]


def _launcher(options: Options) -> Path:
    """The file of what launches kernels on a GPU."""
    carried = _carried.get(LAUNCHER)
    if isinstance(carried, Entry):
        return carried.blob
    from torch_max_backend.compile.program_libraries import launcher_job  # not needed for most

    return launcher_job(store_for(options)).done(CompileStats())[0]


def _restored(saved: SavedGraph) -> CompiledGraph:
    graph = CompiledGraph()
    graph.saved = saved
    return graph
