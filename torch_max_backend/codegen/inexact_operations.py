"""Which operations of a GPU kernel need not be exact: those on the way to results of 16 bits."""

from __future__ import annotations

import torch

from torch_max_backend.loops.expr import Op, Scalar, walk
from torch_max_backend.schedule.nest import Nest

_EXACT = ("floor", "ceil", "trunc", "round_even", "floor_div", "trunc_div", "remainder", "fmod")
_NEARLY = ("div", "exp", "sigmoid", "tanh")


def computed_nearly(nest: Nest) -> set[Scalar]:
    """Operations on float32 on the way to results of 16 bits only, where nothing on the way asks for exact numbers.

    They have a form that is fast, and right to 17 bits and more.
    """
    coarse: set[Scalar] = set()
    exact: set[Scalar] = set()
    for s in (s for stage in nest.stages for s in stage.statements):
        every = set(walk(*s.expressions))
        narrow = s.dtype in (torch.float16, torch.bfloat16)
        asks = any(isinstance(x, Op) and (x.name in _EXACT or not x.dtype.is_floating_point) for x in every)
        (coarse if narrow and not asks else exact).update(
            x for x in every if isinstance(x, Op) and x.name in _NEARLY and x.dtype is torch.float32
        )
    return coarse - exact
