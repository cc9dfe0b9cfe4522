"""Small reductions over windows are written out, so that vectors run along the image and taps share what they read.

Before: ``t0[i:64] = maximum over r:3 of x[2*i + r]``.
After: ``t0[i:64] = maximum_so_far(maximum_so_far(x[2*i], x[2*i + 1]), x[2*i + 2])``.
"""

from __future__ import annotations

import dataclasses
import itertools

from torch_max_backend.loops.expr import FromIndex, Load, Scalar, cast, op, rewrite, walk
from torch_max_backend.loops.index import Atom, Index
from torch_max_backend.loops.program import Definition, Program, Reduction
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.machine import Machine

MOST, MOST_ON_A_GRID = 16, 25
"""Taps that are written out. A thread of a grid has a window for itself then, and finds the first of equal extremes."""
DEAREST = 800
"""The cost of a body with all taps written out, above which the source would be slow to compile."""
_COMBINE = {
    "sum": "add",
    "product": "mul",
    "maximum": "maximum",
    "minimum": "minimum",
    "any": "bit_or",
    "all": "bit_and",
}


def unroll_windows(program: Program, machine: Machine) -> Program:
    """Write out the taps of small windows: reductions that read a tensor at an index of an output and a tap."""
    most = MOST_ON_A_GRID if machine.has_grid else MOST
    steps = [_unrolled(s) if isinstance(s, Definition) and _is_window(s, most) else s for s in program.steps]
    return dataclasses.replace(program, steps=steps)


def _is_window(d: Definition, most: int) -> bool:
    how = d.how
    if not isinstance(how, Reduction) or how.combiner not in _COMBINE or not d.variables:
        return False
    taps = cost.count(how.variables)
    if not 1 < taps <= most or not all(isinstance(v.size, int) for v in how.variables):
        return False
    if taps * cost.of_expression(d.body) > DEAREST:
        return False
    own, reduced = {*d.variables}, {*how.variables}
    for x in walk(d.body):
        indices = x.index if isinstance(x, Load) else (x.index,) if isinstance(x, FromIndex) else ()
        if any(own & i.variables and reduced & i.variables for i in indices):
            return True
    return False


def _unrolled(d: Definition) -> Definition:
    assert isinstance(d.how, Reduction)
    combine, total = _COMBINE[d.how.combiner], None
    if d.body.dtype.is_floating_point:  # of zeros the first, whose sign a processor's own instruction may not keep
        combine = {"maximum": "maximum_so_far", "minimum": "minimum_so_far"}.get(combine, combine)
    for places in itertools.product(*(range(int(v.size)) for v in d.how.variables)):
        values: dict[Atom, Index] = {v: Index.of(k) for v, k in zip(d.how.variables, places, strict=True)}
        tap: Scalar = rewrite(d.body, values)
        total = tap if total is None else op(combine, total, tap)
    assert total is not None
    return dataclasses.replace(d, body=cast(total, d.dtype), how=None)
