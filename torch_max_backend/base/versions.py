"""Which versions of Python, torch and MAX this package works with, checked when the backend is first used."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import sys

from torch_max_backend.base.errors import EnvironmentUnsupportedError

REQUIRED = {"python": ">=3.11", "torch": ">=2.11", "max": ">=26.7,<26.8"}


def found() -> dict[str, str]:
    """The versions in this environment; a missing package has an empty one."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in ("torch", "max"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = ""
    return versions


def check_versions(versions: dict[str, str] | None = None) -> None:
    """Refuse an environment that this package was not made for.

    Raises:
        EnvironmentUnsupportedError: Names each version that is missing or outside of what is required.
    """
    wrong = [
        f"{name} {version or '(missing)'}, but needs {name} {REQUIRED[name]}"
        for name, version in (found() if versions is None else versions).items()
        if not version or not _satisfies(version, REQUIRED[name])
    ]
    if wrong:
        raise EnvironmentUnsupportedError(f"torch_max_backend found {'; '.join(wrong)}")


@functools.cache
def check_this_environment() -> None:
    """:func:`check_versions`, once. Another version of MAX may fail in ways that say less, so this comes first."""
    check_versions()


def _satisfies(version: str, required: str) -> bool:
    """Whether a version is in a range such as ``>=26.7,<26.8``; importing `packaging` for that takes 30 ms."""
    release = re.fullmatch(r"(\d+(?:\.\d+)*)(\+.*)?", version)
    if release is None:  # a pre-release has rules of its own
        from packaging.specifiers import SpecifierSet

        return SpecifierSet(required).contains(version, prereleases=True)
    found = _numbers(release[1])
    bounds = [(part.lstrip("<>="), part.startswith(">=")) for part in required.split(",")]
    return all((found >= _numbers(bound)) is least for bound, least in bounds)


def _numbers(release: str) -> tuple[int, ...]:
    numbers = [int(n) for n in release.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
