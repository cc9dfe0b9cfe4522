"""Short rows that are computed element by element run inside of the loop around them.

Before: ``kernel over i:56, j:25, k:22:``, in it ``for c:20 in vectors: y[i, j, k, c] = x[i, f(j), g(k), c]``.
After: ``kernel over i:56, j:25:``, in it ``for k:22, c:20 in vectors:``. Threads divide the number of a row into its
indices; what depends on none of ``k`` and ``c`` is computed once.
"""

from __future__ import annotations

import dataclasses

from torch_max_backend.loops.expr import Load, walk
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.nest import Nest, StageNest

SHORT, LONG = 128, 1 << 14
"""Elements of a row, at most, and of the rows that one index of the loops around them shall have, at most."""
PARTS = 32
"""Iterations that are left for threads, at least."""


def rows_inside(n: Nest) -> Nest:
    """The nest with its last outer loops inside of its stages, while these are short."""
    if n.vector is not None or n.several or n.own or not all(_is_elementwise(s, n) for s in n.stages):
        return n
    while len(n.outer) > 1 and _is_worth_it(n):
        *rest, w = n.outer
        stages = tuple(dataclasses.replace(s, free=(w, *s.free)) for s in n.stages)
        n = dataclasses.replace(n, outer=tuple(rest), stages=stages)
    return n


def _is_worth_it(n: Nest) -> bool:
    *rest, w = n.outer
    inner = max(cost.count(s.free) for s in n.stages)
    is_fixed = all(isinstance(v.size, int) for v in n.outer)
    return is_fixed and inner <= SHORT and inner * cost.count([w]) <= LONG and cost.count(rest) >= PARTS


def _is_elementwise(s: StageNest, n: Nest) -> bool:
    """Whether a stage's elements are computed of what no stage of the nest makes, in vectors along its inner loop."""
    made = {x.name for stage in n.stages for x in stage.statements}
    if s.reduced or len(s.free) != 1 or s.vector not in (None, s.free[0]):
        return False
    if any(x.combiner or x.how is not None for x in s.statements):
        return False
    read = walk(*(e for x in s.statements for e in x.expressions))
    return not any(isinstance(y, Load) and y.source in made and y.index for y in read)
