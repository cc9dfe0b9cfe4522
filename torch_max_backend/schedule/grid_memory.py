"""What runs along memory in a GPU's kernel, and how wide vectors of it can be."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from torch_max_backend.loops.expr import COMPARISONS, Const, FromIndex, Guarded, Load, Op, Scalar, variables, walk
from torch_max_backend.loops.index import Computed, Index, Var
from torch_max_backend.loops.program import Scatter
from torch_max_backend.schedule import cost
from torch_max_backend.schedule import grid_limits as gpu
from torch_max_backend.schedule.nest import StageNest, Statement, distance


def _along(v: Var, stages: tuple[StageNest, ...], outer: tuple[Var, ...]) -> int:
    """Bytes of memory that are read and written in steps of one element along ``v``, or in short ones of which several
    loads read all elements, as three do of points.

    A tensor that several stages read counts once. Stores, of which no cache makes whole lines, count ``STORES`` times.
    """
    loaded: dict[str, int] = {}
    beside: dict[tuple[str, int], set[Index]] = {}
    stored = 0
    for s in stages:
        for x in walk(*(e for t in s.statements for e in t.expressions)):
            if not isinstance(x, Load) or not x.index:
                continue
            step = distance(x.index[0], v)
            if not step or not 0 < step <= gpu.SECTOR // x.dtype.itemsize:
                continue
            own = beside.setdefault((x.source, step), set())
            own.add(x.index[0])
            if len(own) >= step:
                moving = variables(x)  # those of an index that is read, too
                touched = step * cost.count(w for w in (*outer, *s.inner) if w in moving)
                loaded[x.source] = max(loaded.get(x.source, 0), x.dtype.itemsize * touched)
        for t in s.statements:
            if t.address is not None and distance(t.address, v) == 1:
                stored += t.dtype.itemsize * cost.count(w for w in (*outer, *s.inner) if w in t.address.variables)
    return sum(loaded.values()) + gpu.STORES * stored


def best_loop(loops: tuple[Var, ...], stages: tuple[StageNest, ...], outer: tuple[Var, ...]) -> tuple[int, Var | None]:
    """The loop that runs most along memory, and its bytes."""
    found = [(_along(v, stages, outer), k, v) for k, v in enumerate(loops) if v.size != 1]
    bytes_along, _, v = max(found, key=lambda x: (x[0], x[1]), default=(0, 0, None))
    return bytes_along, v


def pace(index: Index, v: Var) -> float | None:
    """How far apart in memory neighbours along ``v`` are on average; nothing where that depends on what is read."""
    last = max(2, cost.count([v])) - 1
    places = _places(index, v, (0, last))
    return (places[1] - places[0]) / last if places else None


def _places(index: Index, v: Var, at: Sequence[int]) -> list[int]:
    """An index at some iterations of a loop, the first of others; nothing if it depends on what is read."""
    if any(isinstance(atom, Computed) for atom in index.atoms):
        return []
    return [index.substitute({w: Index.of(k if w == v else 0) for w in index.variables}).typical for k in at]


def is_in_step(address: Index, place: Index, lanes: int) -> bool:
    """Whether an address is that of an iteration's number, but for a multiple of ``lanes``."""
    apart = address - place
    return apart.is_constant and apart.constant % lanes == 0


def is_whole(v: Var | None, lanes: int) -> bool:
    return v is not None and isinstance(v.size, int) and v.size % lanes == 0


def is_vectorizable(v: Var, stages: tuple[StageNest, ...]) -> bool:
    """Whether no loop's length depends on ``v``, and what is scattered can be so in vectors."""
    for s in stages:
        if any(isinstance(w.size, Index) and v in w.size.variables for w in s.inner):
            return False
        if not all(_is_scattered_in_vectors(x, v) for x in s.statements if isinstance(x.how, Scatter)):
            return False
    return True


def _is_scattered_in_vectors(s: Statement, v: Var) -> bool:
    """Whether neighbours along ``v`` have places side by side, and a GPU stores or adds several of them at once."""
    assert isinstance(s.how, Scatter) and s.address is not None
    adds = s.how.combiner == "sum" and s.dtype in (torch.float32, torch.float16, torch.bfloat16)
    return (adds or s.how.combiner == "set") and distance(s.address, v) == 1


