"""What a loop reads along memory while vectors step over it, in blocks of 16 x 16, or 8 x 16, turned in registers.

Before: ``for j: y[64*j + i] = x[i*512 + j]`` reads 16 lanes from 16 lines of memory for every ``j``.
After: for every 16th ``j``, 16 vectors along ``j`` are read and turned; for each ``j``, one of the turned vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch_max_backend.base.dtypes import FLOAT8
from torch_max_backend.codegen.expression_writer import reach
from torch_max_backend.loops.expr import Guarded, Load, Scalar
from torch_max_backend.loops.index import Computed, Index, Var
from torch_max_backend.schedule.nest import StageNest

SIDE = 16
"""Rows and columns of a block: the lanes of a vector."""
SHORTEST = 4
"""Iterations of a loop from which blocks are faster than lanes one by one."""
MOST = 4
"""Blocks at a time, which stay in the first cache with what is written."""


def turned_reads(stage: StageNest, v: Var, along: Var) -> list[tuple[str, Index]]:
    """What a stage reads in turned blocks, by loops over ``v`` and in vectors ``along``: tensors and addresses."""
    if isinstance(v.size, int) and v.size < SHORTEST:
        return []
    own = {s.name for s in stage.statements}
    found: dict[tuple[str, Index], None] = {}
    for x in _unguarded([e for s in stage.statements for e in s.expressions]):
        if x.source in own or x.dtype in FLOAT8:
            continue
        address = x.index[0]
        if not _is_sum_of_loops(address) or address.coefficient(v) != 1:
            continue
        if address.coefficient(along) not in (0, 1):
            found[x.source, address] = None
    return list(found) if len(found) <= MOST else []


def _unguarded(roots: Iterable[Scalar]) -> Iterator[Load]:
    """Loads from memory that no condition is around."""
    left, seen = list(roots), set[Scalar]()
    while left:
        x = left.pop(0)
        if x in seen:
            continue
        seen.add(x)
        if isinstance(x, Load):
            if x.index and not any(isinstance(a, Computed) for i in x.index for a in i.atoms):
                yield x
            continue
        left += [x.condition] if isinstance(x, Guarded) else x.operands


def _is_sum_of_loops(address: Index) -> bool:
    """Whether an address grows evenly with every variable that it has."""
    return all(isinstance(atom, Var) or not reach(atom) for atom, _ in address.terms)
