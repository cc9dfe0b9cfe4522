"""The cache key of a region: a list of named parts, each of which can be shown when a key misses."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path

from torch_max_backend.aten_functions.registry import aten_functions
from torch_max_backend.aten_functions.support.node_context import CodeSettings
from torch_max_backend.base.digests import PACKAGE, digest, digest_files, kernels_digest, package_version
from torch_max_backend.base.digests import cpu_target as cpu_target
from torch_max_backend.base.digests import key_of as key_of
from torch_max_backend.base.import_graph import import_closure, module_file
from torch_max_backend.capture.fake_tensors import tensors_of, value_of
from torch_max_backend.partition.region import Region


def key_parts(region: Region, settings: CodeSettings, target: str) -> dict[str, str]:
    """The named parts that decide what code a region becomes.

    Args:
        region: Its canonical text has ops, constants, symbolic shapes, dtypes and memory orders.
        settings: Torch's settings that change code.
        target: The architecture compiled for.
    """
    return {
        "region": digest(region.text),
        "settings": repr(settings),
        "target": target,
        "package": package_version("torch-max-backend"),
        "lowerings": lowering_digest(op_modules(region)),
        "kernels": _kernels_digest(region),
        "user_lowerings": _user_digest(region),
        "max": package_version("max"),
        "mojo": package_version("mojo-compiler"),
    }


_ROOTS = ("torch_max_backend.lowering.graph_builder", "torch_max_backend.compile.worker")
"""What every region passes through on its way to an artifact."""

_KERNEL_CALLS = "torch_max_backend.aten_functions.support.mojo_ops"


def op_modules(region: Region) -> frozenset[str]:
    """The modules that took part in registering the lowerings of the region's ops."""
    lowerings = (aten_functions.get(n.target) for n in region.nodes)
    return frozenset(m for low in lowerings if low is not None for m in low.modules)


@functools.cache
def lowering_digest(modules: frozenset[str], package: Path = PACKAGE) -> str:
    """Digest of all code that turns the ops of ``modules`` into MAX ops: its import closure, and no other family."""
    closure = import_closure({*_ROOTS, *modules}, package)
    return digest_files(f for m in closure if (f := module_file(m, package)) is not None)


def _kernels_digest(region: Region) -> str:
    """Digest of the Mojo kernels, if the region may call one.

    On a GPU the lowering walk itself may, elsewhere a family whose code reaches the calls, or a user's lowering.
    """
    on_gpu = any(t.device.type != "cpu" for n in region.nodes for t in tensors_of(value_of(n)))
    calls = on_gpu or region.updates or _KERNEL_CALLS in import_closure(op_modules(region)) or _user_digest(region)
    return kernels_digest() if calls else ""


def _user_digest(region: Region) -> str:
    """Digest of the lowerings in the region that users registered, by their source; empty if there are none."""
    sources = set()
    for node in region.nodes:
        lowering = aten_functions.get(node.target)
        if lowering is None or lowering.is_own:
            continue
        try:
            sources.add(f"{node.target}:{inspect.getsource(lowering.function)}")
        except (OSError, TypeError):  # defined in an interactive session: valid for this process only
            sources.add(f"{node.target}:{id(lowering.function)}")
    return digest("\n".join(sorted(sources))) if sources else ""
