"""From regions to models: look in the store, lower what is missing, compile it in one go, load."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from max.engine import Model
from max.graph import Module

from torch_max_backend.aten_functions.context import CodeSettings
from torch_max_backend.compiler.key import key_of, key_parts
from torch_max_backend.compiler.lowering import build_graph, refuse_negative_numbers
from torch_max_backend.compiler.pool import is_closing, pool_for
from torch_max_backend.compiler.store import Store, default_folder
from torch_max_backend.diagnostics.progress import compiling
from torch_max_backend.errors import CompileError
from torch_max_backend.graph.region import Region
from torch_max_backend.graph.tensors import tensors_of, value_of
from torch_max_backend.options import Options
from torch_max_backend.runtime.session import load, target_for

log = logging.getLogger("torch_max_backend")


@dataclass
class CompileStats:
    """What compiling one FX graph did: regions, how many the store had, seconds in lowering and in MAX's compiler."""

    regions: int = 0
    hits: int = 0
    lower_s: float = 0.0
    compile_s: float = 0.0


@dataclass
class Job:
    """A region that must be compiled: its key, the parts of the key, and the target."""

    region: Region
    key: str
    parts: dict[str, str]
    devices: set[torch.device]
    settings: CodeSettings


def graph_names(jobs: list[Job]) -> dict[str, str]:
    """The name of each job's graph inside a module, by key.

    Names go by position: MAX's own cache takes modules that differ only in the names of their graphs as equal, and
    answers with the artifact it has, under the names that were used first.
    """
    return {job.key: f"region_{i}" for i, job in enumerate(jobs)}


@dataclass
class Batch:
    """Regions put off by :func:`compile_together`, by key."""

    jobs: dict[str, Job] = field(default_factory=dict)


_batch: Batch | None = None


@contextmanager
def compile_together(options: Options, graphs_per_module: int = 24) -> Iterator[Batch]:
    """Put off all compiles inside the block and run them as few large ones at its end.

    Compiled functions called inside the block run in eager. A compile has a fixed cost of about 9 s, so many small
    graphs in one module cost a fraction of compiling them one by one; tests and warm-up scripts use this.
    """
    global _batch
    _batch = Batch()
    try:
        yield _batch
        jobs = list(_batch.jobs.values())
    finally:
        _batch = None
    store = store_for(options)
    futures = []
    for start in range(0, len(jobs), graphs_per_module):
        part = jobs[start : start + graphs_per_module]
        futures.append((part, _submit(part, options)))
    for part, future in futures:
        try:
            artifact, _ = future.result()
            _save(store, artifact, part)
        except CompileError as error:
            log.warning("a batch of %d regions did not compile; each is tried alone. %s", len(part), error)
            _retry(part, store, options)


