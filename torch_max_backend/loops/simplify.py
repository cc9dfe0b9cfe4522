"""Passes over loop programs: a program in, a program out."""

from __future__ import annotations

import dataclasses

from torch_max_backend.loops.program import Call, Program, reads


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
