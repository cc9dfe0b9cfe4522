"""The cache key of a region: a list of named parts, each of which can be shown when a key misses."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import platform
from collections.abc import Iterable
from pathlib import Path

from torch_max_backend.aten_functions.common import kernels_path
from torch_max_backend.aten_functions.context import CodeSettings
from torch_max_backend.aten_functions.registry import aten_functions
from torch_max_backend.graph.region import Region


def digest(data: bytes | str) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


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
        "lowerings": _lowering_digest(),
        "kernels": _kernels_digest(),
        "user_lowerings": _user_digest(region),
        "max": _version("max"),
        "mojo": _version("mojo-compiler"),
    }


def key_of(parts: dict[str, str]) -> str:
    """The key made of the parts."""
    return digest("\n".join(f"{k}={v}" for k, v in sorted(parts.items())))


@functools.cache
def cpu_target() -> str:
    """The host CPU by what compiled code depends on: architecture, model and instruction-set flags."""
    try:
        text = Path("/proc/cpuinfo").read_text()
        fields = dict(ln.split(":", 1) for ln in text.split("\n\n")[0].splitlines() if ":" in ln)
        chosen = {k.strip(): v.strip() for k, v in fields.items()}
        flags = chosen.get("flags") or chosen.get("Features", "")
        return f"{platform.machine()}-{digest(' '.join(sorted(flags.split())))[:16]}"
    except OSError:
        return f"{platform.machine()}-{digest(platform.processor())[:16]}"


@functools.cache
def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _digest_files(paths: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


@functools.cache
def _lowering_digest() -> str:
    """Digest of the code that turns nodes into MAX ops."""
    package = Path(__file__).resolve().parent.parent
    files = [*(package / "aten_functions").glob("*.py"), package / "compiler" / "lowering.py"]
    return _digest_files([*files, package / "compiler" / "dims.py"])


@functools.cache
def _kernels_digest() -> str:
    return _digest_files(kernels_path().rglob("*.mojo"))


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
