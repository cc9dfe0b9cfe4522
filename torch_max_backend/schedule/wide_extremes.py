"""Extremes of 16-bit floats are found in float32: processors compare those, and would convert them at every step.

Before: ``t0[i:64] = maximum over r:10 of x[i, r]``, in bfloat16.
After: ``t0[i:64] = maximum over r:10 of cast<f32>(x[i, r])``, which is rounded at the end. What is computed is rounded
first where a place is wanted, as in eager: of elements that are equal then, the first one's is found. The extreme alone
is the same if it is rounded afterwards, once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container

import torch

from torch_max_backend.loops.expr import cast, widened
from torch_max_backend.loops.program import Definition, Program, Reduction
from torch_max_backend.schedule.machine import Machine
from torch_max_backend.schedule.split import is_search, outline

EXTREMES = ("maximum", "minimum", "argmax", "argmin")


def wide_extremes(program: Program, machine: Machine) -> Program:
    """Reductions to an extreme, or to its place, with what they compare in float32; on a grid as they are."""
    if machine.has_grid:
        return program
    searched = {outline(d) for d in program.definitions() if is_search(d)}
    steps = [_wide(s, searched) if isinstance(s, Definition) else s for s in program.steps]
    return dataclasses.replace(program, steps=steps)


def _wide(d: Definition, searched: Container[object]) -> Definition:
    """A definition with its elements in float32, if it is such an extreme; ``searched`` are outlines of searches."""
    how = d.how
    if not isinstance(how, Reduction) or how.combiner not in EXTREMES:
        return d
    if d.body.dtype not in (torch.float16, torch.bfloat16):
        return d
    convert = widened if outline(d) in searched else cast
    return dataclasses.replace(d, body=convert(d.body, torch.float32))
