"""Lowerings of ATen ops, a module per family. Importing this package registers all of them."""

from __future__ import annotations

import importlib
import pkgutil
import sys

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
    try:
        importlib.import_module(f"{__name__}.{_module}")
    except Exception as error:  # TEMPORARY
        print(f"BROKEN {_module}: {type(error).__name__}: {error}", file=sys.stderr)
