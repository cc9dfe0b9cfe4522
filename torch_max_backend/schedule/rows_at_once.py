"""Reductions of several outer iterations at once, which share what they read: a matrix times one row, or a few.

A thread that sums ``w[i, r] * x[r]`` for four neighbouring ``i`` reads and converts ``x`` once for all of them, follows
four streams of memory, and has sums that do not wait for each other. With a few rows, ``w[i, r] * x[j, r]``, it sums
those of four ``j``: a row of the large ``w`` is read from memory once for all.

Before: ``t0 = sum of mul(w[8*i + r], x[r])``.
After: ``t0.0 = sum of mul(w[8*i + r], x[r])``, ``t0.1 = sum of mul(w[8*i + 8 + r], x[r])``, and so on.
"""

from __future__ import annotations

import dataclasses

from torch_max_backend.loops.expr import Load, Scalar, rewrite, variables, walk
from torch_max_backend.loops.index import Atom, Index, Var
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.nest import Nest, StageNest, Statement

ROWS = 4
"""Outer iterations at once: more of them need more registers than there are."""
LONG, MANY = 128, 64
"""Elements of a reduction, and outer iterations, from which it pays."""
FEW, LARGE = 16, 1 << 18
"""Outer iterations up to which they are the innermost loop, for the sake of so many elements that they share."""


def rows_at_once(n: Nest) -> Nest:
    """The nest with the stages for several iterations of its last outer loop at once, where these share reads.

    A short outer loop becomes the last one if its iterations share what is large.
    """
    if n.vector is not None or not n.outer or any(s.free or not _is_plain(s) for s in n.stages):
        return n
    short = [v for v in n.outer if 1 < cost.count([v]) <= FEW and any(_shares_large_reads(s, v) for s in n.stages)]
    v = short[0] if len(short) == 1 and cost.count(n.outer) >= MANY * cost.count(short) else n.outer[-1]
    if v not in short and cost.count([v]) < MANY:
        return n
    if not any(_shares_reads(s, v) for s in n.stages):
        return n
    if any(isinstance(w.size, Index) and v in w.size.variables for s in n.stages for w in s.inner):
        return n
    rows = min(ROWS, cost.count([v])) if v in short else ROWS
    outer = (*(w for w in n.outer if w != v), v)
    return dataclasses.replace(n, outer=outer, rows=rows, several=_several(n.stages, v, rows))


def _is_plain(stage: StageNest) -> bool:
    return all(s.how is None and s.place is None for s in stage.statements)


def _shares_reads(stage: StageNest, v: Var) -> bool:
    """Whether a long reduction along memory reads one thing for all ``v``, and another for each."""
    along = stage.vector
    if along is None or along not in stage.reduced or cost.count(stage.reduced) < LONG:
        return False
    read = [variables(x) for s in stage.statements for x in walk(s.body) if isinstance(x, Load) and x.index]
    inside = [found for found in read if along in found]
    return any(v in found for found in inside) and any(v not in found for found in inside)


def _shares_large_reads(stage: StageNest, v: Var) -> bool:
    """Whether a long reduction along memory reads much that is the same for all ``v``, and little that is not."""
    if not _shares_reads(stage, v):
        return False
    read = [variables(x) for s in stage.statements for x in walk(s.body) if isinstance(x, Load) and x.index]
    shared = [cost.count(found) for found in read if v not in found]
    own = [cost.count(found) for found in read if v in found]
    return max(shared) >= LARGE and max(shared) >= MANY // FEW * max(own)


def _several(stages: tuple[StageNest, ...], v: Var, rows: int) -> tuple[StageNest, ...]:
    """The stages with each statement once for each row. What one writes is kept in registers, and written after it."""
    own = {s.name for stage in stages for s in stage.statements}
    found: list[StageNest] = []
    for stage in stages:
        copies: list[Statement] = []
        stores: list[Statement] = []
        for s in stage.statements:
            for k in range(rows):
                copies.append(_of_row(s, v, k, own))
                if s.address is not None:
                    stores.append(_store_of(s, copies[-1]))
                    copies[-1] = dataclasses.replace(copies[-1], address=None)
            if not stage.reduced:
                copies, stores = copies + stores, []
        found.append(dataclasses.replace(stage, statements=tuple(copies)))
        if stores:
            found.append(StageNest((), (), tuple(stores)))
    return tuple(found)


def _of_row(s: Statement, v: Var, k: int, own: set[str]) -> Statement:
    """A statement for the row ``v + k``; what it reads in registers is that row's."""
    values: dict[Atom, Index] = {v: Index.of(v) + k}
    done: dict[Scalar, Scalar] = {}

    def load(x: Load) -> Scalar:
        return Load(f"{x.source}.{k}", (), x.dtype) if not x.index and x.source in own else x

    def again(x: Scalar) -> Scalar:
        return rewrite(x, values, load, done)

    address = None if s.address is None else s.address.substitute(values, again)
    return dataclasses.replace(s, name=f"{s.name}.{k}", body=again(s.body), address=address)


def _store_of(s: Statement, row: Statement) -> Statement:
    """What writes a row's result, under the tensor's own name."""
    return Statement(s.name, s.dtype, Load(row.name, (), s.dtype), row.address, where=s.where)
