"""Programs of public ops in the store, so that another process calls an op without tracing anything.

What is kept is the call path and the keys of the kernels' libraries, under a digest of all that decides them. It takes
milliseconds to load, and imports neither Dynamo nor what compiles.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_max_backend.base.digests import cpu_target, digest, package_digest, package_version
from torch_max_backend.base.torch_logs import needs_traces
from torch_max_backend.compile.cache.configured_store import store_for
from torch_max_backend.options import Options
from torch_max_backend.runtime.call_path import Artifact, CallSpec
from torch_max_backend.runtime.program import LIBRARY, load_library

log = logging.getLogger("torch_max_backend")

FORMAT = "1"
GRAPH = "public op"
"""The name under which the store has a call path, where it has the name of a graph for others."""


@dataclass(frozen=True)
class OpProgram:
    """A program of an op, and the sizes that it is for.

    ``call`` takes what ``names`` stand for, in order, and then the tensors. ``guards`` must hold of these sizes, beside
    what a signature says: they are Python, and call the names ``s0``, ``s1`` and so on.
    """

    call: Callable[..., Any]
    names: tuple[str, ...]
    guards: tuple[str, ...]

    def holds(self, values: dict[str, int]) -> bool:
        """Whether the program is right for these sizes."""
        known = {f"s{k}": values[name] for k, name in enumerate(self.names)}
        return all(eval(guard, {}, known) for guard in self.guards)  # the text is ours: names, numbers and comparisons


def parts_of(op: str, signature: str, options: Options) -> dict[str, str]:
    """What decides which program an op has for a signature, by name."""
    return {
        "format": FORMAT,
        "op": op,
        "signature": signature,
        "package": package_digest(),
        "torch": torch.__version__,
        "mojo": package_version("mojo-compiler"),
        "cpu": cpu_target(),
        "profile": str(options.profile),
        "check_indices": str(options.check_indices),
    }


def _key(parts: dict[str, str]) -> str:
    return digest("\n".join(f"{name}={value}" for name, value in sorted(parts.items())))


def kept_program(parts: dict[str, str], options: Options) -> OpProgram | None:
    """The program that another process has kept, if all of it is in the store."""
    if not options.cache or needs_traces():
        return None
    store = store_for(options)
    entry = store.get(_key(parts))
    if entry is None:
        return None
    try:
        text, keys, names, guards = pickle.loads(entry.blob.read_bytes())
        libraries: list[Artifact] = []
        for key in keys:
            library = store.get(key) if key else None
            if key and (library is None or library.graph != LIBRARY):
                return None
            libraries.append(load_library(library.blob, library.sha) if library else None)
        call = CallSpec.loads(text).build(libraries)
    except Exception as error:  # whatever is wrong with what was kept, tracing again is the way out
        log.info("a program of %s is traced again: %s", parts["op"], error)
        return None
    return OpProgram(call.direct, names, guards)  # type: ignore[attr-defined]


def keep_program(parts: dict[str, str], options: Options, spec: bytes, keys: Sequence[str], program: OpProgram) -> None:
    """Keep a program for other processes; ``keys`` are those of its libraries."""
    if options.cache:
        content = pickle.dumps((spec, tuple(keys), program.names, program.guards))
        store_for(options).put(content, {_key(parts): GRAPH}, {_key(parts): parts})
