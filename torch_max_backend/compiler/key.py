"""The cache key of a region: a list of named parts, each of which can be shown when a key misses."""

from __future__ import annotations

import ast
import functools
import inspect
from pathlib import Path

from torch_max_backend.aten_functions.context import CodeSettings
from torch_max_backend.aten_functions.registry import aten_functions
from torch_max_backend.digests import cpu_target as cpu_target
from torch_max_backend.digests import digest, digest_files, kernels_digest, package_version
from torch_max_backend.graph.region import Region


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
        "lowerings": _lowering_digest(region),
        "kernels": _kernels_digest(region),
        "user_lowerings": _user_digest(region),
        "max": package_version("max"),
        "mojo": package_version("mojo-compiler"),
    }


def key_of(parts: dict[str, str]) -> str:
    """The key made of the parts."""
    return digest("\n".join(f"{k}={v}" for k, v in sorted(parts.items())))


_FAMILIES = Path(__file__).resolve().parent.parent / "aten_functions"


@functools.cache
def _modules_behind(name: str, package: Path = _FAMILIES) -> frozenset[str]:
    """A module of a package and those of it that it imports, directly or through each other."""
    found, stack = {name}, [name]
    while stack:
        for imported in _imports((package / f"{stack.pop()}.py").read_text(), package.name):
            known = imported in found or imported == "registry"  # registering changes no code
            if not known and (package / f"{imported}.py").exists():
                found.add(imported)
                stack.append(imported)
    return frozenset(found)


def _imports(source: str, package: str) -> set[str]:
    """Names of the modules of a package of ours that a source text imports."""
    prefix, found = f"torch_max_backend.{package}", set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(prefix):
            suffix = (node.module or "").removeprefix(prefix).lstrip(".")
            found |= {suffix} if suffix else {alias.name for alias in node.names}
    return found


def _modules_of(region: Region) -> set[str]:
    """The modules of ``aten_functions`` whose code decides what the region becomes."""
    lowerings = (aten_functions.get(n.target) for n in region.nodes)
    names = {m for low in lowerings if low is not None for m in low.modules}
    return {m for name in names for m in _modules_behind(name)}


def _lowering_digest(region: Region) -> str:
    """Digest of the code that turns the region's nodes into MAX ops; other families do not count."""
    return _digest_named(frozenset(_modules_of(region)))


@functools.cache
def _digest_named(modules: frozenset[str]) -> str:
    here = Path(__file__).parent
    compiler = [here / f"{name}.py" for name in sorted({*_modules_behind("lowering", here), "dims"})]
    return digest_files([*(_FAMILIES / f"{m}.py" for m in modules), *compiler])


def _kernels_digest(region: Region) -> str:
    """Digest of the Mojo kernels, if any family in the region may call one, or a user's lowering."""
    calls = region.updates or any(_calls_kernels(m) for m in _modules_of(region)) or _user_digest(region)
    return kernels_digest() if calls else ""


@functools.cache
def _calls_kernels(module: str) -> bool:
    return module != "common" and "mojo_op" in (_FAMILIES / f"{module}.py").read_text()


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
