"""What groups of neighbours share is written out for each of them, where vectors would be as short as a group.

Means of few channels are read by images of which memory has the channels last: a vector of such an image has elements
of several groups.

Before: ``t1[n:4, p:4096, c:16] = x[n, p, c] - t0[n, c // 4]``.
After: ``t1_0[n:4, c:16] = t0[n, c // 4]`` and ``t1[n:4, p:4096, c:16] = x[n, p, c] - t1_0[n, c]``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch_max_backend.loops.expr import Load, Scalar, loads, rewrite
from torch_max_backend.loops.index import Computed, Div, Index, Var
from torch_max_backend.loops.program import Call, Definition, Program, Reduction
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.kernel import Layout
from torch_max_backend.schedule.machine import Machine
from torch_max_backend.schedule.nest import LANES, distance
from torch_max_backend.schedule.split import MANY, with_orders

TIMES = 32
"""How often each element is read, at least."""
GRID_LANES, GRID_LEAST = 8, 1 << 20
"""Of a GPU, whose threads read what is not side by side one by one: neighbours in a group, from which vectors have room
in it, and elements that read what groups have, at least."""


def spread_groups(program: Program, layouts: Mapping[str, Layout], machine: Machine) -> Program:
    """Definitions that read what is one number for a few neighbours read it element by element."""
    lanes, least = (GRID_LANES, GRID_LEAST) if machine.has_grid else (LANES, MANY)
    first: list[Definition] = []
    steps: list[Definition | Call] = []
    orders = {**program.orders, **dict(program.outputs)}
    for step in program.steps:
        v = None
        if isinstance(step, Definition) and cost.iterations(step) >= least:
            v = _fastest(step, layouts, machine)
        if v is None:
            steps.append(step)
            continue
        assert isinstance(step, Definition)
        *written_out, step = _spread(step, v, lanes, layouts)
        orders.update({d.name: tuple(range(len(d.variables))) for d in written_out})
        for d in written_out:  # those of inputs stand between no loops that are one kernel
            (first if all(x.source in program.inputs for x in d.loads) else steps).append(d)
        steps.append(step)
    return with_orders(program, [*first, *steps], orders)


def _fastest(d: Definition, layouts: Mapping[str, Layout], machine: Machine) -> Var | None:
    """The variable along which the elements of a plain definition are neighbours; on a CPU, also that along which those
    of a reduction are, and of something that it reads.
    """
    if not all(isinstance(v.size, int) for v in d.variables):
        return None
    strides = layouts[d.name].strides
    v = next((v for v, stride in zip(d.variables, strides, strict=True) if stride == 1 and v.size != 1), None)
    if v is None or d.how is None:
        return v
    reads = (layouts[x.source].address(x.index) for x in d.loads)
    is_across = isinstance(d.how, Reduction) and any(distance(address, v) == 1 for address in reads)
    return v if is_across and not machine.has_grid else None


def _spread(d: Definition, v: Var, lanes: int, layouts: Mapping[str, Layout]) -> list[Definition]:
    """The definition, behind what it reads instead of what is shared by neighbours along ``v``."""
    before: list[Definition] = []
    instead: dict[Load, Load] = {}
    for x in dict.fromkeys(loads(d.body)):
        mine = [w for w in d.variables if any(w in i.variables for i in x.index)]
        mine.sort(key=lambda w: w == v)
        is_read_often = cost.count(mine) * TIMES <= cost.iterations(d)
        if is_read_often and _is_of_groups(x, v, lanes) and _is_all_there(x, layouts[x.source]):
            name = f"{d.name}_each{len(before)}"
            new = {w: Var(f"{w.name}s{len(before)}", w.size) for w in mine}
            body = rewrite(x, {w: Index.of(n) for w, n in new.items()})
            before.append(Definition(name, x.dtype, tuple(new.values()), body, where=d.where, whole=True))
            instead[x] = Load(name, tuple(map(Index.of, mine)), x.dtype)

    def load(x: Load) -> Scalar:
        return instead.get(x, x)

    return [*before, dataclasses.replace(d, body=rewrite(d.body, {}, load))] if before else [d]


def _is_of_groups(x: Load, v: Var, lanes: int) -> bool:
    """Whether a load is the same for some neighbours along ``v``, fewer than a vector has, and for no others."""
    own = [i for i in x.index if v in i.variables]
    return len(own) == 1 and any(
        isinstance(atom, Div) and atom.dividend == Index.of(v) and 1 < atom.divisor.typical < lanes
        for atom in own[0].atoms
    )


def _is_all_there(x: Load, layout: Layout) -> bool:
    """Whether every element that a load might name exists: those of a guarded one need not."""
    if any(isinstance(atom, Computed) for i in x.index for atom in i.atoms):
        return False
    return all(
        i.bounds[0] >= 0 and size.is_constant and i.bounds[1] < size.constant
        for i, size in zip(x.index, layout.sizes, strict=True)
    )
