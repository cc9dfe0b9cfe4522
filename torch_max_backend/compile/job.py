"""Regions on their way to the compiler: jobs, and modules lowered from them."""

from __future__ import annotations

import logging
import re
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch
from max._mlir_context import in_default_mlir_context  # the default is entered in the thread that imports MAX alone
from max.graph import Module
from torch.utils._python_dispatch import _disable_current_modes

from torch_max_backend.aten_functions.support.node_context import CodeSettings
from torch_max_backend.base.errors import CompileError
from torch_max_backend.base.target import Target
from torch_max_backend.capture.fake_tensors import tensors_of, value_of
from torch_max_backend.compile.cache.store import Store
from torch_max_backend.compile.progress import about_seconds, wait_for
from torch_max_backend.compile.worker_pool import pool_for, stop
from torch_max_backend.lowering.graph_builder import build_graph
from torch_max_backend.options import Options
from torch_max_backend.partition.region import Region
from torch_max_backend.runtime.session import target_for

log = logging.getLogger("torch_max_backend")


@dataclass
class Job:
    """A region that must be compiled: its key, the parts of the key, the store that gets it."""

    region: Region
    key: str
    parts: dict[str, str]
    devices: set[torch.device]
    settings: CodeSettings
    store: Store


@dataclass(frozen=True)
class Lowered:
    """A module made of several jobs, in a form that another process compiles."""

    jobs: list[Job]
    target: Target
    bytecode: bytes
    extensions: list[Path]

    def describe(self) -> str:
        """What is in it, for people."""
        return f"{len(self.jobs)} region(s), {sum(j.region.compute_nodes for j in self.jobs)} ops"

    def kinds(self) -> int:
        """How many different ops it has: equal ones of equal shapes cost the compiler little after the first."""
        lines = (line for job in self.jobs for line in job.region.text.splitlines() if line.startswith("n"))
        return len({re.sub(r"\b[in]\d+\b", "_", line) for line in lines})


def devices_of(region: Region) -> set[torch.device]:
    """All devices of a region's values."""
    values = [p.value for p in region.inputs] + [t for n in region.nodes for t in tensors_of(value_of(n))]
    return {v.device for v in values}


def graph_names(jobs: list[Job]) -> dict[str, str]:
    """The name of each job's graph inside a module, by key.

    Names go by position: MAX's own cache takes modules that differ only in the names of their graphs as equal, and
    answers with the artifact it has, under the names that were used first.
    """
    return {job.key: f"region_{i}" for i, job in enumerate(jobs)}


@in_default_mlir_context
def dry_run(jobs: list[Job]) -> None:
    """Lower without compiling, so that a refused node is known before the batch is."""
    with _disable_current_modes():  # lowerings compute constants with torch
        for job in jobs:
            build_graph(job.region, "region_0", Module(), job.settings)


@in_default_mlir_context
def lower(jobs: list[Job]) -> Lowered:
    """Build the MAX graphs of all jobs.

    Raises:
        NodeRefused: A lowering declined a node.
    """
    module, extensions, names = Module(), {}, graph_names(jobs)
    with _disable_current_modes():
        for job in jobs:
            graph = build_graph(job.region, names[job.key], module, job.settings)
            extensions.update(dict.fromkeys(graph.kernel_libraries_paths))
    target = target_for(set().union(*(job.devices for job in jobs)))[0]
    return Lowered(jobs, target, module.mlir_module.bytecode, list(extensions))


def submit(lowered: Lowered, options: Options) -> Future[tuple[bytes, float]]:
    """Give a module to the workers."""
    return pool_for(lowered.target, options.compile_workers).submit(lowered.bytecode, lowered.extensions)


def result(
    lowered: Lowered, future: Future[tuple[bytes, float]], options: Options, show: bool = True
) -> tuple[bytes, float]:
    """Wait for a module's artifact and note how long the compiler took. Who stops waiting stops the compile.

    Args:
        show: Whether the user waits and is shown so.

    Raises:
        CompileError: MAX could not compile it.
    """
    store, kinds = lowered.jobs[0].store, lowered.kinds()
    try:
        about = about_seconds(store.compiles(), kinds, lowered.target.api)
        artifact, seconds = wait_for(future, lowered.describe(), about, show)
    except CompileError:
        raise
    except BaseException:
        stop(future)
        raise
    store.note_compile(seconds, kinds, lowered.target.api)
    log.info("compiled in %.1f s", seconds)
    return artifact, seconds


def save(artifact: bytes, jobs: list[Job]) -> None:
    """Put a new artifact into the stores of its jobs."""
    names = graph_names(jobs)
    for store in {id(job.store): job.store for job in jobs}.values():
        mine = [job for job in jobs if job.store is store]
        store.put(artifact, {j.key: names[j.key] for j in mine}, {j.key: j.parts for j in mine})
