"""Extremes of 16-bit floats are found in float32: processors compare those, and would convert them at every step.

Before: ``t0[i:64] = maximum over r:10 of x[i, r]``, in bfloat16.
After: ``t0[i:64] = maximum over r:10 of widen<f32>(x[i, r])``, which is rounded at the end, to itself. What is computed
is rounded first, as in eager: of elements that are equal then, the first one's place is found.
"""

from __future__ import annotations

import dataclasses

import torch

from torch_max_backend.loops.expr import widened
from torch_max_backend.loops.program import Definition, Program, Reduction
from torch_max_backend.schedule.machine import Machine

EXTREMES = ("maximum", "minimum", "argmax", "argmin")


def wide_extremes(program: Program, machine: Machine) -> Program:
    """Reductions to an extreme, or to its place, with what they compare in float32; on a grid as they are."""
    if machine.has_grid:
        return program
    steps = [_wide(s) if isinstance(s, Definition) else s for s in program.steps]
    return dataclasses.replace(program, steps=steps)


def _wide(d: Definition) -> Definition:
    how = d.how
    if not isinstance(how, Reduction) or how.combiner not in EXTREMES:
        return d
    is_short = d.body.dtype in (torch.float16, torch.bfloat16)
    return dataclasses.replace(d, body=widened(d.body, torch.float32)) if is_short else d
