"""Reversible patches of a model: modules compute the same in a form that compilers fuse well.

Enters: a module, and rules. Leaves: a handle with what was changed and the way back. It may import ``base/`` and torch,
and no library that a rule is about.
"""

from __future__ import annotations

from torch_max_backend.patching.handle import Change, Handle, Skipped, unpatch
from torch_max_backend.patching.patch import patch
from torch_max_backend.patching.rule import Rule
from torch_max_backend.patching.rules import RULES

__all__ = ["RULES", "Change", "Handle", "Rule", "Skipped", "patch", "unpatch"]
