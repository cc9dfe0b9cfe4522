"""What a GPU reads many times across memory is first written as it is read.

Before: ``t0[b:25, i:1024, j:1303] = x[b, i, j] + y[i, j]``, where neighbours along ``i`` lie side by side in ``y``.
After: ``t0_turned0[i:1024, j:1303] = y[i, j]``, in rows, and ``t0[b, i, j] = x[b, i, j] + t0_turned0[i, j]``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch_max_backend.loops.expr import Load, loads, rewrite
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.program import Call, Definition, Program, Reduction
from torch_max_backend.schedule import cost
from torch_max_backend.schedule import grid_limits as gpu
from torch_max_backend.schedule.kernel import Layout
from torch_max_backend.schedule.machine import Machine
from torch_max_backend.schedule.nest import distance
from torch_max_backend.schedule.split import with_orders

OFTEN = 8
"""How often each element is read, at least."""
LEAST = 1 << 21
"""Elements of the definition, at least: a kernel more takes a few microseconds."""


def turned_operands(program: Program, layouts: Mapping[str, Layout], machine: Machine) -> Program:
    """Definitions that read dense copies in place of what they read many times in steps of whole sectors."""
    if not machine.has_grid:
        return program
    steps: list[Definition | Call] = []
    orders = {**program.orders, **dict(program.outputs)}
    for step in program.steps:
        copies: list[Definition] = []
        if isinstance(step, Definition):
            copies, step = _with_copies(step, layouts)
        orders.update({d.name: tuple(range(len(d.variables))) for d in copies})
        steps += [*copies, step]
    return with_orders(program, steps, orders)


def _with_copies(d: Definition, layouts: Mapping[str, Layout]) -> tuple[list[Definition], Definition]:
    """The copies that a definition shall read, and the definition that reads them."""
    v = _fastest(d, layouts)
    copies: list[Definition] = []
    if v is None:
        return copies, d
    values: dict[Load, Load] = {}
    for x in dict.fromkeys(loads(*d.expressions())):
        own = _variables_across(x, d, v, layouts)
        if not own:
            continue
        name = f"{d.name}_turned{len(copies)}"
        fresh = [Var(f"{w.name}u{len(copies)}", w.size) for w in own]
        body = rewrite(x, {w: Index.of(other) for w, other in zip(own, fresh, strict=True)})
        copies.append(Definition(name, x.dtype, tuple(fresh), body, where=d.where))
        values[x] = Load(name, tuple(map(Index.of, own)), x.dtype)
    if not copies:
        return copies, d
    return copies, dataclasses.replace(d, body=rewrite(d.body, {}, lambda x: values.get(x, x)))


def _fastest(d: Definition, layouts: Mapping[str, Layout]) -> Var | None:
    """The loop along which a large definition's memory runs: what it writes, or what it reads most of if it reduces."""
    reduces = isinstance(d.how, Reduction)
    every = (*d.variables, *d.reduced)
    if (d.how is not None and not reduces) or not all(isinstance(v.size, int) for v in every):
        return None
    if cost.iterations(d) < LEAST:
        return None
    if not reduces:
        found = zip(d.variables, layouts[d.name].strides, strict=True)
        return next((v for v, stride in found if stride == 1 and v.size != 1), None)
    large = [x for x in loads(*d.expressions()) if {v for v in every if v.size != 1} <= _own(x)]
    along = {v for x in large for v in every if distance(layouts[x.source].address(x.index), v) == 1 and v.size != 1}
    return along.pop() if len(along) == 1 else None


def _own(x: Load) -> set[Var]:
    return {v for i in x.index for v in i.variables}


def _variables_across(x: Load, d: Definition, v: Var, layouts: Mapping[str, Layout]) -> list[Var]:
    """The loops of what is read, ``v`` last, if neighbours along ``v`` are sectors apart and each is read often."""
    sizes = layouts[x.source].sizes
    if not all(isinstance(atom, Var) for i in x.index for atom, _ in i.terms):
        return []
    if not all(i.bounds[0] >= 0 and (i - size).bounds[1] < 0 for i, size in zip(x.index, sizes, strict=True)):
        return []  # a condition may keep it within the tensor
    own = [w for w in (*d.variables, *d.reduced) if w in _own(x)]
    address = layouts[x.source].address(x.index)
    is_across = distance(address, v) * x.dtype.itemsize >= gpu.SECTOR
    runs_along_another = any(distance(address, w) == 1 and w.size >= gpu.SECTOR // x.dtype.itemsize for w in own)
    is_read_often = cost.count(own) * OFTEN <= cost.iterations(d)
    if v not in own or not (is_across and runs_along_another and is_read_often):
        return []
    return [*(w for w in own if w != v), v]
