"""Rows of narrow elements that threads of a GPU multiply with one row: two at once, which share reading and converting
that one. Of elements of a byte, instructions take longer than memory.

Before: ``for i:8192: t0 = sum over r of mul(x[r], w[2048*i + r])``.
After: ``for i:4096: t0.0 = sum over r of mul(x[r], w[4096*i + r]), t0.1 = sum of mul(x[r], w[4096*i + 2048 + r])``.
"""

from __future__ import annotations

import dataclasses

from torch_max_backend.loops.expr import Load, variables, walk
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.schedule import cost
from torch_max_backend.schedule import grid_limits as gpu
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.nest import StageNest
from torch_max_backend.schedule.rows_at_once import several

AT_ONCE = 2
FEW = gpu.BUSY * 3 // 8
"""Threads, each with reads of two rows under way, that are enough for memory: fewer add up fewer partial sums."""


def rows_at_once(n: GridNest) -> GridNest:
    """The nest with the stages for two of its rows at once, where these are of narrow elements and many enough."""
    if not n.outer or any(s.free or any(x.how is not None for x in s.statements) for s in n.stages):
        return n
    *others, v = n.outer
    if not isinstance(v.size, int) or v.size % AT_ONCE or not any(_shares_a_row(s, v) for s in n.stages):
        return n
    pairs, threads, block = cost.count(n.outer) // AT_ONCE, n.threads, n.rows * n.threads
    if pairs * threads < FEW:
        return n
    while threads > gpu.WARP and pairs * threads // 2 >= FEW:
        threads //= 2
    pair = Var(f"{v.name}p", v.size // AT_ONCE)
    stages = several(n.stages, [{v: Index.of(pair) * AT_ONCE + k} for k in range(AT_ONCE)])
    rows = max(1, min(block, gpu.FEW_WARPS * gpu.WARP) // threads)
    return dataclasses.replace(n, outer=(*others, pair), stages=stages, threads=threads, rows=rows)


def _shares_a_row(stage: StageNest, v: Var) -> bool:
    """Whether vectors of bytes of each ``v`` are reduced together with others that are the same for all."""
    along = stage.vector
    if along is None:
        return False
    read = {x for s in stage.statements for x in walk(s.body) if isinstance(x, Load) and x.index}
    moving = [x for x in read if along in variables(x)]
    own = [x for x in moving if v in variables(x)]
    return bool(own) and len(own) < len(moving) and all(x.dtype.itemsize == 1 for x in own)
