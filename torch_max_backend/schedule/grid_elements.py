"""Kernels for a GPU in which a thread has outer indices for itself: elements, and transposes by tiles."""

from __future__ import annotations

import dataclasses

from torch_max_backend.loops.expr import Guarded, Op, variables, walk
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.program import Scatter
from torch_max_backend.schedule import cost
from torch_max_backend.schedule import grid_limits as gpu
from torch_max_backend.schedule.grid_interleaved import Interleaved, interleaved
from torch_max_backend.schedule.grid_memory import (
    is_apart,
    is_in_step,
    is_vectorizable,
    is_whole,
    lanes_along,
)
from torch_max_backend.schedule.grid_nest import GridNest, place_of
from torch_max_backend.schedule.grid_tiles import tile_of, with_long_sides, with_parts_apart
from torch_max_backend.schedule.nest import Nest, StageNest, distance, runs_on, substituted


def thread_each(n: Nest, fast: Var | None, outer: int) -> GridNest:
    """A thread has an outer index, or a vector of them along the fastest loop."""
    plain = len(n.stages) == 1 and not n.stages[0].inner and n.stages[0].statements[0].how is None
    if plain and fast is not None:
        pair = interleaved(n, outer)
        if pair is not None:
            return _turned_in_registers(n, pair)
        tile = tile_of(n, fast, outer)
        if tile is None and _has_conditions(n):
            apart = with_parts_apart(n, fast)
            tile = tile_of(apart, fast, outer)
            n = n if tile is None or not tile.is_large else apart
        if tile is not None and not tile.is_large and cost.count([tile.across]) <= gpu.SHORT and not _has_conditions(n):
            return _with_loop_inside(n, tile.across)
        longer, tile = with_long_sides(n, tile) if tile is not None else (n, None)
        if tile is not None and tile.is_large:
            return GridNest(longer.outer, longer.stages, rows=1, tile=tile)
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
    vector = fast if lanes > 1 else None
    each, repeated = 1, None
    scattered = len(n.stages) == 1 and not n.stages[0].inner and isinstance(n.stages[0].statements[0].how, Scatter)
    if (plain or scattered) and (lanes == 1 or is_whole(fast, lanes)):
        repeated = _loop_that_shares(n, fast) if plain else None
        each = times(outer // lanes, _most_at_once(n.stages[0], lanes, repeated is not None))
        repeated = repeated if each > 1 else None
    return GridNest(n.outer, n.stages, vector, rows=rows, lanes=lanes, each=each, repeated=repeated)


def _most_at_once(stage: StageNest, lanes: int, shares: bool) -> int:
    """How many outer indices, or vectors of them, a thread may have: more if they share what takes longest."""
    stores = {s.address: s.dtype.itemsize * lanes for s in stage.statements if s.address is not None}
    loads = {i: width * lanes for i, width in stage.accesses if i not in stores}
    reads = (gpu.SHARING_READS if shares else 2 * gpu.AHEAD) // max(1, len(loads))
    bytes_ = gpu.SHARING_BYTES // max(1, sum(loads.values())) if shares else gpu.BYTES // max(1, sum(stores.values()))
    return max(1, min(gpu.TIMES, bytes_, reads))


def _loop_that_shares(n: Nest, fast: Var | None) -> Var | None:
    """The loop of which a thread should have several indices: those along it share the most that is computed.

    As where images are enlarged: places and weights in an image are the same for all images. Places alone, as where one
    is reflected, take no longer than memory.
    """
    every = {x for s in n.stages[0].statements for x in walk(*s.expressions)}
    varying = [variables(x) for x in every if isinstance(x, Op)]
    known = [v for v in n.outer if v != fast and isinstance(v.size, int) and v.size >= gpu.TIMES]
    shared = {v: sum(bool(used) and v not in used for used in varying) for v in known}
    best = max(known, key=lambda v: shared[v], default=None)
    return best if best is not None and shared[best] >= gpu.WORTH_SHARING else None


def _turned_in_registers(n: Nest, pair: Interleaved) -> GridNest:
    (stage,) = n.stages
    outer = (*(v for v in n.outer if v not in (pair.short, pair.long)), pair.long)
    inside = dataclasses.replace(stage, free=(pair.short,))
    vector = pair.long if pair.lanes > 1 else None
    return GridNest(outer, (inside,), vector, rows=gpu.BLOCK, lanes=pair.lanes, interleaved=pair)


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


def _has_conditions(n: Nest) -> bool:
    return any(isinstance(x, Guarded) for s in n.stages[0].statements for x in walk(s.body))


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
    along = [(i, width) for i, width in stage.accesses if distance(i, fast) == 1]
    widest = max(s.dtype.itemsize for s in stage.statements if s.address is not None)
    lanes = min(8, gpu.BYTES // max(widest, min(width for _, width in along))) if along else 1
    while lanes > 1 and outer < gpu.BUSY * lanes:
        lanes //= 2
    guards = sum(
        isinstance(x, Guarded) and fast in variables(x.condition) for s in stage.statements for x in walk(s.body)
    )
    fitting = sum(is_in_step(i, place, lanes) for i, _ in along)
    if sum(is_apart(i, fast) for i, _ in stage.accesses) > len(along):  # lanes would be read one by one
        return None
    if lanes <= lanes_along(fast, n.stages) or loops[-1] != fast or guards > gpu.GUARDS or fitting * 2 < len(along):
        return None
    if not all(is_in_step(i, place, lanes) for i in stores):
        return None
    return GridNest(loops, n.stages, fast, rows=gpu.BLOCK, lanes=lanes, flat=True)
