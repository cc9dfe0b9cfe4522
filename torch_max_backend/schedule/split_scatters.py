"""Sums of many elements at few places, on a GPU: threads add into copies of these places, and the copies are added up.

Atomic operations on one place wait for each other, and a sum of thousands of elements one by one rounds as often.
"""

from __future__ import annotations

import dataclasses

import torch

from torch_max_backend.loops.expr import Load, cast, constant
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.program import Call, Definition, Program, Reduction, Scatter
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.machine import Machine

CHAIN = 16
"""Elements that are added into a place one after the other, about as many."""
LEAST, MOST = 4, 512
"""Copies that are worth a kernel that adds them up, and as many as there are at most."""
HALF = (torch.bfloat16, torch.float16)


def split_scatters(program: Program, machine: Machine) -> Program:
    """Scatter sums into copies of the places they are for, if these are few.

    Before: ``t0[i:33] = x[i], then sum at [n[k]] over k:262144 of y[k]``. After: ``t0_parts[p:256, i:33] = 0, then sum
    at [k % 256, n[k]] over k:262144 of y[k]``, and ``t0[i:33] = x[i] + sum over p:256 of t0_parts[p, i]``.
    """
    if not machine.has_grid:
        return program
    steps: list[Definition | Call] = []
    for step in program.steps:
        count = _copies(step) if isinstance(step, Definition) else 0
        steps += _in_copies(step, count) if count and isinstance(step, Definition) else [step]
    return dataclasses.replace(program, steps=steps)


def _copies(d: Definition) -> int:
    """How many copies a scatter has of what it adds to; 0 if there is one as ever."""
    if not isinstance(d.how, Scatter) or d.how.combiner != "sum" or d.dtype is torch.bool:
        return 0
    if not all(isinstance(v.size, int) for v in (*d.variables, *d.how.variables)):
        return 0
    own = _own(d.how)
    updates = cost.count(v for v in d.how.variables if v not in own)
    places = cost.count(v for v, t in zip(d.variables, d.how.target, strict=True) if not _is_one_of(t, own))
    count = 1 << max(0, (updates // max(1, places) // CHAIN).bit_length() - 1)
    return 0 if count < LEAST else min(count, MOST)


def _own(how: Scatter) -> set[Var]:
    """The variables of which each value has places of its own."""
    return {v for v in how.variables if any(t == Index.of(v) for t in how.target)}


def _is_one_of(index: Index, variables: set[Var]) -> bool:
    return any(index == Index.of(v) for v in variables)


def _in_copies(d: Definition, count: int) -> list[Definition]:
    how = d.how
    assert isinstance(how, Scatter)
    wide = torch.float32 if d.dtype in HALF else d.dtype
    own, flat = _own(how), Index.of(0)
    for v in how.variables:
        if v not in own:
            flat = flat * v.size + Index.of(v)
    p = Var(f"{d.variables[0].name}s" if d.variables else "s", count)
    again = {v: Var(f"{v.name}s", v.size) for v in d.variables}
    target = (flat % count, *how.target)
    update = Scatter("sum", how.variables, target, cast(how.source, wide))
    name = f"{d.name}_copies"
    parts = Definition(name, wide, (p, *again.values()), constant(0, wide), update, d.where)
    places = tuple(map(Index.of, d.variables))
    q = Var(f"{p.name}q", count)
    total = Definition(
        f"{d.name}_total", wide, d.variables, Load(name, (Index.of(q), *places), wide), Reduction("sum", (q,)), d.where
    )
    added = cast(cast(d.body, wide) + Load(total.name, places, wide), d.dtype)
    return [parts, total, dataclasses.replace(d, body=added, how=None)]