def lanes_along(v: Var, stages: tuple[StageNest, ...], results_are_few: bool = False) -> int:
    """Elements of 16 bytes of the narrowest tensor along ``v``, if what is written begins at a multiple of its size.

    A thread's stores are of 16 bytes at most, too. With ``results_are_few`` only those within inner loops count.
    """
    stores, counting = list[tuple[Index, int]](), list[int]()
    for stage in stages:
        for s in stage.statements:
            if s.address is not None and s.address.stride(v) != 0:
                stores.append((s.address, s.dtype.itemsize))
                counting += [s.dtype.itemsize] if not results_are_few or {*stage.free} & s.address.variables else []
    along = [(i, width) for s in stages for i, width in s.accesses if distance(i, v) == 1]
    apart = sum(is_apart(i, v) for s in stages for i, _ in s.accesses)
    conditions = [x.condition for x in walk(*(x.body for s in stages for x in s.statements)) if isinstance(x, Guarded)]
    if not along or apart > len(along) or any(distance(i, v) != 1 for i, _ in stores):
        return 1
    widest = max(counting, default=1)
    lanes = min(8, gpu.BYTES // max(widest, min(width for _, width in along)))
    loads = [i for s in stages for i, _ in s.accesses if distance(i, v) != 1]
    while lanes > 1 and (
        cost.count([v]) < lanes
        or sum(not is_same_within(x, v, lanes) for x in conditions) > gpu.GUARDS
        or len(along) < _split(loads, v, lanes) > _split_in_less(loads, v, lanes)
        or not all(is_aligned(i, v, lanes) for i, _ in stores)
        or sum(is_aligned(i, v, lanes) for i, _ in along) * 2 < len(along)
    ):
        lanes //= 2
    return lanes


def lanes_of_stores(v: Var, stages: tuple[StageNest, ...]) -> int:
    """Elements that every store along ``v`` may have, of 16 bytes at most, whatever is read; 0 if nothing is stored."""
    along = [(s.address, s.dtype.itemsize) for stage in stages for s in stage.statements if s.address is not None]
    along = [(i, width) for i, width in along if i.stride(v) != 0]
    lanes = min((gpu.BYTES // width for _, width in along), default=0)
    while lanes > 1 and not (
        is_whole(v, lanes) and all(distance(i, v) == 1 and is_aligned(i, v, lanes) for i, _ in along)
    ):
        lanes //= 2
    return min(8, lanes)


def _split(loads: Sequence[Index], v: Var, lanes: int) -> int:
    """How many loads vectors along ``v`` split into elements."""
    return sum(not (i.stride(v) == 0 or runs_within(i, v, lanes)) for i in loads)


def _split_in_less(loads: Sequence[Index], v: Var, lanes: int) -> int:
    """How many loads narrower vectors split: half as wide ones, or, of windows, all that have two elements or more."""
    narrower = [lanes // 2, lanes // 4] if lanes > 4 and len(loads) >= gpu.WINDOW_LOADS else [lanes // 2]
    return min(_split(loads, v, k) for k in narrower)


def runs_within(index: Index, v: Var, lanes: int) -> bool:
    """Whether vectors that begin at multiples of ``lanes`` along ``v`` are of neighbours in memory.

    So are those of 4 of ``30 * (v // 20) + v % 20``.
    """
    if any(isinstance(atom, Computed) for atom in index.atoms):
        return False
    whole, lane = Var("q", 1 << 32), Var("r", lanes)
    apart = index.substitute({v: Index.of(whole) * lanes + Index.of(lane)}) - Index.of(lane)
    return lane not in apart.variables


def is_same_within(condition: Scalar, v: Var, lanes: int) -> bool:
    """Whether a condition is the same in all lanes of vectors that begin at multiples of ``lanes`` along ``v``.

    So is ``v + 8 * w < 24`` for 8 lanes, of which parts that are joined have one each.
    """
    if v not in variables(condition):
        return True
    if not isinstance(condition, Op):
        return False
    if condition.name in ("bit_and", "bit_or", "bit_not"):
        return all(is_same_within(x, v, lanes) for x in condition.operands)
    sides = [x.index if isinstance(x, FromIndex) else _whole_number(x) for x in condition.operands]
    if condition.name not in COMPARISONS or any(side is None for side in sides):
        return False
    left, right = reversed(sides) if condition.name in ("gt", "le") else sides
    apart = left - right  # type: ignore[operator]
    if any(isinstance(atom, Computed) for atom in apart.atoms):
        return False
    whole, lane = Index.of(Var("q", 1 << 32)) * lanes, Var("r", lanes)
    each = apart.substitute({v: whole + lane})
    if lane not in each.variables:
        return True
    begins = each - lane  # and so is below zero, or not, as its last lane is
    return condition.name not in ("eq", "ne") and lane not in begins.variables and begins % lanes == 0


def _whole_number(x: Scalar) -> Index | None:
    return Index.of(int(x.value)) if isinstance(x, Const) and not x.dtype.is_floating_point else None


def is_apart(index: Index, v: Var) -> bool:
    """Whether neighbours along ``v`` are no neighbours in memory, nor the same or neighbours in turns."""
    step = index.stride(v)
    if step is not None:
        return step != 0 and abs(step.typical) != 1 and cost.count([v]) > 1
    places = _places(index, v, range(min(cost.count([v]), gpu.LOOKED_AT)))
    return not places or any(b - a not in (0, 1) for a, b in itertools.pairwise(places))


def is_aligned(index: Index, v: Var, lanes: int) -> bool:
    """Whether vectors that begin at multiples of ``lanes`` along ``v`` begin at multiples of it in memory."""
    return index.substitute({v: Index.of(Var("q", 1 << 32)) * lanes}) % lanes == 0
