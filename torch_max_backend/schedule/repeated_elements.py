"""What does not depend on a loop is computed once, and not for each of its iterations.

Before: ``for i:1024, j:512: t[i, j] = cos(p[i, j])``, where positions of one row are expanded to a batch, so that ``p``
has a stride of 0. After: ``for i:1, j:512: t[i, j] = cos(p[0, j])``, and what reads ``t[i, j]`` reads ``t[0, j]``. How
often an element is read decides later whether it is computed where it is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch_max_backend.loops.expr import Load, Scalar, variables
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.program import Call, Definition, Input, Program, Reduction, Step, reads
from torch_max_backend.schedule.split import rewritten


def without_repeated_elements(program: Program) -> Program:
    """The program without loops on which what they compute does not depend.

    What leaves, is written to an input or is read by a library has memory of its own, and stays.
    """
    kept = {name for name, _ in program.outputs} | {source for _, source in program.stores} | {*program.orders}
    kept |= {*program.rows} | {name for step in program.steps if isinstance(step, Call) for name in step.reads()}
    once = {x.name: places for x in program.inputs.values() if (places := _expanded(x))}
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Definition):
            step = _reading(step, once)
            places = () if step.name in kept or step.whole else _repeating(step)
            if places:
                once[step.name] = places
                step = _with_one(step, places)
        steps.append(step)
    return dataclasses.replace(program, steps=steps) if once else program


def _expanded(x: Input) -> tuple[int, ...]:
    """The positions of dimensions along which all elements are one."""
    return tuple(k for k, (n, step) in enumerate(zip(x.sizes, x.strides, strict=True)) if step == 0 and n != 1)


def _repeating(d: Definition) -> tuple[int, ...]:
    """The positions of loops on which neither what is computed depends nor what is reduced."""
    if not isinstance(d.how, Reduction | None):
        return ()
    needed = variables(d.body)
    for v in (*d.variables, *d.reduced):
        needed |= v.size.variables if isinstance(v.size, Index) else frozenset()
    return tuple(k for k, v in enumerate(d.variables) if v.size != 1 and v not in needed)


def _with_one(d: Definition, places: tuple[int, ...]) -> Definition:
    """The definition with one iteration of the loops at some positions."""
    own = tuple(Var(v.name, 1) if k in places else v for k, v in enumerate(d.variables))
    return dataclasses.replace(d, variables=own)


def _reading(d: Definition, once: Mapping[str, tuple[int, ...]]) -> Definition:
    if once.keys().isdisjoint(reads(d)):
        return d

    def load(x: Load) -> Scalar:
        places = once.get(x.source, ())
        return Load(x.source, tuple(Index.of(0) if k in places else i for k, i in enumerate(x.index)), x.dtype)

    return rewritten(d, {}, load)
