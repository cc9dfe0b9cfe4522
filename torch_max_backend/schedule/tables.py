"""What depends on one loop alone, and on no tensor, is computed once: a table that the other loops read.

Places and weights of an interpolation, which are the same for all images, take longer than the interpolation itself.

Before: ``t0[n:64, i:32] = x[n, floor(0.48 * i)] * (0.48 * i - floor(0.48 * i))``.
After: ``t0_0[i:32] = floor(0.48 * i)``, ``t0_1[i:32] = 0.48 * i - floor(0.48 * i)``, and
``t0[n:64, i:32] = x[n, t0_0[i]] * t0_1[i]``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from math import isfinite

import torch

from torch_max_backend.loops.expr import (
    Checked,
    Const,
    FromIndex,
    Load,
    Scalar,
    as_index,
    from_index,
    inside,
    rewrite,
    variables,
    walk,
)
from torch_max_backend.loops.index import Computed, Index, Var
from torch_max_backend.loops.program import Call, Definition, Program, Scan, Scatter
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.kernel import Layout
from torch_max_backend.schedule.machine import Machine

DEAR = 5
"""The cost of an expression that is worth a table: more than reading it."""
TIMES, MOST = 64, 8
"""How often each element of a table is read, at least, and tables of one definition."""


def tables(program: Program, layouts: Mapping[str, Layout], machine: Machine) -> Program:
    """Definitions with tables for what is dear and depends on the one variable along which memory runs.

    What depends on another one is computed once for each of its iterations as it is. Threads of a grid have no such
    loops around others, and compute such things beside their loads.
    """
    if machine.has_grid:
        return program
    steps: list[Definition | Call] = []
    for step in program.steps:
        v = _fastest(step, layouts) if isinstance(step, Definition) else None
        steps += [step] if v is None else _with_tables(step, v)  # type: ignore[arg-type]
    return dataclasses.replace(program, steps=steps)


def _fastest(d: Definition, layouts: Mapping[str, Layout]) -> Var | None:
    """The variable along which the definition's elements are neighbours, if the others repeat its values."""
    if isinstance(d.how, Scan | Scatter) or not all(isinstance(v.size, int) for v in (*d.variables, *d.reduced)):
        return None
    for v, stride in zip(d.variables, layouts[d.name].strides, strict=True):
        if stride == 1 and v.size != 1:
            return v if cost.iterations(d) >= TIMES * cost.count([v]) else None
    return None


def _with_tables(d: Definition, v: Var) -> list[Definition]:
    """The definition, behind the tables that it reads."""
    found = list(dict.fromkeys(_dear(d.body, v, set())))
    if not 0 < len(found) <= MOST:
        return [d]
    before: list[Definition] = []
    values: dict[Scalar, Scalar] = {}
    for k, x in enumerate(found):
        w = Var(f"{v.name}t{k}", v.size)
        before.append(Definition(f"{d.name}_{k}", x.dtype, (w,), rewrite(x, {v: Index.of(w)}), where=d.where))
        values[x] = Load(before[-1].name, (Index.of(v),), x.dtype)

    def place(i: Index) -> Index:
        x = from_index(i)
        return as_index(values[x], *map(int, i.bounds)) if x in values else i

    def load(x: Load) -> Load:
        return Load(x.source, tuple(map(place, x.index)), x.dtype)

    return [*before, dataclasses.replace(d, body=rewrite(d.body, {}, load, dict(values)))]


def _dear(x: Scalar, v: Var, seen: set[Scalar]) -> Iterator[Scalar]:
    """The largest expressions that depend on ``v`` alone and cost much, and computed places in tensors."""
    if x in seen or isinstance(x, Const):
        return
    seen.add(x)
    plain = not isinstance(x, FromIndex | Load) and x.dtype is not torch.bool  # loops are cut at conditions
    if plain and _is_of(x, v) and cost.of_expression(x) >= DEAR:
        yield x
        return
    places: list[Scalar] = []
    if isinstance(x, Load):
        computed = [
            i for i in x.index if any(isinstance(a, Computed) for a in i.atoms) and all(map(isfinite, i.bounds))
        ]
        places = [y for y in map(from_index, computed) if _is_of(y, v)]
        yield from places
    for y in inside(x):
        if not any(y in inside(place) for place in places):
            yield from _dear(y, v, seen)


def _is_of(x: Scalar, v: Var) -> bool:
    """Whether an expression depends on a loop alone, and on no tensor."""
    return variables(x) == {v} and not any(isinstance(y, Load | Checked) for y in walk(x))
