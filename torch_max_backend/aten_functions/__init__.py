"""Lowerings of ATen ops: a folder a family, and ``support/`` for what registers nothing.

In: the arguments of one ATen node as ``max.graph`` values. Out: its results as ``max.graph`` values. May import
``base``; knows nothing of FX graphs, regions or the compiler. The registry loads the families on its first query, so
that importing it does not import MAX.
"""

from __future__ import annotations

import importlib
import pkgutil

_loaded = False


def load_families() -> None:
    """Import every module of every family, which registers its lowerings; once."""
    global _loaded
    if _loaded:
        return
    _loaded = True  # before the loop: a module may query the registry while it is imported
    for module in sorted(m.name for m in pkgutil.walk_packages(__path__, f"{__name__}.") if not m.ispkg):
        importlib.import_module(module)
