"""What is read many times across memory is first written as it is read.

Before: ``t0[b:25, i:1024, j:1303] = x[b, i, j] + y[i, j]``, where neighbours along ``i`` lie side by side in ``y``.
After: ``t0_turned0[i:1024, j:1303] = y[i, j]``, in rows, and ``t0[b, i, j] = x[b, i, j] + t0_turned0[i, j]``.

A GPU's copy has what is read, a CPU's the whole tensor: windows of an image are read under conditions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch_max_backend.loops.expr import Guarded, Load, from_index, loads, rewrite, variables, walk
from torch_max_backend.loops.index import Computed, Index, Var
from torch_max_backend.loops.program import Call, Definition, Program, Reduction
from torch_max_backend.schedule import cost
from torch_max_backend.schedule import grid_limits as gpu
from torch_max_backend.schedule.kernel import Layout
from torch_max_backend.schedule.machine import Machine
from torch_max_backend.schedule.nest import distance
from torch_max_backend.schedule.split import with_orders

OFTEN, OFTEN_ON_CPU = 8, (4, 12)
"""How often each element is read, at least; on a CPU under conditions or from places that are read, and without, where
blocks are turned as well."""
LEAST, LEAST_ON_CPU = 1 << 21, 1 << 14
"""Elements of the definition, at least: a kernel more takes a few microseconds."""
FAR = 4
"""Steps in elements from which a CPU's vectors are picked together."""

_Made = tuple[list[Definition], Definition, dict[str, tuple[int, ...]]]
"""Copies, what reads them, and the orders of the copies' dimensions in memory."""


def turned_operands(program: Program, layouts: Mapping[str, Layout], machine: Machine) -> Program:
    """Definitions that read dense copies in place of what they read many times in steps of whole sectors."""
    steps: list[Definition | Call] = []
    orders = {**program.orders, **dict(program.outputs)}
    for step in program.steps:
        copies: list[Definition] = []
        if isinstance(step, Definition):
            copies, step, made = (_with_copies if machine.has_grid else _with_whole_copies)(step, layouts)
            orders.update(made)
        steps += [*copies, step]
    return with_orders(program, steps, orders)


def _with_copies(d: Definition, layouts: Mapping[str, Layout]) -> _Made:
    """The copies that a definition shall read, and the definition that reads them."""
    v = _fastest(d, layouts, LEAST)
    copies: list[Definition] = []
    if v is None:
        return copies, d, {}
    values: dict[Load, Load] = {}
    turned = _read_along(d, v, layouts)
    for x in dict.fromkeys(d.loads):
        own = _variables_across(x, d, v, layouts)
        if not own or any(distance(layouts[x.source].address(x.index), w) == 1 for w in turned):
            continue
        name = f"{d.name}_turned{len(copies)}"
        fresh = [Var(f"{w.name}u{len(copies)}", w.size) for w in own]
        body = rewrite(x, {w: Index.of(other) for w, other in zip(own, fresh, strict=True)})
        copies.append(Definition(name, x.dtype, tuple(fresh), body, where=d.where))
        values[x] = Load(name, tuple(map(Index.of, own)), x.dtype)
    orders = {copy.name: tuple(range(len(copy.variables))) for copy in copies}
    return copies, _reading(d, values), orders


def _read_along(d: Definition, v: Var, layouts: Mapping[str, Layout]) -> set[Var]:
    """Other loops than ``v`` along which all of a large tensor is read: tiles turn it, and what lies like it."""
    every = {w for w in (*d.variables, *d.reduced) if w.size != 1}
    places = [layouts[x.source].address(x.index) for x in d.loads if every <= _own(x)]
    return {w for i in places for w in every - {v} if distance(i, w) == 1} if d.how is None else set()


def _reading(d: Definition, values: Mapping[Load, Load]) -> Definition:
    """The definition with some of its loads replaced."""
    return dataclasses.replace(d, body=rewrite(d.body, {}, lambda x: values.get(x, x))) if values else d


def _with_whole_copies(d: Definition, layouts: Mapping[str, Layout]) -> _Made:
    """Copies of whole tensors, and the definition that reads them, at the same indices."""
    v = _fastest(d, layouts, LEAST_ON_CPU) if d.how is None else None
    copies: list[Definition] = []
    values: dict[Load, Load] = {}
    orders: dict[str, tuple[int, ...]] = {}
    if v is None:
        return copies, d, orders
    read = list(dict.fromkeys(loads(d.body)))
    are_picked = any(isinstance(x, Guarded) for x in walk(d.body)) or any(
        map(_is_computed, (i for x in read for i in x.index))
    )
    often = OFTEN_ON_CPU[not are_picked]
    for source in dict.fromkeys(x.source for x in read):
        own = [x for x in read if x.source == source]
        last, *others = {_last_dimension(x, v, layouts[source]) for x in own}
        sizes = layouts[source].sizes
        if last is None or others or not all(n.is_constant for n in sizes):
            continue
        fresh = tuple(Var(f"{v.name}u{len(copies)}d{k}", n.constant) for k, n in enumerate(sizes))
        if cost.count(fresh) * often > cost.iterations(d) * len(own):
            continue
        name = f"{d.name}_turned{len(copies)}"
        body = Load(source, tuple(map(Index.of, fresh)), own[0].dtype)
        copies.append(Definition(name, body.dtype, fresh, body, where=d.where))
        orders[name] = (*(k for k in range(len(sizes)) if k != last), last)
        values.update({x: Load(name, x.index, x.dtype) for x in own})
    return copies, _reading(d, values), orders


def _last_dimension(x: Load, v: Var, layout: Layout) -> int | None:
    """The dimension of a tensor along which a loop runs, if its steps are long and another one's the shortest."""
    along = [k for k, i in enumerate(x.index) if any(v in variables(from_index(Index.of(a))) for a in i.atoms)]
    if len(along) != 1 or x.index[along[0]].coefficient(v) != 1 or _is_computed(x.index[along[0]]):
        return None
    steps = layout.strides
    beside = any(s == 1 and n != 1 for k, (s, n) in enumerate(zip(steps, layout.sizes, strict=True)) if k != along[0])
    far = steps[along[0]].is_constant and steps[along[0]].constant >= FAR
    return along[0] if beside and far else None


def _is_computed(i: Index) -> bool:
    return any(isinstance(a, Computed) for a in i.atoms)


def _fastest(d: Definition, layouts: Mapping[str, Layout], least: int) -> Var | None:
    """The loop along which a large definition's memory runs: what it writes, or what it reads most of if it reduces."""
    reduces = isinstance(d.how, Reduction)
    every = (*d.variables, *d.reduced)
    if (d.how is not None and not reduces) or not all(isinstance(v.size, int) for v in every):
        return None
    if cost.iterations(d) < least:
        return None
    if not reduces:
        found = zip(d.variables, layouts[d.name].strides, strict=True)
        return next((v for v, stride in found if stride == 1 and v.size != 1), None)
    large = [x for x in d.loads if {v for v in every if v.size != 1} <= _own(x)]
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
