"""From regions to programs: loops, schedule, source, and a library from the store or from Mojo's compiler."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torch_max_backend.base.errors import Unsupported
from torch_max_backend.base.target import architecture, elsewhere
from torch_max_backend.base.torch_logs import KERNELS, LOOPS, PERF_HINTS, SCHEDULE, show
from torch_max_backend.capture.freezing import OPAQUE
from torch_max_backend.codegen.grid_source import in_parts
from torch_max_backend.codegen.program_writer import WrittenProgram, write_program
from torch_max_backend.compile.cache.configured_store import store_for
from torch_max_backend.compile.compiler import put_off_libraries
from torch_max_backend.compile.cuda_build import build_cubin
from torch_max_backend.compile.mojo_build import build_shared_library
from torch_max_backend.compile.program_libraries import LibraryJob, launcher_job, library_parts
from torch_max_backend.compile.stats import CompileStats
from torch_max_backend.loops.build import program_of
from torch_max_backend.loops.from_region import NodesWithoutLoopsError, device_of
from torch_max_backend.loops.program import Program as LoopProgram
from torch_max_backend.options import Options
from torch_max_backend.partition.region import RESTRIDED, Region
from torch_max_backend.runtime.cuda_launch import CUBIN, packed
from torch_max_backend.runtime.grid_program import GridLibrary
from torch_max_backend.runtime.program import LIBRARY, Library, load_library
from torch_max_backend.schedule.machine import CPU, gpu_of
from torch_max_backend.schedule.plan import Schedule, schedule

log = logging.getLogger("torch_max_backend")

COMPILERS = 8
"""Of Mojo, at most, that compile the kernels of one program side by side: each takes some hundred MB."""


@dataclass(frozen=True)
class Program:
    """A region's program with the library that it needs, which is none if there is no kernel to compile.

    ``region`` is the region's position. Loops and schedule are for the log.
    """

    written: WrittenProgram
    library: LibraryJob | None
    region: int
    loops: LoopProgram
    schedule: Schedule
    arch: str = ""
    """The architecture of the GPU that it runs on; empty for a CPU."""

    @property
    def key(self) -> str:
        """The library's key in the store; empty without one."""
        return self.library.key if self.library else ""


def runs_programs(options: Options) -> bool:
    """Whether regions may be programs: not where MAX's graph compiler is asked for, nor for GPUs of another maker."""
    machine = elsewhere()
    return options.executor != "graph" and (machine is None or machine.api in ("", "cuda"))


def programs_of(
    regions: Sequence[Region], options: Options, without_loops: set[fx.Node] | None = None
) -> dict[int, Program]:
    """The programs of those regions that can be one, by position; the others are for MAX.

    Args:
        without_loops: Nodes that are known to have no loops, whose regions are for MAX. Those that are found are added.

    Raises:
        LoweringError: In strict mode, a rule broke torch's promise. Any other error is a mistake in this package.
    """
    if not runs_programs(options):
        return {}
    without_loops = set() if without_loops is None else without_loops
    found = {}
    for k, region in enumerate(regions):
        if not without_loops.isdisjoint(region.nodes):
            continue
        try:
            with unset_fake_temporarily():  # rules compute with tensors of their own
                device = device_of(region)
                program = program_of(region)
                if device.type == "cuda":
                    _for_gpu()
                gpu = (device.index or 0) if device.type == "cuda" else None
                arch = "" if gpu is None else architecture(gpu)
                plan = schedule(program, gpu_of(arch) if arch else CPU)
                written = write_program(region, plan, _checked(region), gpu, options.check_indices, options.profile)
        except NodesWithoutLoopsError as limit:
            without_loops.update(limit.reasons)
            _for_max(region, f"{len(limit.reasons)} of its ops have no loops: {limit}")
            continue
        except Unsupported as limit:
            _for_max(region, str(limit))
            continue
        except Exception as error:  # a mistake of ours, which must not stop the user's program
            if options.fallback == "error":
                raise
            log.warning("A region cannot be a program: %r. MAX compiles it instead.", error)
            continue
        found[k] = Program(written, _job(written, region, arch, options), k, program, plan, arch)
    return found


def _for_max(region: Region, reason: str) -> None:
    place = f" (from {region.begins_at()})" if region.begins_at() else ""
    log.info("a region of %d ops%s is for MAX: %s", region.compute_nodes, place, reason)
    hint = "MAX's graph compiler takes seconds for a region of %d ops%s, which cannot be generated kernels: %s"
    show(PERF_HINTS, hint, region.compute_nodes, place, reason)


def _for_gpu() -> None:
    """Raise ``Unsupported`` where kernels cannot be generated for the GPU."""
    if elsewhere() is None and torch.version.hip:
        raise Unsupported("kernels are generated for NVIDIA GPUs")


def _checked(region: Region) -> list[bool]:
    """Inputs whose strides may be others than were traced: what torch runs gives them, or a backward's caller."""
    return [_is_computed(port.node) for port in region.inputs]


def _is_computed(node: fx.Node) -> bool:
    if node.meta.get(OPAQUE):
        return False
    return node.op == "call_function" or str(node.target).startswith("tangents") or bool(node.meta.get(RESTRIDED))


def _job(written: WrittenProgram, region: Region, arch: str, options: Options) -> LibraryJob | None:
    """The library of a program's kernels, if it has any."""
    source = written.source
    if not source:
        return None

    machine = elsewhere()
    cpu = machine.cpu if machine else ""

    def for_cpu() -> bytes:
        return build_shared_library(source, name="program", contract=False, cpu=cpu)

    def for_gpu() -> bytes:
        def build(part: str) -> bytes:
            return build_cubin(
                part, arch=arch, threads=written.threads, clusters=written.clusters, resident=written.resident
            )

        parts = in_parts(source, min(COMPILERS, options.compile_workers or len(os.sched_getaffinity(0))))
        with ThreadPoolExecutor(len(parts)) as pool:
            return packed(list(pool.map(build, parts)))

    kind, build = (CUBIN, for_gpu) if arch else (LIBRARY, for_cpu)
    return LibraryJob(library_parts(source, arch), kind, build, store_for(options), region, written.spec.kernels)


def libraries_of(
    programs: Sequence[Program], options: Options, stats: CompileStats
) -> list[Library | GridLibrary | None] | None:
    """The libraries of programs, in order: from the store, or compiled now. None if they were put off.

    Raises:
        CompileError: Mojo could not compile one.
    """
    for program in programs:
        _log(program)
    jobs = [p.library for p in programs if p.library]
    launchers = [launcher_job(store_for(options))] if any(p.arch and p.library for p in programs) else []
    if put_off_libraries(jobs, launchers):
        return None
    return [_loaded(p, launchers, stats) for p in programs]


def _log(program: Program) -> None:
    """What ``TORCH_LOGS`` may ask for. Not where programs are made: a graph may be cut again after that."""
    k, written = program.region, program.written
    show(LOOPS, "loops of region %d:\n%s", k, program.loops)
    show(SCHEDULE, "schedule of region %d:\n%s", k, program.schedule)
    show(KERNELS, "kernels of region %d:\n%s\n%s", k, written.source, written.spec.source)


def _loaded(program: Program, launchers: Sequence[LibraryJob], stats: CompileStats) -> Library | GridLibrary | None:
    if program.library is None:
        return None
    path, sha = program.library.done(stats)
    if not program.arch:
        return load_library(path, sha)
    (launcher,) = launchers
    place = launcher.done(stats)[0]
    return GridLibrary(path.read_bytes(), sha, place, program.written.spec.gpus[0]) if elsewhere() is None else None
