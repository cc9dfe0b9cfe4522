"""Places that are looked up in columns of a matrix, for few columns at a time.

Each lane reads another page of memory, as where rows are gathered from a matrix whose columns are contiguous. All pages
of all columns are more than a cache has room for, and than there are entries in the table of addresses.

Before: ``for i:4096: for j:128 in vectors: y[128*i + j] = x[32768*j + [t[i]]]``.
After: ``for p:8, i:4096: for q:16 in vectors: y[128*i + 16*p + q] = x[524288*p + 32768*q + [t[i]]]``.
"""

from __future__ import annotations

from torch_max_backend.loops.expr import Load, walk
from torch_max_backend.loops.index import Computed, Index, Var
from torch_max_backend.schedule.nest import LANES, Nest, StageNest, cut, distance, substituted
from torch_max_backend.schedule.vectors import WAY


def in_few_pages(n: Nest) -> Nest:
    """The nest with its inner loop in vectors outside of all others, if lanes read pages of their own."""
    if len(n.stages) != 1 or n.vector is not None or n.several:
        return n
    (stage,) = n.stages
    v = stage.vector
    if v is None or stage.inner != (v,) or stage.reduced or any(s.how is not None for s in stage.statements):
        return n
    if not isinstance(v.size, int) or v.size <= LANES or not _jumps(stage, v):
        return n
    p, q = cut(v, LANES)
    statements = substituted(stage.statements, {v: Index.of(p) * LANES + q})
    return Nest((p, *n.outer), (StageNest((q,), (), statements, q),))


def _jumps(stage: StageNest, v: Var) -> bool:
    """Whether each lane along ``v`` reads another page, at a place that is looked up for all of them."""
    read = [x for x in walk(*(e for s in stage.statements for e in s.expressions)) if isinstance(x, Load) and x.index]
    return any(
        distance(x.index[0], v) * x.dtype.itemsize >= WAY and any(isinstance(a, Computed) for a in x.index[0].atoms)
        for x in read
    )
