"""The rules that the package comes with, a module for each family.

A library's class is known by its qualified name and its structure, so no library is imported. ``RULES`` is in order of
precedence: of several rules that fit a module, the first is applied.
"""

from __future__ import annotations

from torch_max_backend.patching.rules.activations import ACTIVATIONS
from torch_max_backend.patching.rules.losses import LOSSES
from torch_max_backend.patching.rules.mlps import MLPS
from torch_max_backend.patching.rules.norms import NORMS
from torch_max_backend.patching.rules.rotary import ROTARY

RULES = (*NORMS, *MLPS, *ROTARY, *ACTIVATIONS, *LOSSES)
