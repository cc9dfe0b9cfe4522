"""Which definitions are computed where they are read, instead of being written to memory."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping

from torch_max_backend.loops.expr import Load, Scalar, depth, loads, rewrite, rounded
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.program import Call, Definition, Program, Reduction, Scan, Scatter, Sort, Step
from torch_max_backend.loops.simplify import without_dead_definitions
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.kernel import Layout
from torch_max_backend.schedule.machine import CPU, Machine

DEEP = 4
"""Loads, from which on an element is kept for readers of as many elements, however few these are: else a chain of sums,
such as the residuals of a model's layers, is read again from its beginning by each of its readers."""

ACROSS = 8
"""Loads that a load takes which finds no neighbours in memory: a line for each element."""

TABLE = 1 << 14
"""Bytes that the nearest cache has, in whatever order they are read."""

DEEPEST = 100
"""Expressions inside each other, from which on a definition stays: passes and compilers descend into what it computes.
Readers in the same loops have it from a register."""


def inline(program: Program, machine: Machine = CPU, layouts: Mapping[str, Layout] | None = None) -> Program:
    """Replace loads of definitions that are cheap to repeat, or that are read once, by what they compute.

    Before: ``t0[i] = exp(x[i])``, ``t1[j] = mul(t0[j], 2)``. After: ``t1[j] = mul(exp(x[j]), 2)``. A definition stays
    if it leaves, if a library reads it, if it is no plain loop, if it is very deep, or if repeating it costs more than
    writing and reading. ``layouts`` say where tensors will lie, as far as is known.
    """
    layouts = layouts or {}
    kept = {name for name, _ in program.outputs} | {source for _, source in program.stores}
    readers: dict[str, list[Step]] = defaultdict(list)
    for step in program.steps:
        for name in _names(step):
            readers[name].append(step)
            if isinstance(step, Call):
                kept.add(name)
    bodies: dict[str, Definition] = {}
    sums = {s.name for s in program.steps if isinstance(s, Definition) and isinstance(s.how, Reduction)}
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Definition):
            step = substituted(step, bodies)
            price = _price(step, machine) + (ACROSS if _reads_across(step, layouts, machine) else 0)
            ends_sums = machine.has_grid and _ends_reductions(step, sums, readers[step.name])
            stays = step.how is not None or ends_sums or depth(step.body) > DEEPEST
            if not stays and _repeats(step, readers[step.name], price, step.name in kept, machine):
                bodies[step.name] = step
        steps.append(step)
    return without_dead_definitions(dataclasses.replace(program, steps=steps))


def _names(step: Step) -> list[str]:
    if isinstance(step, Call):
        return list(step.reads())
    return [x.source for x in step.loads]


def _price(d: Definition, machine: Machine) -> float:
    """What computing an element takes, in loads of one."""
    price = cost.of_repeated_on_a_gpu if machine.has_grid else cost.of_expression
    total = price(*d.expressions())
    read = len(d.loads)
    return read + (total - read) / machine.operations


def _reads_across(d: Definition, layouts: Mapping[str, Layout], machine: Machine) -> bool:
    """Whether no loop of ``d`` runs along memory in every tensor that it reads, or stays in one place there.

    One loop turns one of them in blocks. Several that compute ``d`` again would step over lines of memory in each.
    """
    if cost.iterations(d) < machine.turned:
        return False
    places = [(layouts[x.source].address(x.index), x.dtype.itemsize) for x in d.loads if x.source in layouts]
    several = [(i, width) for i, width in places if sum(v.size != 1 for v in i.variables) > 1]
    read = [i for i, width in several if cost.count(i.variables) * width > TABLE]
    along = {v for i in read for v in i.variables if v.size != 1 and i.coefficient(v) == 1}
    return len(along) > 1 and not any(all(i.stride(v) in (0, 1) for i in read) for v in along)


