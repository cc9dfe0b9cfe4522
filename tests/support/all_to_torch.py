"""The check that a test of a lowering is one: torch runs every op, and the test must fail.

``pytest --hand-all-to-torch`` makes an island of every node that MAX would run, in pytest's processes and in those that
tests start. A test then fails, unless its result does not depend on who runs the ops. Such a test says so, and why, by
``@pytest.mark.any_runner("reason")`` on itself or on its module, and must pass. ``tests/conftest.py`` expects that.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
STARTUP = Path(__file__).resolve().parent / "startup"
PARTITIONER = "torch_max_backend.partition.partitioner"


def hand_over(partitioner: ModuleType) -> None:
    """Let the partitioner take every node that MAX would run for an island."""
    classify, verdict, runner = partitioner.classify, partitioner.Verdict, partitioner.Runner

    def handed_over(*args: object) -> object:
        found = classify(*args)
        return verdict(runner.ISLAND, "all is handed to torch") if found.runner is runner.MAX else found

    partitioner.classify = handed_over


class _Finder(importlib.abc.MetaPathFinder):
    """Hands over when the partitioner is imported: some tests look at which programs import it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != PARTITIONER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def and_hand_over(module: ModuleType) -> None:
            execute(module)
            hand_over(module)

        spec.loader.exec_module = and_hand_over  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Hand over in this process and, by way of ``sitecustomize``, in every Python that it starts."""
    paths = [str(STARTUP), str(ROOT), *_search_path()]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    if PARTITIONER in sys.modules:
        hand_over(sys.modules[PARTITIONER])
    else:
        sys.meta_path.insert(0, _Finder())


def patience(seconds: float) -> float:
    """How long a test waits for what comes late, or never if torch runs everything."""
    return min(seconds, 10.0) if str(STARTUP) in _search_path() else seconds


def _search_path() -> list[str]:
    return [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
