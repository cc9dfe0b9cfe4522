"""Import this first where modules of the package must work without MAX: its ``__init__`` wants MAX, they do not."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

if importlib.util.find_spec("max") is None:
    package = types.ModuleType("torch_max_backend")
    package.__path__ = [str(Path(__file__).parents[2] / "torch_max_backend")]
    sys.modules.setdefault("torch_max_backend", package)
