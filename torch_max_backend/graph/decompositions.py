"""Which ops AOTAutograd decomposes: torch's core table, less every overload that the registry handles itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._ops import OpOverload

from torch_max_backend.aten_functions.registry import aten_functions, registered_overloads

aten = torch.ops.aten


@functools.cache
def _core() -> dict[Any, Callable[..., Any]]:
    table = dict(core_aten_decompositions())
    table.update(get_decompositions([aten._scaled_dot_product_attention_math, aten._to_copy, aten._unsafe_index]))
    return table


def decomposition_table() -> dict[OpOverload, Callable[..., Any]]:
    """The table for AOTAutograd: a registered lowering, the user's included, wins over a decomposition."""
    kept = set(registered_overloads())
    assert aten_functions is not None
    return {op: rule for op, rule in _core().items() if op not in kept}
