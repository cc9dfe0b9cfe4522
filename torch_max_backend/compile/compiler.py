"""From regions to models: look in the store, lower what is missing, compile it in one go, load."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from max.engine import Model

from torch_max_backend.aten_functions.support.node_context import CodeSettings
from torch_max_backend.base.errors import CompileError
from torch_max_backend.base.target import Target, elsewhere
from torch_max_backend.compile import speculative_backward
from torch_max_backend.compile.cache.configured_store import store_for as store_for
from torch_max_backend.compile.cache.key import key_of, key_parts
from torch_max_backend.compile.cache.store import Store
from torch_max_backend.compile.job import (
    Job,
    Lowered,
    devices_of,
    dry_run,
    graph_names,
    lower,
    result,
    save,
    submit,
)
from torch_max_backend.compile.pending import deferring, over, taking_over, under_way
from torch_max_backend.compile.program_libraries import LibraryJob
from torch_max_backend.compile.stats import CompileStats
from torch_max_backend.compile.worker_pool import is_closing, stop
from torch_max_backend.lowering.graph_builder import refuse_negative_numbers
from torch_max_backend.options import Options
from torch_max_backend.partition.index_checks import index_checks
from torch_max_backend.partition.region import Region
from torch_max_backend.runtime.session import load, target_for

log = logging.getLogger("torch_max_backend")


# -- putting compiles off ------------------------------------------------------------------------------------------
@dataclass
class Batch:
    """Regions that were put off: the missing ones by key, and every one that was looked up, with the answer.

    ``libraries`` are the missing ones of those that are programs, ``launchers`` what programs need beside them.
    """

    jobs: dict[str, Job] = field(default_factory=dict)
    libraries: dict[str, LibraryJob] = field(default_factory=dict)
    launchers: dict[str, LibraryJob] = field(default_factory=dict)
    looked_up: list[tuple[Job | LibraryJob, bool]] = field(default_factory=list)


_batch: Batch | None = None


@contextmanager
def put_off() -> Iterator[Batch]:
    """Compile nothing inside the block: functions with a region that the store lacks run in eager."""
    global _batch
    _batch = Batch()
    try:
        with deferring():
            yield _batch
    finally:
        _batch = None


@contextmanager
def compile_together(options: Options, graphs_per_module: int = 24) -> Iterator[Batch]:
    """Put off all compiles inside the block and run them as few large ones at its end.

    Compiled functions called inside the block run in eager. A compile has a fixed cost of about 9 s, so many small
    graphs in one module cost a fraction of compiling them one by one; tests and warm-up scripts use this.
    """
    with put_off() as batch:
        yield batch
    compile_batch(batch, options, graphs_per_module)


def put_off_libraries(libraries: list[LibraryJob], launchers: list[LibraryJob]) -> bool:
    """Put off the libraries of a graph's programs, if compiles are put off and one of them is missing.

    For a machine elsewhere they are put off in any case: they cannot be loaded here.
    """
    if _batch is None:
        return False
    missing = {}
    for job in libraries:
        there = job.is_there()
        _batch.looked_up.append((job, there))
        if not there:
            missing[job.key] = job
    _batch.libraries.update(missing)
    _batch.launchers.update({job.key: job for job in launchers})
    return bool(missing) or elsewhere() is not None


def compile_batch(batch: Batch, options: Options, graphs_per_module: int = 24) -> list[Job | LibraryJob]:
    """Compile what was put off, in few modules; returns the jobs that could not be compiled."""
    jobs, started = list(batch.jobs.values()), []
    for start in range(0, len(jobs), graphs_per_module):
        lowered = lower(jobs[start : start + graphs_per_module])
        started.append((lowered, submit(lowered, options)))
    failed: list[Job | LibraryJob] = []
    for library in [*batch.libraries.values(), *batch.launchers.values()]:
        try:
            library.done(CompileStats())
        except CompileError as error:
            log.warning("a program of generated kernels did not compile: %s", error)
            failed.append(library)
    for lowered, future in started:
        try:
            save(result(lowered, future, options)[0], lowered.jobs)
        except CompileError as error:
            count = len(lowered.jobs)
            log.warning("a batch of %d regions did not compile; each is tried alone. %s", count, error)
            failed += _retry(lowered.jobs, options)
    return failed


def _retry(jobs: list[Job], options: Options) -> list[Job]:
    """Halve a batch that failed until the regions at fault are alone; returns them."""
    if len(jobs) == 1:
        return jobs
    failed = []
    for half in (jobs[: len(jobs) // 2], jobs[len(jobs) // 2 :]):
        lowered = lower(half)
        try:
            save(result(lowered, submit(lowered, options), options)[0], half)
        except CompileError:
            failed += _retry(half, options)
    return failed


# -- while the caller waits ----------------------------------------------------------------------------------------
def compile_regions(
    regions: list[Region], options: Options, meanwhile: Callable[[], None] = lambda: None
) -> tuple[list[Model], CompileStats] | None:
    """Models for ``regions``, in order, from the store or the compiler; ``None`` if they were put off.

    All that are missing become one module; equal regions are one job.

    Args:
        meanwhile: Called once the compiler is at work, if it has anything to do.

    Raises:
        NodeRefused: A lowering declined a node; nothing was compiled.
        CompileError: MAX could not compile.
    """
    found = _look_up(regions, options)
    if _batch is not None and (found.missing or elsewhere()):
        dry_run(list(found.missing.values()))
        _batch.jobs.update(found.missing)
        return None
    if found.missing:
        speculative_backward.wait(found.missing)
        with found.store.locked(found.missing):
            found.take_over()
            if found.missing:
                start = time.perf_counter()
                lowered = lower(list(found.missing.values()))
                found.stats.lower_s += time.perf_counter() - start
                _compile(found, lowered, options, meanwhile=meanwhile)
    found.count_early()
    return found.in_order(), found.stats


def lower_only(regions: list[Region], options: Options) -> None:
    """Lower ``regions`` and forget the result.

    Raises:
        NodeRefused: A lowering declined a node.
    """
    store = store_for(options)
    dry_run([_job(region, store, options) for region in regions])


def compile_early(regions: list[Region], options: Options) -> None:
    """Have another process compile ``regions``, which the program will ask for soon.

    Raises:
        NodeRefused: A lowering declined a node; nothing is compiled.
    """
    store = store_for(options)
    jobs = {job.key: job for job in (_job(region, store, options) for region in regions) if store.get(job.key) is None}
    if jobs:
        speculative_backward.begin(list(jobs.values()))


# -- in the background ---------------------------------------------------------------------------------------------
Ready = Callable[[list[Model], CompileStats], None]


def compile_in_background(
    regions: list[Region], options: Options, ready: Ready
) -> tuple[list[Model], CompileStats] | None:
    """Models for ``regions`` if the store has all of them; otherwise ``None``, and ``ready`` is called with them later.

    Lowering is done here and now. Everything else, waiting for another process that compiles the same region included,
    is left to a thread, in which ``ready`` runs as well; a failure of the compiler is logged once.

    Raises:
        NodeRefused: A lowering declined a node; nothing was compiled.
    """
    found = _look_up(regions, options)
    if not found.missing:
        return found.in_order(), found.stats
    start = time.perf_counter()
    lowered = lower(list(found.missing.values()))
    found.stats.lower_s += time.perf_counter() - start
    done = under_way()

    def work() -> None:
        try:
            with found.store.locked(found.missing):
                found.take_over()
                if found.missing:
                    _compile(found, lowered, options, show=False)
            with taking_over:
                ready(found.in_order(), found.stats)
        except CancelledError:
            pass  # the program ends
        except Exception as error:  # nobody waits for this thread: whatever went wrong is said here
            if not is_closing():
                log.warning("compiling in the background failed, the function stays in eager: %s", error)
        finally:
            over(done)

    threading.Thread(target=work, name="max-background", daemon=True).start()
    return None


# -- look up, compile, load ----------------------------------------------------------------------------------------
@dataclass
class Lookup:
    """What the store has for a graph's regions: a job per region in order, models and missing jobs by key."""

    store: Store
    stats: CompileStats
    jobs: list[Job] = field(default_factory=list)
    models: dict[str, Model] = field(default_factory=dict)
    missing: dict[str, Job] = field(default_factory=dict)

    def take_over(self) -> None:
        """Load what is there by now: another process may have compiled it while this one waited for the lock."""
        for key in list(self.missing):
            model = _load(self.store, key)
            if model is not None:
                self.models[key] = model
                self.stats.hits += 1
                del self.missing[key]

    def count_early(self) -> None:
        """What was compiled early counts as compiled for whoever asks first, though the store has it by now."""
        seconds = speculative_backward.claim(self.stats.keys)
        self.stats.hits -= len(seconds)
        self.stats.compile_s += sum(seconds)

    def in_order(self) -> list[Model]:
        """The models of the regions, once none is missing."""
        return [self.models[job.key] for job in self.jobs]


