"""Libraries of generated kernels in the store: what each depends on, and compiling those that are missing.

A warm start comes here for what launches kernels on a GPU, so neither MAX nor the rest of the pipeline is imported.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_max_backend.base.digests import cpu_target, digest, key_of, package_version
from torch_max_backend.base.target import elsewhere
from torch_max_backend.base.waiting import waiting
from torch_max_backend.compile.cache.store import Store
from torch_max_backend.compile.cuda_build import build_launcher
from torch_max_backend.compile.cuda_toolkit import toolkit_version
from torch_max_backend.compile.mojo_build import interface_digest
from torch_max_backend.compile.scratch_folder import ScratchFolder
from torch_max_backend.compile.stats import CompileStats
from torch_max_backend.runtime.cuda_launch import LAUNCHER, LAUNCHER_SOURCE

log = logging.getLogger("torch_max_backend")


def library_parts(source: str, arch: str = "") -> dict[str, str]:
    """The named parts that decide what a source becomes: for a GPU of an architecture, else for the processor.

    A GPU's kernels do not depend on the processor beside it.
    """
    own = {"source": digest(source), "interface": interface_digest(), "mojo": package_version("mojo-compiler")}
    if arch:
        return {**own, "target": f"cuda:{arch}", "toolkit": toolkit_version()}
    machine = elsewhere()
    host = machine.host if machine and machine.host else cpu_target()
    return {**own, "target": host, "torch": package_version("torch")}


@dataclass(frozen=True)
class LibraryJob:
    """A library that programs need.

    Args:
        made_of: The named parts of its key.
        graph: What it is, as the store has it for a graph's name.
        build: Gives its bytes.
        region: The region whose kernels it has; none for what launches kernels.
        kernels: How many it has.
    """

    made_of: dict[str, str]
    graph: str
    build: Callable[[], bytes]
    store: Store
    region: Any = None
    kernels: int = 0

    @functools.cached_property
    def key(self) -> str:
        """Its key in the store."""
        return key_of(self.made_of)

    @property
    def parts(self) -> dict[str, str]:
        """The named parts of its key, and the region's digest, by which the store finds what is nearest."""
        return {"region": digest(self.region.text) if self.region else self.graph, **self.made_of}

    def is_there(self) -> bool:
        """Whether the store has it."""
        return self.store.get(self.key) is not None

    def done(self, stats: CompileStats) -> tuple[Path, str]:
        """Its file and a digest of it: from the store, or compiled now.

        Raises:
            CompileError: It could not be compiled.
        """
        entry = self.store.get(self.key)
        if entry is not None:
            stats.hits += bool(self.kernels)
            self.store.note_lookup(self.key, "hit")
            return entry.blob, entry.sha
        with self.store.locked([self.key]):
            entry = self.store.get(self.key)
            if entry is None:
                parts = self.parts
                self.store.note_lookup(self.key, f"miss: {self.store.why_missing(parts)}")
                start = time.perf_counter()
                built = self._built()
                seconds = time.perf_counter() - start
                stats.compile_s += seconds
                log.info("compiled %d kernels in %.2f s", self.kernels, seconds)
                self.store.put(built, {self.key: self.graph}, {self.key: parts})
                entry = self.store.get(self.key)
                if entry is None:  # the store could not be written
                    return file_of(built, self.key), self.key
            return entry.blob, entry.sha

    def _built(self) -> bytes:
        what = f"{self.kernels} kernel(s)" if self.kernels else "what launches kernels"
        with waiting(f"Mojo compiles {what}"):
            return self.build()


def launcher_job(store: Store) -> LibraryJob:
    """What launches kernels on a GPU, which is the same for all programs."""
    machine = elsewhere()
    cpu = machine.cpu if machine else ""
    return LibraryJob(library_parts(LAUNCHER_SOURCE.read_text()), LAUNCHER, lambda: build_launcher(cpu), store)


@functools.cache
def _folder() -> ScratchFolder:
    return ScratchFolder()


def file_of(library: bytes, name: str) -> Path:
    """A file with a library that no store has; equal names are equal libraries."""
    path = _folder().path / f"{name}.so"
    if not path.exists():  # it may be loaded, and must not change then
        path.write_bytes(library)
    return path
