"""Kernels for a GPU in which a thread has outer indices for itself: elements, and transposes by tiles."""

from __future__ import annotations

import dataclasses

from torch_max_backend.loops.expr import Guarded, Load, variables, walk
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.schedule import cost
from torch_max_backend.schedule import grid_limits as gpu
from torch_max_backend.schedule.grid_memory import accesses, is_in_step, is_vectorizable, is_whole, lanes_along
from torch_max_backend.schedule.grid_nest import GridNest, place_of
from torch_max_backend.schedule.nest import Nest, distance, runs_on, substituted


def thread_each(n: Nest, fast: Var | None, outer: int) -> GridNest:
    """A thread has an outer index, or a vector of them along the fastest loop."""
    plain = len(n.stages) == 1 and not n.stages[0].inner and n.stages[0].statements[0].how is None
    if plain and fast is not None:
        across = _across(n, fast)
        if across is not None and outer >= gpu.LARGE and cost.count([across]) <= gpu.SHORT:
            return _with_loop_inside(n, across)
        if across is not None and outer >= gpu.LARGE:
            return GridNest(n.outer, n.stages, rows=1, tile=(fast, across))
        beyond = _beyond_rows(n, fast, outer)
        if beyond is not None:
            return beyond
        flat, last = _flattened(n, fast)
        if lanes_along(last, flat.stages) > lanes_along(fast, n.stages):
            n, fast = flat, last
    lanes = 1 if fast is None or not is_vectorizable(fast, n.stages) else lanes_along(fast, n.stages)
    while lanes > 1 and outer < gpu.BUSY * lanes:
        lanes //= 2
    rows = gpu.BLOCK if outer // lanes >= gpu.BUSY else 128
    each = 1
    if plain and (lanes == 1 or is_whole(fast, lanes)):
        written = sum(s.dtype.itemsize for s in n.stages[0].statements if s.address is not None) * lanes
        each = times(outer // lanes, min(gpu.TIMES, max(1, gpu.BYTES // max(1, written))))
    return GridNest(n.outer, n.stages, fast if lanes > 1 else None, rows=rows, lanes=lanes, each=each)


def times(threads: int, most: int) -> int:
    """How many of its outer indices each thread has, of so many threads with one."""
    each = 1
    while each < most and threads >= 4 * gpu.BUSY * each:
        each *= 2
    return each


def _with_loop_inside(n: Nest, across: Var) -> GridNest:
    """A thread has an outer index and all of a short loop, whose elements it reads lie in few lines of memory."""
    (stage,) = n.stages
    outer = tuple(v for v in n.outer if v != across)
    rows = gpu.BLOCK if cost.count(outer) >= gpu.BUSY else 128
    return GridNest(outer, (dataclasses.replace(stage, free=(across,)),), rows=rows)


def _across(n: Nest, fast: Var) -> Var | None:
    """The variable along which much is read in steps of one, while ``fast`` steps over lines of memory."""
    (stage,) = n.stages
    if (
        any(isinstance(x, Guarded) for s in stage.statements for x in walk(s.body))
        or cost.count([fast]) < gpu.TILE // 2
    ):
        return None
    found = [(_transposed(n, fast, v), k, v) for k, v in enumerate(n.outer) if v != fast and cost.count([v]) >= 8]
    most, _, v = max(found, key=lambda x: x[:2], default=(0, 0, None))
    written = sum(s.dtype.itemsize for s in stage.statements if s.address is not None) * cost.count(n.outer)
    if v is None or most * 4 < written:
        return None
    tiles = sum(x.dtype.itemsize for x in _turned(n, fast, v)) * gpu.TILE * (gpu.TILE + 1)
    return v if tiles <= gpu.SHARED else None


def _turned(n: Nest, fast: Var, v: Var) -> set[Load]:
    """What is read in steps of one along ``v``, and in longer ones along ``fast``."""
    reads = walk(*(s.body for s in n.stages[0].statements))
    return {x for x in reads if isinstance(x, Load) and passes_tile(x, fast, v)}


def _transposed(n: Nest, fast: Var, v: Var) -> int:
    """The bytes of that."""
    loaded = _turned(n, fast, v)
    return sum(x.dtype.itemsize * cost.count(w for w in n.outer if w in x.index[0].variables) for x in loaded)


def passes_tile(x: Load, fast: Var, across: Var) -> bool:
    """Whether a load is one that a tile turns: its address is a sum of steps along the two variables and others."""
    if not x.index:
        return False
    index = x.index[0]
    known = all(isinstance(atom, Var) for atom, _ in index.terms)
    return known and distance(index, across) == 1 and distance(index, fast) > 1


def _flattened(n: Nest, fast: Var) -> tuple[Nest, Var]:
    """The innermost loops as one, where what is written runs on from one to the other and vectors would not fit.

    Before: ``t[6*i + j]`` of ``x[6*i + j] + y[j]``, for j < 6. After: ``t[k]`` of ``x[k] + y[k % 6]``.
    """
    (stage,) = n.stages
    while len(n.outer) > 1 and lanes_along(fast, n.stages) < gpu.BYTES // max(
        2, min(s.dtype.itemsize for s in stage.statements)
    ):
        before = n.outer[-2]
        sizes = [v.size for v in (before, fast)]
        stores = [s.address for s in stage.statements if s.address is not None]
        if not all(isinstance(size, int) for size in sizes) or not all(runs_on(i, before, fast) for i in stores):
            break
        one = Var(f"{fast.name}f", int(sizes[0]) * int(sizes[1]))
        values = {before: Index.of(one) // int(sizes[1]), fast: Index.of(one) % int(sizes[1])}
        stage = dataclasses.replace(stage, statements=substituted(stage.statements, values))
        n, fast = Nest((*n.outer[:-2], one), (stage,)), one
    return n, fast


def _beyond_rows(n: Nest, fast: Var, outer: int) -> GridNest | None:
    """Vectors that do not begin where rows do, where these are long and of an odd length and stores fill memory."""
    (stage,) = n.stages
    stores = [s.address for s in stage.statements if s.address is not None]
    if cost.count([fast]) < gpu.LONG or not all(isinstance(v.size, int) for v in n.outer) or outer >= 1 << 31:
        return None
    loops = tuple(sorted(n.outer, key=lambda v: -(distance(stores[0], v) or 0)))
    place = place_of(loops)
    along = [(i, width) for i, width in accesses(stage) if distance(i, fast) == 1]
    lanes = min(8, gpu.BYTES // min(width for _, width in along)) if along else 1
    while lanes > 1 and outer < gpu.BUSY * lanes:
        lanes //= 2
    guards = sum(
        isinstance(x, Guarded) and fast in variables(x.condition) for s in stage.statements for x in walk(s.body)
    )
    fitting = sum(is_in_step(i, place, lanes) for i, _ in along)
    if lanes <= lanes_along(fast, n.stages) or loops[-1] != fast or guards > gpu.GUARDS or fitting * 2 < len(along):
        return None
    if not all(is_in_step(i, place, lanes) for i in stores):
        return None
    return GridNest(loops, n.stages, fast, rows=gpu.BLOCK, lanes=lanes, flat=True)
