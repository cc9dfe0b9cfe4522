"""Which operations of a GPU kernel need not be exact: those on the way to results of 16 bits."""

from __future__ import annotations

import torch

from torch_max_backend.loops.expr import Load, Op, Scalar, walk
from torch_max_backend.schedule.nest import Nest

_EXACT = ("floor", "ceil", "trunc", "round_even", "floor_div", "trunc_div", "remainder", "fmod")
_NEARLY = ("div", "exp", "sigmoid", "tanh")


def computed_nearly(nest: Nest) -> set[Scalar]:
    """Operations on float32 on the way to results of 16 bits only, where nothing on the way asks for exact numbers.

    They have a form that is fast, and right to 17 bits and more. What is kept between stages, such as a row's sum, is
    on the way to what is computed of it. Comparisons, and what becomes an integer, ask for exact numbers.
    """
    statements = [s for stage in nest.stages for s in stage.statements]
    exact: set[Scalar] = set()
    names: set[str] = set()
    """Results that must be exact."""
    for s in reversed(statements):  # readers first
        kept = s.address is None and s.place is None
        coarse = (s.dtype in (torch.float16, torch.bfloat16) or kept) and s.name not in names
        roots = [x for e in s.expressions for x in ([e] if not coarse or e is not s.body else _asking(e))]
        needed = set(walk(*roots))
        exact |= needed
        names |= {x.source for x in needed if isinstance(x, Load) and not x.index}
    every = {x for s in statements for x in walk(*s.expressions)}
    return {x for x in every - exact if isinstance(x, Op) and x.name in _NEARLY and x.dtype is torch.float32}


def _asking(root: Scalar) -> list[Scalar]:
    """The operations within an expression that ask for exact numbers."""
    return [x for x in walk(root) if isinstance(x, Op) and (x.name in _EXACT or not x.dtype.is_floating_point)]
