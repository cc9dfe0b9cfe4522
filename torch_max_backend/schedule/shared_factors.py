"""On a CPU, what many rows of a small product read is first written as vectors read it, with what is computed of it.

Before: ``t0[i:64, j:32] = sum over r:48 of mul(exp(x[i, r]), w[j, r])``, whose vectors would run along ``r``: each is
added up at its end.
After: ``t0_factor0[i:64, r:48] = exp(x[i, r])``, ``t0_factor1[r:48, j:32] = w[j, r]`` and
``t0[i, j] = sum over r:48 of mul(t0_factor0[i, r], t0_factor1[r, j])``, whose vectors run along ``j``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

from torch_max_backend.loops.expr import Checked, Guarded, Load, Op, Scalar, loads, rewrite, rounded, variables, walk
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.program import Call, Definition, Program, Reduction, Step, reads
from torch_max_backend.loops.simplify import without_dead_definitions
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.inline import at
from torch_max_backend.schedule.kernel import Layout
from torch_max_backend.schedule.machine import Machine
from torch_max_backend.schedule.nest import LANES, distance
from torch_max_backend.schedule.rows_at_once import LONG, ROWS
from torch_max_backend.schedule.split import with_orders

OFTEN = 8
"""How often each element is read, at least."""
NEAR, CACHE = 1 << 16, 1 << 15
"""Elements of a copy, at most; and bytes that the first cache holds."""
ADDED, ADDED_LONG, FAR = 2.0, 1.0, 8.0
"""Cycles for each result: of adding up a vector's lanes; of that where several results share what they read; of reading
again what the first cache does not hold."""
CAST = 0.5
"""Cycles of a vector of casts."""
COPY, COPIED = 2400.0, 0.25
"""Cycles of a copy of nothing, and of each element."""


def shared_factors(program: Program, layouts: Mapping[str, Layout], machine: Machine) -> Program:
    """Products that read copies of their factors where these save more than they take."""
    if machine.has_grid:
        return program
    steps: list[Step] = []
    orders = {**program.orders, **dict(program.outputs)}
    once = _read_once(program)
    for step in program.steps:
        copies: list[Definition] = []
        if isinstance(step, Definition):
            copies, step = _with_factors(step, layouts, once)
        orders.update({d.name: tuple(range(len(d.variables))) for d in copies})
        steps += [*copies, step]
    if len(steps) == len(program.steps):
        return program
    return without_dead_definitions(with_orders(program, steps, orders))


def _read_once(program: Program) -> dict[str, Definition]:
    """Plain definitions that one other definition reads, and nothing else."""
    kept = {name for name, _ in program.outputs} | {source for _, source in program.stores}
    readers = Counter(name for step in program.steps for name in reads(step))
    kept |= {name for step in program.steps if isinstance(step, Call) for name in step.reads()}
    plain = [s for s in program.steps if isinstance(s, Definition) and s.how is None and s.name not in kept]
    return {s.name: s for s in plain if readers[s.name] == 1}


def _with_factors(
    d: Definition, layouts: Mapping[str, Layout], once: Mapping[str, Definition]
) -> tuple[list[Definition], Definition]:
    """The copies that a definition shall read, and the definition that reads them."""
    every, product = (*d.variables, *d.reduced), d.body
    if not isinstance(d.how, Reduction) or d.how.combiner != "sum" or not all(isinstance(v.size, int) for v in every):
        return [], d
    along = zip(d.variables, layouts[d.name].strides, strict=True)
    v = next((v for v, stride in along if stride == 1 and v.size > 1), None)
    if v is None or not isinstance(product, Op) or product.name != "mul":
        return [], d
    copies: list[Definition] = []
    factors: list[Scalar] = []
    for factor in product.args:
        own = [w for w in every if w != v and w in variables(factor)]
        own += [v] * (v in variables(factor))
        if not _is_better_copied(factor, own, d, v, layouts):
            factors.append(factor)
            continue
        name = f"{d.name}_factor{len(copies)}"
        fresh = [Var(f"{w.name}f{len(copies)}", w.size) for w in own]
        body = rewrite(factor, {w: Index.of(f) for w, f in zip(own, fresh, strict=True)}, lambda x: _computed(x, once))
        copies.append(Definition(name, factor.dtype, tuple(fresh), body, where=d.where))
        factors.append(Load(name, tuple(map(Index.of, own)), factor.dtype))
    return copies, d if not copies else dataclasses.replace(d, body=dataclasses.replace(product, args=tuple(factors)))


def _computed(x: Load, once: Mapping[str, Definition]) -> Scalar:
    """What is read, computed here if nothing else reads it."""
    return rounded(at(once[x.source], x.index), x.dtype) if x.source in once else x


def _is_better_copied(factor: Scalar, own: list[Var], d: Definition, v: Var, layouts: Mapping[str, Layout]) -> bool:
    """Whether a copy of a factor saves more cycles than it takes."""
    elements, iterations, read = cost.count(own), cost.iterations(d), loads(factor)
    if elements > NEAR or elements * OFTEN > iterations or not {*d.reduced} <= {*own} or not all(map(_is_simple, read)):
        return False
    if any(isinstance(x, Guarded | Checked) for x in walk(factor)):
        return False
    saved = _saved(factor) * iterations / LANES / (ROWS if v in own else 1)
    addresses = [layouts[x.source].address(x.index) for x in read]
    if v in own and any(distance(i, v) > 1 and any(distance(i, w) == 1 for w in d.reduced) for i in addresses):
        depth, width = cost.count(d.reduced), cost.count([v])
        each = ADDED_LONG if depth >= LONG else ADDED
        each += FAR if elements * factor.dtype.itemsize > CACHE else 0
        saved += cost.count(d.variables) * (each - -width % LANES / width * depth / LANES)
    return saved > COPY + elements * COPIED


def _saved(factor: Scalar) -> float:
    """Cycles that a vector of a factor saves if it is only read."""
    if isinstance(factor, Load):
        return 0.0
    is_cast = isinstance(factor, Op) and factor.name == "cast" and isinstance(factor.args[0], Load)
    return CAST if is_cast else 1.0


def _is_simple(x: Load) -> bool:
    """Whether each of its indices is a loop's variable, or a number."""
    return all(len(i.terms) <= 1 and all(isinstance(a, Var) for a in i.atoms) for i in x.index)
