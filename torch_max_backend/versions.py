"""Which versions of Python, torch and MAX this package works with, checked when the backend is first used."""

from __future__ import annotations

import importlib.metadata
import sys

from packaging.specifiers import SpecifierSet

from torch_max_backend.errors import EnvironmentUnsupportedError

REQUIRED = {"python": SpecifierSet(">=3.11"), "torch": SpecifierSet(">=2.11"), "max": SpecifierSet(">=26.7,<26.8")}


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
        if not version or not REQUIRED[name].contains(version, prereleases=True)
    ]
    if wrong:
        raise EnvironmentUnsupportedError(f"torch_max_backend found {'; '.join(wrong)}")
