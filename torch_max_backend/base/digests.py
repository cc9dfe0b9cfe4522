"""Digests and names of what compiled code depends on. Imports neither torch nor MAX: a warm start needs this first."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def digest(data: bytes | str) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def key_of(parts: dict[str, str]) -> str:
    """The key in the store of what is made of named parts."""
    return digest("\n".join(f"{k}={v}" for k, v in sorted(parts.items())))


def digest_files(paths: Iterable[Path]) -> str:
    """Digest of the names, each with its folder's, and the bytes of files, in any order."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update("/".join(path.parts[-2:]).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def kernels_path() -> Path:
    """The folder of the Mojo package: beside the package in a checkout, inside it when installed from a wheel."""
    installed = PACKAGE / "_mojo_kernels"
    return installed if installed.is_dir() else PACKAGE.parent / "mojo_kernels"


@functools.cache
def kernels_digest() -> str:
    """Digest of all Mojo kernels."""
    return digest_files(kernels_path().rglob("*.mojo"))


@functools.cache
def package_digest() -> str:
    """Digest of all of this package's Python code."""
    return digest_files(PACKAGE.rglob("*.py"))


@functools.cache
def package_version(package: str) -> str:
    """The installed version of a package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@functools.cache
def cpu_target() -> str:
    """The host CPU by what compiled code depends on: architecture, model and instruction-set flags."""
    try:
        with open("/proc/cpuinfo") as file:  # one paragraph a core, all of them alike
            lines = []
            for line in file:
                if not line.strip():
                    break
                lines.append(line)
        fields = dict(ln.split(":", 1) for ln in lines if ":" in ln)
        chosen = {k.strip(): v.strip() for k, v in fields.items()}
        flags = chosen.get("flags") or chosen.get("Features", "")
        return f"{platform.machine()}-{digest(' '.join(sorted(flags.split())))[:16]}"
    except OSError:
        return f"{platform.machine()}-{digest(platform.processor())[:16]}"
