"""On a CPU, short rows that are all combined with the same few elements, such as pixels of three channels with a weight
for each, are computed many at a time, in whole vectors.

Before: ``for a:100000``, in it ``for b:3: y[3*a + b] = x[3*a + b] * (w[b] + 1)``, in vectors of three lanes.
After: ``y_rows0[r:160, c:3] = w[c] + 1``, and ``for p:625``, in it ``for q:480: y[480*p + q] = x[480*p + q] *
y_rows0[q]``.

The first part is a pass of the program: ``y`` reads ``y_rows0[a % 160, b]``. The second one is a change of the loops,
since only loops over places in memory know of blocks that end within a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from torch_max_backend.loops.expr import (
    Checked,
    Const,
    FromIndex,
    Guarded,
    Load,
    Scalar,
    inside,
    rewrite,
    variables,
    walk,
)
from torch_max_backend.loops.index import Index, Mod, Var, remainder
from torch_max_backend.loops.program import Call, Definition, Program
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.kernel import Layout
from torch_max_backend.schedule.machine import Machine
from torch_max_backend.schedule.nest import LANES, Nest, StageNest, cut, indices, runs_on, substituted

BLOCK = 512
"""Elements of a block, about: as many as keep a loop busy, few enough to stay in the first cache."""
FILLED = 4
"""Rows are long enough for vectors of their own where less than a quarter of their length would be empty lanes."""
TIMES, MOST = 16, 8
"""Blocks that there must be for each that is repeated, and repeated expressions of one definition, at most."""


def repeated_rows(program: Program, layouts: Mapping[str, Layout], machine: Machine) -> Program:
    """The program in which elementwise definitions over short rows read what all rows need from rows side by side."""
    if machine.has_grid:
        return program
    steps: list[Definition | Call] = []
    for step in program.steps:
        steps += _with_rows(step, layouts) if isinstance(step, Definition) else [step]
    return program if len(steps) == len(program.steps) else dataclasses.replace(program, steps=steps)


def _with_rows(d: Definition, layouts: Mapping[str, Layout]) -> list[Definition]:
    """The definition, behind the rows that it reads."""
    if d.how is not None or not all(isinstance(v.size, int) for v in d.variables):
        return [d]
    steps = {v: s.constant for v, s in zip(d.variables, layouts[d.name].strides, strict=True) if v.size != 1}
    b = next((v for v, step in steps.items() if step == 1), None)
    if b is None or b.size == 0 or FILLED * (-cost.count([b]) % LANES) < cost.count([b]):
        return [d]
    around = _variables_beside(d, b, steps, layouts)
    rows = None if around is None else _dense(steps, b, around)
    width = cost.count([b])
    count = LANES * max(1, BLOCK // (LANES * width))
    if around is None or rows is None or cost.count(rows) < TIMES * count:
        return [d]
    found = list(dict.fromkeys(_repeated(d.body, frozenset({b, *around}), b, set())))
    if not 0 < len(found) <= MOST:
        return [d]
    row = sum((Index.of(v) * (steps[v] // width) for v in rows), Index.of(0))
    before, values = [], {}
    for k, x in enumerate(found):
        own = [v for v in d.variables if v in around]
        fresh = [Var(f"{v.name}r{k}", v.size) for v in (*own, b)]
        body = rewrite(x, {v: Index.of(f) for v, f in zip((*own, b), fresh, strict=True)})
        shape = (*fresh[:-1], Var(f"{b.name}s{k}", count), fresh[-1])
        before.append(Definition(f"{d.name}_rows{k}", x.dtype, shape, body, where=d.where))
        place = (*map(Index.of, own), remainder(row, Index.of(count)), Index.of(b))
        values[x] = Load(before[-1].name, place, x.dtype)
    return [*before, dataclasses.replace(d, body=rewrite(d.body, {}, done=dict(values)))]


def _variables_beside(
    d: Definition, b: Var, steps: Mapping[Var, int], layouts: Mapping[str, Layout]
) -> frozenset[Var] | None:
    """On what depends, beside ``b``, what does not lie as the definition does; ``None`` if that is not known."""
    found: set[Var] = set()
    for x in walk(d.body):
        if isinstance(x, Checked) or (isinstance(x, Guarded) and b in variables(x.condition)):
            return None  # short loops are cut at conditions, or are masked, as they are
        if isinstance(x, FromIndex):
            found |= x.index.variables
        elif isinstance(x, Load):
            address = layouts[x.source].address(x.index)
            is_plain = all(isinstance(a, Var) for a, _ in address.terms)
            if not is_plain or any(address.coefficient(v) != step for v, step in steps.items()):
                found |= variables(x)
    return frozenset(v for v in found if v != b and v.size != 1)


def _dense(steps: Mapping[Var, int], b: Var, around: frozenset[Var]) -> list[Var] | None:
    """The variables of rows that lie one behind the other, all but ``around``; ``None`` if they do not."""
    rows = sorted((v for v in steps if v != b and v not in around), key=lambda v: steps[v])
    length = cost.count([b])
    for v in rows:
        if steps[v] != length:
            return None
        length *= cost.count([v])
    return rows


def _repeated(x: Scalar, of: frozenset[Var], b: Var, seen: set[Scalar]) -> Iterator[Scalar]:
    """The largest expressions that depend on ``b`` and, beside it, on no other variables than ``of``."""
    if x in seen or isinstance(x, Const):
        return
    seen.add(x)
    own = variables(x)
    if b in own and own <= of:
        yield x
    elif not isinstance(x, Load):
        for y in inside(x):
            yield from _repeated(y, of, b, seen)


def in_blocks(n: Nest) -> Nest | None:
    """The nest over whole blocks of rows, if its only stage reads rows that repeat; see the module."""
    (stage,) = n.stages
    found = [*indices(*stage.statements), *(s.address for s in stage.statements if s.address is not None)]
    for a in n.outer:
        period = next((p for i in found if (p := _period(i, a)) is not None), None)
        if period is None:
            continue
        for b in n.outer:
            if b != a and all(_goes_on(i, a, b, period) for i in found):
                return _blocks(n, a, b, period)
    return None


def _period(index: Index, a: Var) -> int | None:
    """After how many rows what is read repeats."""
    for atom, _ in index.terms:
        if isinstance(atom, Mod) and atom.dividend == Index.of(a) and atom.divisor.is_constant:
            return atom.divisor.constant
    return None


def _goes_on(index: Index, a: Var, b: Var, period: int) -> bool:
    """Whether a row of ``b`` ends where the next one of ``a`` begins, until it begins again."""
    repeats = [(atom, k) for atom, k in index.terms if isinstance(atom, Mod) and atom.dividend == Index.of(a)]
    if not repeats:
        return runs_on(index, a, b)
    ((atom, k),) = repeats
    rest = index - k * Index.of(atom)
    is_block = atom.divisor == period and k == b.size and rest.coefficient(b) == 1
    return is_block and a not in rest.variables and runs_on(rest - Index.of(b), a, b)


def _blocks(n: Nest, a: Var, b: Var, period: int) -> Nest:
    (stage,) = n.stages
    flat = Var(b.name + "m", cost.count([a]) * cost.count([b]))
    p, q = cut(flat, period * cost.count([b]))
    statements = substituted(stage.statements, {a: Index.of(p) * period, b: Index.of(q)})
    outer = tuple(v for v in n.outer if v not in (a, b))
    return Nest((*outer, p), (StageNest((q,), (), statements, q),))