def _retry(jobs: list[Job], store: Store, options: Options) -> None:
    """Halve a batch that failed until the region at fault is alone."""
    if len(jobs) == 1:
        return
    for half in (jobs[: len(jobs) // 2], jobs[len(jobs) // 2 :]):
        try:
            artifact, _ = _submit(half, options).result()
            _save(store, artifact, half)
        except CompileError:
            _retry(half, store, options)


def is_batching() -> bool:
    """Whether compiles are being put off."""
    return _batch is not None


_stores: dict[Path, Store] = {}


def store_for(options: Options) -> Store:
    """The store of the options; without a cache, a folder that ends with the process."""
    if not options.cache:
        global _scratch
        _scratch = _scratch or tempfile.TemporaryDirectory(prefix="torch-max-backend-store-")
        folder = Path(_scratch.name)
    else:
        folder = Path(options.cache_dir).expanduser() if options.cache_dir else default_folder()
    store = _stores.setdefault(folder, Store(folder))
    store.limit = options.cache_limit * 1_000_000
    return store


_scratch: tempfile.TemporaryDirectory[str] | None = None


def code_settings() -> CodeSettings:
    """Torch's settings, as far as they change code."""
    return CodeSettings(torch.get_float32_matmul_precision())


def devices_of(region: Region) -> set[torch.device]:
    """All devices of a region's values."""
    values = [p.value for p in region.inputs] + [t for n in region.nodes for t in tensors_of(value_of(n))]
    return {v.device for v in values}


def compile_regions(regions: list[Region], options: Options) -> tuple[list[Model], CompileStats] | None:
    """Models for ``regions``, in order, from the store or the compiler; ``None`` if they were put off.

    Raises:
        NodeRefused: A lowering declined a node; nothing was compiled.
        CompileError: MAX could not compile.
    """
    found = _look_up(regions, options)
    missing, store = found.missing, found.store
    if missing:
        if _batch is not None:
            _dry_run(list(missing.values()))
            _batch.jobs.update(missing)
            return None
        with store.locked(missing):
            for key in list(missing):  # another process may have compiled it in the meantime
                model = _load(store, key)
                if model is not None:
                    found.models[key] = model
                    found.stats.hits += 1
                    del missing[key]
            if missing:
                found.models.update(_compile(list(missing.values()), store, options, found.stats))
    return found.in_order(), found.stats


Ready = Callable[[list[Model], CompileStats], None]
_pending: set[Future[None]] = set()


def compile_in_background(
    regions: list[Region], options: Options, ready: Ready
) -> tuple[list[Model], CompileStats] | None:
    """Models for ``regions`` if the store has all of them; otherwise ``None``, and ``ready`` is called with them later.

    Lowering is done here and now. ``ready`` runs in another thread; a failure of the compiler is logged once.

    Raises:
        NodeRefused: A lowering declined a node; nothing was compiled.
    """
    found = _look_up(regions, options)
    if not found.missing:
        return found.in_order(), found.stats
    jobs = list(found.missing.values())
    start = time.perf_counter()
    future = _submit(jobs, options)
    found.stats.lower_s += time.perf_counter() - start
    done: Future[None] = Future()
    _pending.add(done)

    def finish(compiled: Future[tuple[bytes, float]]) -> None:
        try:
            artifact, seconds = compiled.result()
            found.stats.compile_s += seconds
            found.models.update(_loaded(artifact, jobs, found.store))
            ready(found.in_order(), found.stats)
        except CancelledError:
            pass  # the program ends
        except Exception as error:  # nobody waits for this thread: whatever went wrong is said here
            if not is_closing():
                log.warning("compiling in the background failed, the function stays in eager: %s", error)
        finally:
            _pending.discard(done)
            done.set_result(None)

    future.add_done_callback(finish)
    return None


def wait_for_compiles(timeout: float | None = None) -> bool:
    """Wait until nothing is compiled in the background any more, at most ``timeout`` seconds; whether that is so."""
    return not wait(list(_pending), timeout).not_done


@dataclass
class Lookup:
    """What the store has for a graph's regions: a job per region in order, models and missing jobs by key."""

    store: Store
    stats: CompileStats
    jobs: list[Job] = field(default_factory=list)
    models: dict[str, Model] = field(default_factory=dict)
    missing: dict[str, Job] = field(default_factory=dict)

    def in_order(self) -> list[Model]:
        """The models of the regions, once none is missing."""
        return [self.models[job.key] for job in self.jobs]


def _look_up(regions: list[Region], options: Options) -> Lookup:
    store, settings = store_for(options), code_settings()
    found = Lookup(store, CompileStats(len(regions)))
    for region in regions:
        refuse_negative_numbers(region)
        devices = devices_of(region)
        parts = key_parts(region, settings, target_for(devices)[1])
        found.jobs.append(Job(region, key_of(parts), parts, devices, settings))
    for job in found.jobs:
        model = _load(store, job.key)
        if model is None:
            found.missing[job.key] = job
            if not is_batching():  # the reason is for people, and takes reading every entry
                reason = store.why_missing(job.parts)
                log.info("not in the cache: %s", reason)
                store.note_lookup(job.key, f"miss: {reason}")
        else:
            found.models[job.key] = model
            found.stats.hits += 1
            store.note_lookup(job.key, "hit")
    return found


def _load(store: Store, key: str) -> Model | None:
    entry = store.get(key)
    if entry is None:
        return None
    try:
        return load(entry.blob, entry.sha)[entry.graph]
    except Exception as error:  # the engine raises several types for files it does not accept
        log.warning("cache entry %s cannot be loaded (%s): compiling again", entry.blob, error)
        return None


def _dry_run(jobs: list[Job]) -> None:
    """Lower without compiling, so that a refused node is known before the batch is."""
    for job in jobs:
        build_graph(job.region, "region_0", Module(), job.settings)


def _submit(jobs: list[Job], options: Options):  # type: ignore[no-untyped-def]
    module, extensions, names = Module(), {}, graph_names(jobs)
    for job in jobs:
        graph = build_graph(job.region, names[job.key], module, job.settings)
        extensions.update(dict.fromkeys(graph.kernel_libraries_paths))
    target = target_for(set().union(*(job.devices for job in jobs)))[0]
    return pool_for(target, options.compile_workers).submit(module, list(extensions))


def _save(store: Store, artifact: bytes, jobs: list[Job]) -> None:
    store.put(artifact, graph_names(jobs), {j.key: j.parts for j in jobs})


def _compile(jobs: list[Job], store: Store, options: Options, stats: CompileStats) -> dict[str, Model]:
    start = time.perf_counter()
    future = _submit(jobs, options)
    stats.lower_s += time.perf_counter() - start
    nodes = sum(j.region.compute_nodes for j in jobs)
    with compiling(f"{len(jobs)} region(s), {nodes} ops"):
        artifact, seconds = future.result()
    stats.compile_s += seconds
    log.info("compiled in %.1f s", seconds)
    return _loaded(artifact, jobs, store)


def _loaded(artifact: bytes, jobs: list[Job], store: Store) -> dict[str, Model]:
    """Save a new artifact and load its models, by key."""
    _save(store, artifact, jobs)
    models = {job.key: _load(store, job.key) for job in jobs}
    if all(m is not None for m in models.values()):
        return models
    with tempfile.NamedTemporaryFile(suffix=".mef") as file:  # the store could not be written
        file.write(artifact)
        file.flush()
        loaded = load(Path(file.name), f"unsaved-{jobs[0].key}")
    return {key: loaded[name] for key, name in graph_names(jobs).items()}
