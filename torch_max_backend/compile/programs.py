"""From regions to programs: loops, schedule, source, and a library from the store or from Mojo's compiler."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torch_max_backend.base.digests import cpu_target, digest, package_version
from torch_max_backend.base.errors import Unsupported
from torch_max_backend.base.target import elsewhere
from torch_max_backend.codegen.program_writer import WrittenProgram, write_program
from torch_max_backend.compile.cache.configured_store import store_for
from torch_max_backend.compile.mojo_build import build_shared_library, interface_digest
from torch_max_backend.compile.scratch_folder import ScratchFolder
from torch_max_backend.compile.stats import CompileStats
from torch_max_backend.loops.from_region import NodesWithoutLoopsError, program_of
from torch_max_backend.options import Options
from torch_max_backend.partition.region import Region
from torch_max_backend.runtime.program import LIBRARY, Library, load_library
from torch_max_backend.schedule.plan import schedule

log = logging.getLogger("torch_max_backend")


@dataclass(frozen=True)
class Program:
    """A region's program with its key in the store; ``key`` is empty if there is no kernel to compile."""

    written: WrittenProgram
    key: str


def runs_programs(options: Options) -> bool:
    """Whether regions may be programs: not where MAX's graph compiler is asked for, nor for a device elsewhere."""
    return options.executor != "graph" and elsewhere() is None


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
                program = program_of(region)
                plan = schedule(program)
                written = write_program(region, plan, _checked(region))
        except NodesWithoutLoopsError as limit:
            without_loops.update(limit.reasons)
            log.info("%d of the %d ops of a region are for MAX: %s", len(limit.reasons), region.compute_nodes, limit)
            continue
        except Unsupported as limit:
            log.info("a region of %d ops is for MAX: %s", region.compute_nodes, limit)
            continue
        except Exception as error:  # a mistake of ours, which must not stop the user's program
            if options.fallback == "error":
                raise
            log.warning("A region cannot be a program: %r. MAX compiles it instead.", error)
            continue
        log.debug("loops of region %d:\n%s\nschedule:\n%s\nkernels:\n%s", k, program, plan, written.source)
        found[k] = Program(written, _key(written.source) if written.source else "")
    return found


def _checked(region: Region) -> list[bool]:
    """Inputs whose strides may be others than were traced: what torch runs gives them, or a backward's caller."""
    return [_is_computed(port.node) for port in region.inputs]


def _is_computed(node: fx.Node) -> bool:
    return node.op == "call_function" or str(node.target).startswith("tangents")


def _key(source: str) -> str:
    parts = [source, interface_digest(), package_version("mojo-compiler"), cpu_target(), package_version("torch")]
    return digest("\n".join(parts))


def libraries_of(programs: Sequence[Program], options: Options, stats: CompileStats) -> list[Library | None]:
    """The libraries of programs, in order: from the store, or compiled now.

    Raises:
        CompileError: Mojo could not compile one.
    """
    return [_library(p, options, stats) for p in programs]


def _library(program: Program, options: Options, stats: CompileStats) -> Library | None:
    if not program.key:
        return None
    store = store_for(options)
    entry = store.get(program.key)
    if entry is not None:
        stats.hits += 1
        store.note_lookup(program.key, "hit")
        return load_library(entry.blob, entry.sha)
    with store.locked([program.key]):
        entry = store.get(program.key)
        if entry is None:
            start = time.perf_counter()
            built = build_shared_library(program.written.source, name="program", contract=False)
            seconds = time.perf_counter() - start
            stats.compile_s += seconds
            log.info("compiled %d kernels in %.2f s", program.written.spec.kernels, seconds)
            store.put(built, {program.key: LIBRARY}, {program.key: {"source": digest(program.written.source)}})
            entry = store.get(program.key)
            if entry is None:  # the store could not be written
                return load_library(_unsaved(program.key, built), program.key)
        return load_library(entry.blob, entry.sha)


@functools.cache
def _folder() -> ScratchFolder:
    return ScratchFolder()


def _unsaved(key: str, built: bytes) -> Path:
    path = _folder().path / f"{key}.so"
    if not path.exists():  # it may be loaded, and must not change then
        path.write_bytes(built)
    return path