def _repeats(d: Definition, readers: list[Step], price: float, kept: bool, machine: Machine) -> bool:
    """Whether computing ``d`` where it is read is cheaper than reading it."""
    if not readers:
        return False
    here = cost.iterations(d)
    times = [_times_read(d, r) for r in readers if isinstance(r, Definition)]
    elsewhere = sum(times)
    in_order = any(isinstance(r, Definition) and isinstance(r.how, Scan | Scatter) for r in readers)
    if in_order and price > 4 and not (machine.has_grid and elsewhere <= here):
        return False
    if kept:  # what leaves is written anyway, and what joins its kernel has it from a register
        return price <= 3 and elsewhere <= 2 * here and len(d.loads) <= 1
    launch = machine.launch if price <= DEEP or max(times, default=0) > here else 0
    saved = 3 * here + 2 * elsewhere + launch  # written once, and read by each
    return max(0, elsewhere - here) * price <= saved


def _times_read(d: Definition, reader: Definition) -> int:
    """How many elements of ``d`` a definition reads."""
    if isinstance(reader.how, Scatter) and all(x.source != d.name for x in loads(reader.body)):
        return cost.count(reader.how.variables)
    return cost.iterations(reader)


def _ends_reductions(d: Definition, sums: set[str], readers: list[Step]) -> bool:
    """Whether ``d`` takes a reduction's results element by element and several elements read what it gives: it joins
    the reduction's kernel, and costs nothing there.
    """
    index = [Index.of(v) for v in d.variables if v.size != 1]
    taken = [x for x in loads(d.body) if x.source in sums]
    if not taken or not all([i for i in x.index if not i.is_constant] == index for x in taken):
        return False
    elsewhere = sum(cost.iterations(r) for r in readers if isinstance(r, Definition))
    return elsewhere > cost.iterations(d)


def substituted(d: Definition, bodies: dict[str, Definition]) -> Definition:
    """A definition with the loads of ``bodies`` replaced by what they compute."""
    if not any(x.source in bodies for x in d.loads):
        return d

    def load(x: Load) -> Scalar:
        body = bodies.get(x.source)
        if body is None:
            return x
        return rounded(at(body, x.index), body.dtype)

    def again(x: Scalar) -> Scalar:
        return rewrite(x, {}, load, done)

    done: dict[Scalar, Scalar] = {}
    how = d.how
    if isinstance(how, Scatter):
        how = dataclasses.replace(
            how, source=again(how.source), target=tuple(t.substitute({}, again) for t in how.target)
        )
    lines = dict.fromkeys(d.where.splitlines())
    for x in d.loads:
        if x.source in bodies:
            lines |= dict.fromkeys(bodies[x.source].where.splitlines())
    return dataclasses.replace(d, body=again(d.body), how=how, where="\n".join(lines))


def at(d: Definition, index: tuple[Index, ...]) -> Scalar:
    """What a plain definition computes at an index."""
    return rewrite(d.body, dict(zip(d.variables, index, strict=True)))


def renamed(d: Definition, names: dict[Var, Var]) -> Definition:
    """A definition with other variables."""
    if not names:
        return d
    values = {old: Index.of(new) for old, new in names.items()}
    for v in d.reduced:  # the length of a loop may depend on another's variable
        if isinstance(v.size, Index) and v.size.variables & names.keys():
            values[v] = Index.of(Var(v.name, v.size.substitute(values)))
    names = names | {v: a for v, new in values.items() if isinstance(a := new.terms[0][0], Var)}

    def again(variables: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(names.get(v, v) for v in variables)

    how = d.how
    if isinstance(how, Reduction):
        how = Reduction(how.combiner, again(how.variables))
    elif isinstance(how, Scan | Sort):
        how = dataclasses.replace(how, variable=names.get(how.variable, how.variable))
    elif isinstance(how, Scatter):
        target = tuple(t.substitute(values, lambda x: rewrite(x, values)) for t in how.target)
        how = Scatter(how.combiner, again(how.variables), target, rewrite(how.source, values))
    variables = again(d.variables)
    return dataclasses.replace(d, variables=variables, body=rewrite(d.body, values), how=how)
