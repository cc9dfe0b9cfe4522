"""Sums over columns of what a kernel for a GPU has in registers of its rows, as where a norm's gradient and that of its
weight read the same: one kernel that goes through all rows of a part, and keeps the part's sums.

Before: ``for i:4096, over e:768: …`` and ``for p:64, c:768: s[p, c] = sum over q:64 of mul(g[64*p + q, c], x[…])``.
After: ``for i:4096, over e:768: …; s[i // 64, e] += mul(g[i, e], x[i, e])``, of which a block has 64 rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import torch

from torch_max_backend.loops.expr import Load, Scalar, rewrite, variables, walk
from torch_max_backend.loops.index import Index, Var, least
from torch_max_backend.loops.program import Call
from torch_max_backend.schedule import grid_limits as gpu
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.nest import Nest, StageNest, Statement
from torch_max_backend.schedule.small_kernels import is_in_order

NEAR = 8
"""Steps between two kernels that may become one, at most."""
LEAST, MANY, MOST = 4, 96, 128
"""Rows that the same threads have one after the other, at least, about, and at most: each adds to a sum in float32, and
at the end the sums of a block's threads are added up."""
SHORTEST, UNDER_WAY = 12, 5 << 18
"""Rows of a part, at least, where all threads of a block have one: its sums are written and read again in float64. And
bytes of a tensor that all blocks read at the same time, at least."""
SUMMED = (torch.float32, torch.float64)
"""What the sums of parts may be kept in."""
HELD, SUMS = 16, 2
"""Elements of a row that a thread has, and sums of each, at most: with more it has too many registers for other threads
to read meanwhile."""
WANTED, NEEDED = 3 / 8, 1 / 3
"""Of the threads that keep a GPU busy with a read each, how many do, since each has several: when parts are chosen, and
when they are what came of it."""
NEW = 1
"""Tensors that are read for the sums alone, at most."""

Step = Nest | Call


def with_column_sums(steps: Sequence[Step], stores: Iterable[tuple[str, str]]) -> list[Step]:
    """Make one kernel of one for rows and one for sums over them, where either can run in the other's place."""
    written = {source: target for target, source in stores}
    found = list(steps)
    at = 0
    while at < len(found):
        for near in range(at + 1, min(len(found), at + 1 + NEAR)):
            one = _joined(found[at], found[near])
            if one is not None and is_in_order(found[near], found[at + 1 : near], written):
                found[at] = one
                del found[near]
                break
        else:
            at += 1
    return found


def _joined(first: Step, second: Step) -> GridNest | None:
    if not isinstance(first, GridNest) or not isinstance(second, GridNest):
        return None
    pairs = ((first, second), (second, first))
    found = (_with_sums(rows, columns) for rows, columns in pairs if _has_sums(columns) and _has_rows(rows))
    return next((one for one in found if one is not None), None)


def _has_sums(n: GridNest) -> bool:
    """Whether a kernel does nothing but sum over one loop, for all of two others."""
    if len(n.stages) != 1 or len(n.outer) != 2 or not all(isinstance(v.size, int) for v in n.outer):
        return False
    (stage,) = n.stages
    return not stage.free and len(stage.reduced) == 1 and all(map(_is_sum, stage.statements))


def _has_rows(n: GridNest) -> bool:
    """Whether a kernel's threads keep their elements of rows in registers, all stages the same ones."""
    plain = n.held and not n.columns and n.tile is None and n.vector is None and n.each == n.blocks == 1
    inner = {s.inner for s in n.stages if s.inner}
    is_known = len(n.outer) == 1 and isinstance(n.outer[0].size, int) and not n.anew and not n.own and not n.part
    statements = [s for stage in n.stages for s in stage.statements]
    return bool(plain) and is_known and len(inner) == 1 and all(s.how is None and s.place is None for s in statements)


