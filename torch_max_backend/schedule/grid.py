"""Kernels for a GPU: which thread of which block computes what.

A block has ``rows`` outer indices at a time, and for each of them ``threads`` threads, which share its inner loops.
Sizes, steps in memory and the number of elements decide:

- without inner loops, or with short ones, a thread has an outer index for itself, or a vector of them;
- where the inner loops run along memory, neighbouring threads take neighbouring elements of them: a part of a warp, a
  warp or a whole block an outer index;
- where memory runs along an outer loop, neighbouring threads take neighbouring outer indices (``columns``), and what is
  left of the block shares the inner loops.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from torch_max_backend.base.errors import Unsupported
from torch_max_backend.loops.expr import Load, walk
from torch_max_backend.loops.index import Var
from torch_max_backend.loops.program import Definition, Scan, Scatter, Sort
from torch_max_backend.schedule import cost
from torch_max_backend.schedule import grid_limits as gpu
from torch_max_backend.schedule.grid_elements import thread_each
from torch_max_backend.schedule.grid_memory import best_loop, pace
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.grid_rows import along_inner, columns, common_loop, held_columns, scans
from torch_max_backend.schedule.grid_sorts import sorts
from torch_max_backend.schedule.kernel import Kernel, Layout, Stage
from torch_max_backend.schedule.nest import Nest, StageNest, linear_nest, merged, ordered
from torch_max_backend.schedule.scatter_nest import update_of


def grid_nest(kernel: Kernel, layouts: Mapping[str, Layout], local: frozenset[str], cluster: int = 1) -> GridNest:
    """The nest of a kernel for a GPU, of which up to ``cluster`` blocks can work on one outer index together.

    Raises:
        Unsupported: It has what no GPU kernel does.
    """
    n = ordered(merged(linear_nest(kernel, layouts, local)))
    if any(isinstance(s.how, Sort) for stage in n.stages for s in stage.statements):
        return sorts(n)
    scanned = [s for stage in n.stages for s in stage.statements if isinstance(s.how, Scan)]
    return scans(n, scanned) if scanned else _shared_out(n, cluster)


def grid_scatter(d: Definition, layouts: Mapping[str, Layout]) -> list[GridNest]:
    """The nests of a scatter: the tensor that is scattered into, and then the updates, by atomic operations.

    Raises:
        Unsupported: There is no atomic operation for it.
    """
    assert isinstance(d.how, Scatter)
    rounds = d.how.combiner in ("sum", "product") and d.dtype.is_floating_point
    if rounds and torch.are_deterministic_algorithms_enabled():
        raise Unsupported(f"an atomic {d.how.combiner} is in no order, and deterministic algorithms are asked for")
    if d.how.combiner != "set" and d.dtype is torch.bool:
        raise Unsupported(f"a GPU has no atomic {d.how.combiner} of {d.dtype}")
    plain = dataclasses.replace(d, how=None)
    first = grid_nest(Kernel(tuple(v for v in d.variables if v.size != 1), [Stage((), [plain])]), layouts, frozenset())
    loops = tuple(v for v in d.how.variables if v.size != 1)
    return [first, _shared_out(merged(Nest(loops, (StageNest((), (), (update_of(d, d.how, layouts),)),))))]


def _shared_out(n: Nest, cluster: int = 1) -> GridNest:
    outer_bytes, fast = best_loop(n.outer, n.stages, n.outer)
    inner_bytes = sum(best_loop(s.inner, (s,), n.outer)[0] for s in n.stages)
    outer, inner = max(1, cost.count(n.outer)), max(cost.count(s.inner) for s in n.stages)
    if fast is not None:
        n = dataclasses.replace(n, outer=(*(v for v in n.outer if v != fast), fast))
    in_order = any(isinstance(s.how, Scatter) for stage in n.stages for s in stage.statements)
    common = common_loop(list(n.stages))
    times = sum(bool(s.inner) for s in n.stages)  # as often is a short row read, if a thread does not hold it
    goes_across = outer_bytes >= (inner_bytes // times if common is not None and common <= gpu.SHORT else inner_bytes)
    if common is not None and fast is not None and goes_across and not in_order:
        found = held_columns(n, fast, common, outer)
        if found is not None:
            return found
    if inner == 1 or in_order or (outer_bytes >= inner_bytes and (inner <= gpu.SHORT or outer >= gpu.BUSY * 2)):
        return thread_each(n, fast, outer)
    if outer_bytes >= inner_bytes:
        return columns(n, fast, outer, inner)
    if fast is not None and inner <= gpu.WINDOW and outer >= gpu.BUSY * 2 and _has_windows(n, fast):
        return thread_each(n, fast, outer)
    return along_inner(n, outer, inner, cluster)


def _has_windows(n: Nest, fast: Var) -> bool:
    """Whether every thread reads a window of several dimensions, and neighbours along ``fast`` read the same lines."""
    loads = [x for s in n.stages for t in s.statements for x in walk(*t.expressions) if isinstance(x, Load) and x.index]
    moving = [x for x in loads if {*n.outer, *(v for s in n.stages for v in s.inner)} & x.index[0].variables]
    several = all(sum(v.size != 1 for v in s.inner) > 1 for s in n.stages if s.inner)
    steps = [(pace(x.index[0], fast), x.dtype.itemsize) for x in moving]
    near = all(step is not None and 0 <= step * width <= gpu.SECTOR for step, width in steps)
    are_apart = _is_whole_vector(n) and all(step == n.stages[0].inner[-1].size for step, _ in steps)
    return several and near and not are_apart


def _is_whole_vector(n: Nest) -> bool:
    """Whether a row of each window is a vector as wide as can be read, which neighbours don't read."""
    v, *others = {s.inner[-1] for s in n.stages if s.inner}
    widths = {width for s in n.stages for i, width in s.accesses if v in i.variables}
    return not others and isinstance(v.size, int) and bool(widths) and v.size * min(widths) % gpu.BYTES == 0
