"""Loops over two, four or eight neighbours in memory, as those of an image of twice the size, as vectors along the loop
around them.

Before: ``for a:512:``, in it ``for b:2: y[2*a + b] = f(x[a], b)``, in vectors of two lanes.
After: ``for a:512`` in vectors: ``y.0 = f(x[a], 0)``, ``y.1 = f(x[a], 1)``, ``y[2*a] = y.0``, ``y[2*a + 1] = y.1``. The
code generator writes the last two as one vector, with the lanes of both in turns.
"""

from __future__ import annotations

import dataclasses

from torch_max_backend.loops.expr import loads
from torch_max_backend.loops.index import Computed, Index, Var
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.nest import HALF, Nest, StageNest
from torch_max_backend.schedule.rows_at_once import several
from torch_max_backend.schedule.vectors import sliced

NEIGHBOURS = (2, 4, 8)
"""Lanes that can be put in turns."""
MOST = 64
"""Operations that are written out for all of them, at most, beside those of two neighbours."""
SHORTEST = 8
"""Iterations of the loop around them, from which its vectors are the longer ones."""


def interleaved(n: Nest) -> Nest:
    """The nest with vectors along the loop around a short one, if stores are neighbours along the short one."""
    if len(n.stages) != 1 or n.several or n.own:
        return n
    (stage,) = n.stages
    stores = [s.address for s in stage.statements if s.address is not None]
    loops = [*n.outer, *stage.free]
    short = [v for v in loops if v.size in NEIGHBOURS and all(i.coefficient(v) == 1 for i in stores)]
    if stage.reduced or not short or any(s.combiner or s.how for s in stage.statements):
        return n
    b = short[0]
    loops.remove(b)
    operations = cost.of_expression(*(e for s in stage.statements for e in s.expressions))
    if (cost.count([b]) - 2) * operations > MOST:
        return n
    around = [v for v in loops if all(_is_around(address, v, b) for address in stores)]
    if not around or cost.count(around[:1]) < SHORTEST or any(_depends(w, around[0], b) for w in loops):
        return n
    a = around[0]
    if not all(Index.of(w.size).is_fixed for w in loops if w != a):
        return n  # a part of another loop, which would be an outer one then
    read = [i for x in loads(*(e for s in stage.statements for e in s.expressions)) for i in x.index]
    if any(_is_around(index, a, b) for index in read):
        return n  # what is read lies as what is written
    if any(_is_row_anywhere(i, b, a) for i in read):
        return n  # a row is read as one vector, which is quicker than to pick elements of sixteen rows
    if n.vector == b and b.size == HALF and _turns(stage, read) and not any(i.coefficient(a) == 1 for i in read):
        return n
    inner = dataclasses.replace(stage, free=(a,), vector=a)
    (inner,) = several((inner,), [{b: Index.of(k)} for k in range(cost.count([b]))])
    return sliced(Nest(tuple(v for v in loops if v != a), (inner,)), a, a)


def _is_around(address: Index, v: Var, b: Var) -> bool:
    return address.coefficient(b) == 1 and address.coefficient(v) == b.size


def _is_row_anywhere(index: Index, b: Var, a: Var) -> bool:
    """Whether an address runs along memory with ``b``, from a place that is read, or, where these are more than two
    elements, one that moves with ``a`` by no number of elements, as beyond the edge of an image."""
    is_read = any(isinstance(atom, Computed) for atom in index.atoms)
    return index.coefficient(b) == 1 and (is_read or (cost.count([b]) > 2 and index.stride(a) is None))


def _turns(stage: StageNest, read: list[Index]) -> bool:
    """Whether something is read along memory by a stage's loop, around which vectors run: blocks of it are turned."""
    return any(i.coefficient(v) == 1 for i in read for v in stage.free)


def _depends(v: Var, *others: Var) -> bool:
    """Whether a loop's length depends on another one's variable."""
    return isinstance(v.size, Index) and any(w in v.size.variables for w in others)
