"""Composite ops that are lowered whole: those of users, and attention on a GPU.

Torch takes a composite op (``aten.linear``) apart while it records gradients, before a decomposition table is asked.
For the length of a trace this is switched off for the composites that are wanted, the way ``torch.export`` does.

Torch takes attention with a mask apart into products of float32 in many cases in which a fused kernel could compute it,
and repeats keys that several heads share.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._ops import OpOverload


def users_composites() -> list[OpOverload]:
    """Composite overloads that a user registered a lowering of, by name."""
    registry = sys.modules.get("torch_max_backend.aten_functions.registry")
    if registry is None:  # nothing can have been registered
        return []
    users = [low.overload for low in registry.aten_functions.lowerings.values() if not low.is_own]
    return sorted((op for op in users if isinstance(op, OpOverload) and can_stay_whole(op)), key=str)


OWN_ON_GPUS = (torch.ops.aten.scaled_dot_product_attention.default,)
"""Composites that this backend lowers whole, on a GPU and without gradients."""


def can_stay_whole(op: OpOverload) -> bool:
    """Whether ``op`` is a composite and gives no views of its inputs: torch must see what a view consists of."""
    return op._can_decompose() and not any(a.alias_info for a in op._schema.arguments)


def stay_whole(inputs: Sequence[Any]) -> AbstractContextManager[None]:
    """Keep torch from taking apart the composites that a user lowers, while AOTAutograd traces inside the block.

    Where the graph records gradients they are taken apart, with a warning: torch knows derivatives of the parts alone.
    """
    records = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
    composites = users_composites()
    if composites and records:
        names = ", ".join(map(str, composites))
        warnings.warn(
            f"your lowering of {names} is not used in a graph that records gradients: torch has derivatives only of "
            "the ops that a composite op consists of. Call the function under torch.no_grad(), or lower these ops.",
            stacklevel=2,
        )
    if any(isinstance(x, torch.Tensor) and x.is_cuda for x in inputs):
        composites += [op for op in OWN_ON_GPUS if op not in composites]
    if records or not composites:
        return nullcontext()
    from torch.export.exported_program import _override_composite_implicit_decomp

    return _override_composite_implicit_decomp(dict.fromkeys(composites, _whole))


def _whole(*args: Any, **kwargs: Any) -> Any:
    """What torch asks of an op that shall not be taken apart."""
    return NotImplemented
