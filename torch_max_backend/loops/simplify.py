"""Passes over loop programs: a program in, a program out."""

from __future__ import annotations

import dataclasses

from torch_max_backend.loops.expr import Const, cast
from torch_max_backend.loops.program import Call, Definition, Program, Reduction, reads


def without_dead_definitions(program: Program) -> Program:
    """Leave out what nothing reads and what does not leave."""
    wanted = {name for name, _ in program.outputs} | {source for _, source in program.stores}
    kept = []
    for step in reversed(program.steps):
        names = [r.name for r in step.results if r] if isinstance(step, Call) else [step.name]
        if wanted.isdisjoint(names):
            continue
        kept.append(step)
        wanted.update(reads(step))
    return dataclasses.replace(program, steps=kept[::-1])


def without_reductions_of_one(program: Program) -> Program:
    """Make plain loops of reductions over single elements.

    Before: ``t0[i] = sum over r:1 of x[i, 0]``. After: ``t0[i] = x[i, 0]``.
    """
    steps = [_plain(s) if isinstance(s, Definition) else s for s in program.steps]
    return dataclasses.replace(program, steps=steps)


def _plain(d: Definition) -> Definition:
    if not isinstance(d.how, Reduction) or any(v.size != 1 for v in d.how.variables):
        return d
    body = Const(0, d.dtype) if d.how.combiner.startswith("arg") else cast(d.body, d.dtype)
    return dataclasses.replace(d, body=body, how=None)
