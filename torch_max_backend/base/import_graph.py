"""Which modules of this package import which: what the cache key and the choice of tests are derived from.

Read from the source text by its import statements, wherever they stand in a file, so that nothing is imported. A test
holds it against the graph that the import contracts are checked on.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path

from torch_max_backend.base.digests import PACKAGE

_FROM = re.compile(r"^[ \t]*from ([\w.]+) import (\([^)]*\)|[^\n#]+)", re.MULTILINE)
_IMPORT = re.compile(r"^[ \t]*import ([\w., ]+)", re.MULTILINE)


def module_file(module: str, package: Path = PACKAGE) -> Path | None:
    """The source file of a module such as ``torch_max_backend.base.errors``; ``None`` if there is none."""
    path = package.joinpath(*module.split(".")[1:])
    return next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.is_file()), None)


@functools.cache
def imports_of(module: str, package: Path = PACKAGE) -> frozenset[str]:
    """The modules of the package that a module imports, by their full names."""
    file = module_file(module, package)
    if file is None:
        return frozenset()
    text, name = file.read_text(encoding="utf-8"), package.name
    named: set[str] = set()
    for source, names in _FROM.findall(text):
        for imported in re.findall(r"(\w+)(?:\s+as\s+\w+)?\s*(?:,|$|\)|\n)", names.strip("()\n ")):
            inner = f"{source}.{imported}"
            named.add(inner if source.startswith(name) and module_file(inner, package) else source)
    for names in _IMPORT.findall(text):
        named |= {part.split(" as ")[0].strip() for part in names.split(",")}
    return frozenset(m for m in named if m.partition(".")[0] == name and m != module)


def import_closure(modules: Iterable[str], package: Path = PACKAGE) -> frozenset[str]:
    """The modules and everything of the package that they import, directly or through each other."""
    found, stack = set(modules), list(modules)
    while stack:
        new = imports_of(stack.pop(), package) - found
        found |= new
        stack += new
    return frozenset(found)
