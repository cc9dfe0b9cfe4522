"""Compiled ahead of time: ``torch.compile(...).aot_compile(...)`` gives a function that is saved with its artifacts.

Torch writes the file: guards, bytecode, and for the compiled function what :class:`AheadOfTimeFunction` gives it, which
is AOTAutograd's entry and the artifacts. So the file needs neither the store nor a compiler where it is loaded.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from torch_max_backend.base.digests import cpu_target, digest, package_version
from torch_max_backend.base.errors import SavedFunctionError
from torch_max_backend.compile.cache.configured_store import store_for
from torch_max_backend.compile.cache.store import Entry
from torch_max_backend.compile.program_libraries import file_of, launcher_job
from torch_max_backend.compile.stats import CompileStats
from torch_max_backend.frontend.compiled_graph import CompiledGraph, carry
from torch_max_backend.runtime.call_path import CallSpec
from torch_max_backend.runtime.cuda_launch import CUBIN, LAUNCHER
from torch_max_backend.runtime.program import LIBRARY
from torch_max_backend.runtime.region_spec import Model
from torch_max_backend.runtime.session import get_accelerators, load

try:
    from torch._dynamo.aot_compile_types import SerializableCallable
except ImportError:  # a torch that cannot compile ahead of time: nothing asks for the class
    SerializableCallable = object

MAGIC = b"torch_max_backend ahead of time 2\n"


class AheadOfTimeFunction(SerializableCallable):
    """A compiled function that torch can write to a file.

    Args:
        function: What AOTAutograd made; ``entry`` gives its entry, ready to be pickled.
    """

    def __init__(self, function: Callable[..., Any], entry: Callable[[], Any]) -> None:
        self.function, self.entry = function, entry

    @classmethod
    def of(cls, function: Any) -> AheadOfTimeFunction:
        """What AOTAutograd made, to be saved.

        Raises:
            SavedFunctionError: AOTAutograd keeps nothing, because the user switched its cache off.
        """
        if function.serialize is None:
            raise SavedFunctionError(
                "AOTAutograd keeps nothing that could be saved: is TORCHINDUCTOR_AUTOGRAD_CACHE=0 in the environment, "
                "or torch.compiler.config.force_disable_caches set?"
            )
        return cls(function, function.serialize)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @classmethod
    def serialize_compile_artifacts(cls, fn: AheadOfTimeFunction) -> bytes:
        """The function with everything it needs.

        Raises:
            SavedFunctionError: An artifact is not in the store, because it cannot be written or was cleared.
        """
        entry = fn.entry()
        regions: dict[str, tuple[str, str]] = {}
        artifacts: dict[str, bytes] = {}
        gpu, launcher = "", b""
        for graph in _graphs(entry):
            saved = graph.saved
            if saved is None:  # AOTAutograd would have refused it
                raise SavedFunctionError(f"the function cannot be saved: {graph.unsaved_because}")
            store = store_for(saved.options)
            for key in filter(None, saved.keys):
                found = store.get(key)
                if found is None:
                    raise SavedFunctionError(
                        f"the artifact of region {key[:12]}… is not in the cache {store.folder}, so the function "
                        "cannot be saved: is that folder writable?"
                    )
                regions[key] = (found.sha, found.graph)
                artifacts[found.sha] = found.blob.read_bytes()
                if found.graph == CUBIN:
                    launcher = launcher_job(store).done(CompileStats())[0].read_bytes()
            if any(region.gpus for region in CallSpec.loads(saved.spec).regions):
                gpu = _gpu()
        content = {
            "max": package_version("max"),
            "cpu": cpu_target(),
            "gpu": gpu,
            "regions": regions,
            "artifacts": artifacts,
            "launcher": launcher,
            "entry": pickle.dumps(entry),
        }
        data = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
        return MAGIC + hashlib.sha256(data).digest() + data

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> AheadOfTimeFunction:
        """Load what :meth:`serialize_compile_artifacts` wrote.

        Raises:
            SavedFunctionError: The data is damaged, or was made for another processor, GPU or version of MAX.
        """
        start = len(MAGIC) + 32
        if data[: len(MAGIC)] != MAGIC or hashlib.sha256(data[start:]).digest() != data[len(MAGIC) : start]:
            raise SavedFunctionError("the saved function is damaged, or was saved by another version of this package")
        content = pickle.loads(data[start:])
        _check(content)
        carry(
            {key: _carried(content["artifacts"][sha], sha, graph) for key, (sha, graph) in content["regions"].items()}
        )
        if launcher := content["launcher"]:
            carry({LAUNCHER: _carried(launcher, digest(launcher), LAUNCHER)})
        from torch._functorch._aot_autograd.aot_autograd_result import deserialize_bundled_cache_entry

        function = deserialize_bundled_cache_entry(pickle.loads(content["entry"]))
        return cls(function, lambda: pickle.loads(content["entry"]))


def _carried(artifact: bytes, sha: str, graph: str) -> Model | Entry:
    """A graph of an artifact, or the file of a library."""
    if graph in (LIBRARY, CUBIN, LAUNCHER):
        return Entry(file_of(artifact, sha), graph, sha)
    return load(artifact, sha)[graph]


def _check(content: dict[str, Any]) -> None:
    here = {"max": package_version("max"), "cpu": cpu_target(), "gpu": _gpu() if content["gpu"] else ""}
    names = {"max": "version of MAX", "cpu": "processor", "gpu": "GPU"}
    for part, name in names.items():
        if content[part] != here[part]:
            raise SavedFunctionError(
                f"the saved function was compiled for another {name} ({content[part]}) than there is here "
                f"({here[part]}): compile and save it again on a machine like this one"
            )


def _gpu() -> str:
    devices = get_accelerators()
    return f"{devices[0].api}:{devices[0].architecture_name}" if devices else "none"


def _graphs(entry: Any) -> Iterator[CompiledGraph]:
    """The compiled graphs in AOTAutograd's entry, forward first."""
    for part in (entry.compiled_fw, entry.compiled_bw):
        if part is not None:
            yield part.result