def _with_sums(rows: GridNest, columns: GridNest) -> GridNest | None:
    """The kernel of rows with the sums of the other, if these are of what it has, and of its rows in parts."""
    (i,), (e,) = rows.outer, next(s.inner for s in rows.stages if s.inner)
    loops = _of_parts(columns, int(i.size), int(e.size))
    if loops is None:
        return None
    part, column, row, size = loops
    found, statements = _in_parts(rows, int(part.size), size, int(e.size)), columns.stages[0].statements
    if found is None or found.held * found.lanes > HELD or len(statements) > SUMS:
        return None
    own = {s.name: s for stage in rows.stages for s in stage.statements}
    read = {x for s in own.values() for x in walk(*s.expressions) if isinstance(x, Load) and e in variables(x)}
    sums: list[Statement] = []
    for s in statements:
        body = rewrite(s.body, {column: Index.of(e), row: Index.of(i), part: Index.of(0)})
        back = rewrite(body, {e: Index.of(column), i: Index.of(part) * size + Index.of(row)})
        if back != s.body:
            return None
        known = _in_registers(body, own, e)
        if known is None:
            return None
        address = Index.of(e) + Index.of(i) // size * int(e.size)
        sums.append(dataclasses.replace(s, body=known, address=address))
    moving = {x for s in sums for x in walk(s.body) if isinstance(x, Load) and e in variables(x)}
    if not moving & read or len(moving - read) > NEW:
        return None
    return dataclasses.replace(found, stages=(*found.stages, StageNest((e,), (), tuple(sums))))


def _of_parts(n: GridNest, height: int, width: int) -> tuple[Var, Var, Var, int] | None:
    """The loops over parts, columns and the rows of a part, and how many rows those but the last one have."""
    (stage,) = n.stages
    (row,) = stage.reduced
    for part, column in (n.outer, n.outer[::-1]):
        size = -(-height // int(part.size)) if isinstance(row.size, int) else _most(row.size)
        left = least(Index.of(size), Index.of(height) - Index.of(part) * size)
        wanted = Index.of(column) + Index.of(part) * width
        are_all = column.size == width and left == row.size and (int(part.size) - 1) * size < height
        if are_all and all(s.address == wanted for s in stage.statements):
            return part, column, row, size
    return None


def _most(size: Index) -> int:
    """The rows of a part where the last one has fewer."""
    return int(size.bounds[1]) if math.isfinite(size.bounds[1]) else 0


def _is_sum(s: Statement) -> bool:
    return s.combiner == "sum" and s.how is None and s.body.dtype is torch.float32 and s.dtype in SUMMED


def parts_of_rows(width: int, height: int, itemsize: int) -> int:
    """The parts of so many rows of which one kernel may have the sums as well; 0 if they are too few for that. They are
    as many as run at the same time, or a multiple.

    Args:
        width: Elements of a row.
        height: Rows.
        itemsize: Bytes of an element.
    """
    threads, all_ = _threads(width), 2 * gpu.PROCESSORS
    if threads > gpu.WARP:
        parts = all_ * max(1, math.ceil(gpu.BUSY * WANTED / (threads * all_)))
        is_enough = height >= parts * SHORTEST and parts * width * itemsize >= UNDER_WAY
        return parts if is_enough else 0
    groups = gpu.BLOCK // min(threads, 1 << max(0, (width // 4 - 1).bit_length()))
    parts = all_ * max(1, -(-height // (all_ * groups * MANY)))
    return parts if height >= parts * groups * LEAST else 0


def _threads(width: int) -> int:
    """The threads that have a row, each few elements: more than a warp are all of a block."""
    return gpu.WARP if width <= gpu.WARP * HELD else 1 << (-(-width // HELD) - 1).bit_length()


def _in_parts(n: GridNest, parts: int, size: int, width: int) -> GridNest | None:
    """The kernel of rows with as many at a time in a block that all threads are enough, and each has several; none if
    there are no such numbers. Threads of a block tell each other what a row is of where it has them all, else lanes of
    a warp do."""
    threads = min(n.threads, gpu.WARP) if width <= gpu.WARP * HELD else max(n.threads, _threads(width))
    n = dataclasses.replace(n, threads=threads, held=-(-width // (threads * n.lanes)))
    rows, enough = max(1, gpu.WARP // threads), gpu.BUSY * NEEDED
    block = gpu.BLOCK if n.held > 1 else 2 * gpu.BLOCK
    while threads <= gpu.WARP and rows * threads < block and LEAST * rows * 2 <= size:
        rows *= 2
    if threads > gpu.MOST or not LEAST * rows <= size <= MOST * rows or parts * rows * threads < enough:
        return None
    return dataclasses.replace(n, rows=rows, part=size)


def _in_registers(x: Scalar, own: dict[str, Statement], e: Var) -> Scalar | None:
    """The expression with what the kernel has computed of a row in place of what it has written; none if it reads
    other places of that."""
    loads = {y for y in walk(x) if isinstance(y, Load) and y.index and y.source in own}
    if any(own[y.source].address != y.index[0] for y in loads):
        return None

    def load(y: Load) -> Scalar:
        return Load(y.source, (), y.dtype) if y in loads and e not in variables(y) else y

    return rewrite(x, {}, load)