def code_settings(region: Region, target: Target, options: Options) -> CodeSettings:
    """Torch's settings, the target and the options, as far as they change the code of a region."""
    return CodeSettings(
        torch.get_float32_matmul_precision(),
        target.api,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled(),
        options.check_indices and bool(index_checks(region).sites),
    )


def _job(region: Region, store: Store, options: Options) -> Job:
    refuse_negative_numbers(region)
    devices = devices_of(region)
    target, name = target_for(devices)
    settings = code_settings(region, target, options)
    parts = key_parts(region, settings, name)
    return Job(region, key_of(parts), parts, devices, settings, store)


def _look_up(regions: list[Region], options: Options) -> Lookup:
    store = store_for(options)
    found = Lookup(store, CompileStats(len(regions)))
    for region in regions:
        found.jobs.append(_job(region, store, options))
        found.stats.keys.append(found.jobs[-1].key)
    for job in found.jobs:
        if _batch is not None:
            _batch.looked_up.append((job, _is_there(store, job.key, found)))
            if not _batch.looked_up[-1][1]:
                found.missing[job.key] = job
        elif job.key not in found.missing and not _is_there(store, job.key, found):
            found.missing[job.key] = job
            reason = store.why_missing(job.parts)
            log.info("not in the cache: %s", reason)
            store.note_lookup(job.key, f"miss: {reason}")
        elif job.key in found.models:
            store.note_lookup(job.key, "hit")
    return found


