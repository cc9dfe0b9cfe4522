"""Tensors that are the same are computed once."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch_max_backend.loops.expr import Load, Scalar, loads, rewrite
from torch_max_backend.loops.index import Atom, Index, Var
from torch_max_backend.loops.program import Call, Definition, Program, Reduction, Ref, Step, reads
from torch_max_backend.schedule.split import rewritten


def without_equal_definitions(program: Program) -> Program:
    """Read the first of several loops that compute the same, such as the mask that each layer of a model makes.

    Before: ``t0[i] = mul(x[i], 2)``, ``t1[j] = mul(x[j], 2)``, ``t2[i] = add(t1[i], 1)``. After: ``t0`` and ``t2[i] =
    add(t0[i], 1)``. What leaves stays, since it has memory of its own, and so does what a library reads in another
    order.
    """
    leaving = {name for name, _ in program.outputs} | {source for _, source in program.stores}
    alike: dict[object, Definition] = {}
    first: dict[object, str] = {}
    same: dict[str, str] = {}
    steps: list[Step] = []
    for step in program.steps:
        step = _reading(step, same)
        if isinstance(step, Definition) and isinstance(step.how, Reduction | None) and step.name not in leaving:
            look = step.dtype, step.sizes, tuple(x.source for x in loads(step.body)), program.orders.get(step.name)
            other = alike.setdefault((look, program.rows.get(step.name)), step)
            if other is not step:  # few look alike, and only those are compared
                first.setdefault((look, _canonical(other)), other.name)
                known = first.setdefault((look, _canonical(step)), step.name)
                if known != step.name:
                    same[step.name] = known
                    continue
        steps.append(step)
    return dataclasses.replace(program, steps=steps)


def _canonical(d: Definition) -> object:
    """Sizes, body and reduction in terms of variables that are named by their positions."""
    names: dict[Atom, Index] = {}
    sizes: list[int | Index] = []
    for k, v in enumerate((*d.variables, *d.reduced)):
        sizes.append(v.size if isinstance(v.size, int) else v.size.substitute(names))
        names[v] = Index.of(Var(f"c{k}", sizes[-1]))
    return tuple(sizes), d.how.combiner if isinstance(d.how, Reduction) else "", rewrite(d.body, names)


def _reading(step: Step, same: dict[str, str]) -> Step:
    """A step that reads the first of what is the same."""
    if same.keys().isdisjoint(reads(step)):
        return step
    if isinstance(step, Call):
        kwargs = {k: _renamed(v, same) for k, v in step.kwargs.items()}
        args, holds = _renamed(step.args, same), tuple(same.get(name, name) for name in step.holds)
        return dataclasses.replace(step, args=args, kwargs=kwargs, holds=holds)

    def load(x: Load) -> Scalar:
        return Load(same[x.source], x.index, x.dtype) if x.source in same else x

    return rewritten(step, {}, load)


def _renamed(value: Any, same: dict[str, str]) -> Any:
    """Arguments of a call with other names of tensors."""
    if isinstance(value, Ref):
        return dataclasses.replace(value, name=same.get(value.name, value.name))
    if isinstance(value, list | tuple):
        return type(value)(_renamed(v, same) for v in value)
    return value