def _is_there(store: Store, key: str, found: Lookup) -> bool:
    """Whether the store has the region; loads it, unless it is for another machine."""
    if elsewhere() is not None:
        return store.get(key) is not None
    model = found.models.get(key) or _load(store, key)
    if model is None:
        return False
    found.models[key] = model
    found.stats.hits += 1
    return True


def _load(store: Store, key: str) -> Model | None:
    entry = store.get(key)
    if entry is None:
        return None
    try:
        return load(entry.blob, entry.sha)[entry.graph]
    except Exception as error:  # the engine raises several types for files it does not accept
        log.warning("cache entry %s cannot be loaded (%s): compiling again", entry.blob, error)
        return None


def _compile(
    found: Lookup,
    lowered: Lowered,
    options: Options,
    show: bool = True,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Compile a module, save it and load its models."""
    future = submit(lowered, options)
    try:
        meanwhile()
    except BaseException:
        stop(future)
        raise
    artifact, seconds = result(lowered, future, options, show)
    found.stats.compile_s += seconds
    with taking_over:
        save(artifact, lowered.jobs)
        models = {job.key: _load(found.store, job.key) for job in lowered.jobs}
        if any(m is None for m in models.values()):  # the store could not be written
            loaded = load(artifact, f"unsaved-{lowered.jobs[0].key}")
            models = {key: loaded[name] for key, name in graph_names(lowered.jobs).items()}
    found.models.update(models)
