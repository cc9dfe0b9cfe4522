"""Along which loop of a nest vectors run, and loops cut where conditions change."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from torch_max_backend.loops.expr import Checked, Guarded, Load, variables, walk
from torch_max_backend.loops.index import Computed, Index, Least, Product, Var
from torch_max_backend.loops.program import Scan, Scatter
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.kernel import Kernel, Layout
from torch_max_backend.schedule.nest import (
    EVERY,
    LANES,
    Nest,
    StageNest,
    Statement,
    cut,
    distance,
    indices,
    lanes_of,
    linear_nest,
    merged,
    ordered,
    substituted,
)
from torch_max_backend.schedule.partition_loops import is_decidable, partition
from torch_max_backend.schedule.repeated_rows import in_blocks
from torch_max_backend.schedule.wide_extremes import EXTREMES

LINE = 64
"""Bytes that memory gives at once."""
WAY, WAYS, NEAR_WAYS = 4096, 16, 8
"""Bytes: addresses that are a multiple of this apart have the same place in a cache, of which there are so many at most
in the second one, and in the first one."""
BLOCK = 16
"""Rows, at least, that a transpose writes side by side, where all of them would push each other out of these places."""
ONE_BY_ONE, STORE, CHAINED, MISS = 0.5, 1.5, 3.0, 2.0
"""Cycles: of an operation that is in no vector; of a store, against a load's 1; of waiting for the sum before; and of a
line that is not near."""
PICKED = 8.0
"""Cycles of reading two long vectors, and of picking elements in short steps from them."""
FOUND = 80.0
"""Cycles of finding where the extreme of a vector's lanes is, behind a loop in vectors along what is searched."""
PREFIX = 0.5
"""Cycles that an element of a scan takes in vectors along it, whose lanes are combined with each other."""
SHORTER = 8
"""Iterations of a loop, at most, that leave half of a vector empty."""
GATHERED = 4
"""Bytes of an element, at least, that processors load from places of their own for all lanes at once."""
FEW = 4
"""Parts, at least, that a kernel should have for its threads."""
SLICE = 4096
"""Elements of an elementwise loop that a thread takes at a time."""
FACTORS = 4
"""Vectors that every iteration of a loop reads again, from which it is the innermost."""
FAR = 2
"""A step in memory of symbolic length counts as this at least: elements are no neighbours for certain."""


def nest(kernel: Kernel, layouts: Mapping[str, Layout], local: frozenset[str]) -> Nest:
    """The loop nest of a kernel, for threads that each run many of its outer iterations."""
    return _partitioned(_with_vectors(ordered(merged(linear_nest(kernel, layouts, local)))))


def _gain(v: Var, statements: tuple[Statement, ...]) -> float:
    """How well vectors along ``v`` read and write memory: neighbours are good, gaps are bad, divisions are worse."""
    gain = 0.0
    stores = [s.address for s in statements if s.address is not None]
    for index in [*indices(*statements), *stores]:  # gaps between stores cost more than gaps between loads
        step = _step(index, v)
        gain += -2 if step is None else 1 if step == 1 else 0.4 if step == 0 else -0.5
    size, lanes = cost.count([v]), lanes_of(v)
    filled = size / max(LANES, -(-size // lanes) * LANES)
    return gain * filled if gain > 0 else gain


def _step(index: Index, v: Var) -> int | None:
    """By how much an index grows with ``v`` in most of its loop, once that is cut; ``None`` where that differs."""
    step = 0
    for atom, k in index.terms:
        if atom == v:
            step += k
        elif isinstance(atom, Product) and (stride := Index(0, ((atom, k),)).stride(v)) is not None:
            step += max(FAR, abs(stride.typical)) if stride != 0 else 0
        elif isinstance(atom, Least):
            left, right = _step(atom.left, v), _step(atom.right, v)
            if left is None or right is None:
                return None
            step += k * max(left, right, key=abs)
        elif v in Index(0, ((atom, 1),)).atoms or any(
            v in variables(a.value) for a in Index(0, ((atom, 1),)).atoms if isinstance(a, Computed)
        ):
            return None
    return step


def _partitioned(n: Nest) -> Nest:
    """Inner loops cut where conditions change. A part has vectors if no condition is left in it."""
    stages: list[StageNest] = []
    for s in n.stages:
        v = s.free[-1] if s.free else None
        if v is None:
            stages.append(s)
            continue
        kept = s.vector not in (None, v) or any(isinstance(x.how, Scan | Scatter) for x in s.statements)
        if kept or any(isinstance(w.size, Index) and v in w.size.variables for w in s.inner):
            stages.append(s)
            continue
        for part in partition(s.statements, v, {*n.outer, *s.free[:-1]} - {n.vector}):  # lanes end at one place
            one = part.variable.size == 1
            masked = part.guarded and (part.variable != v or not _can_run_in_vectors(v, (s,)))
            vector = part.variable if s.vector is not None and not masked and not one else None
            free = (*s.free[:-1], part.variable)
            stages.append(StageNest(free, s.reduced, part.statements, vector))  # type: ignore[arg-type]
    return dataclasses.replace(n, stages=tuple(stages))


def _can_run_in_vectors(v: Var, stages: tuple[StageNest, ...], fixed: frozenset[Var] | None = None) -> bool:
    """Whether no loop's length depends on ``v``, and no check of an index on a condition that does.

    With ``fixed``, the variables of loops around the one over ``v``, it must also be possible to cut that loop so that
    no condition is left in its long parts.
    """
    for s in stages:
        if any(isinstance(w.size, Index) and v in w.size.variables for w in s.inner):
            return False
        for x in s.statements:
            if isinstance(x.how, Scatter) or (isinstance(x.how, Scan) and v in s.inner and not _has_prefixes(x, v, s)):
                return False
            if any(_checks(y) for y in walk(x.body) if isinstance(y, Guarded) and _is_of_lanes(y, v)):
                return False
        if fixed is not None and not is_decidable(s.statements, v, fixed):
            return False
    return True


def _has_prefixes(s: Statement, v: Var, stage: StageNest) -> bool:
    """Whether a scan along ``v``, a stage's only loop, may combine the lanes of a vector with each other first.

    So do extremes, integers, and sums that are added up in a wider dtype than they are given in. Other results of
    floats would overflow elsewhere than one after the other.
    """
    if stage.inner != (v,):
        return False
    is_exact = s.combiner in EXTREMES or not s.body.dtype.is_floating_point
    is_wide_sum = s.combiner == "sum" and s.dtype.itemsize < s.body.dtype.itemsize
    return s.combiner != "log_sum_exp" and (is_exact or is_wide_sum)


def _has_no_conditions(v: Var, s: StageNest) -> bool:
    return not any(isinstance(y, Guarded) and _is_of_lanes(y, v) for x in s.statements for y in walk(x.body))


def _is_of_lanes(x: Guarded, v: Var) -> bool:
    """Whether lanes of vectors along ``v`` may differ in the condition: by the variable, or by what is in registers."""
    return v in variables(x.condition) or any(isinstance(y, Load) and not y.index for y in walk(x.condition))


def _checks(x: Guarded) -> bool:
    """Whether a check of an index is left out where the condition does not hold."""
    return any(isinstance(y, Checked) for y in walk(x.value, x.other))


def _with_vectors(n: Nest) -> Nest:
    """The cheaper of two ways: vectors along an outer loop through all stages, or in each stage along its best loop."""
    if len(n.stages) == 1 and not n.stages[0].inner and n.stages[0].statements[0].how is None:
        return _elementwise(n)
    outer = [(sum(_time(v, s) * _share(n, s) for s in n.stages) * _idle(v, n), v) for v in n.outer]
    outer = [(t, v) for t, v in outer if _can_run_in_vectors(v, n.stages)]
    best_outer = min(outer, key=lambda x: x[0], default=(math.inf, None))
    inner: list[tuple[float, Var | None]] = []
    for s in n.stages:
        loops = s.free + s.reduced[-1:] if any(x.place is not None for x in s.statements) else s.inner
        choices = [(_time(v, s, _around(v, s, n)), v) for v in loops if _can_run_in_vectors(v, (s,))]
        inner.append(min([(_time(None, s), None), *choices], key=lambda x: x[0]))
    total = sum(t * _share(n, s) for (t, _), s in zip(inner, n.stages, strict=True))
    if best_outer[1] is not None and (best_outer[0] < total or _waits(n)):
        return dataclasses.replace(n, vector=best_outer[1])
    stages = [
        dataclasses.replace(s, vector=v, free=_last(s.free, v), reduced=_last(s.reduced, v))
        for (_, v), s in zip(inner, n.stages, strict=True)
    ]
    return dataclasses.replace(n, stages=tuple(stages))


def _time(v: Var | None, stage: StageNest, fixed: frozenset[Var] | None = None) -> float:
    """What an element of a stage takes in vectors along ``v``, or one by one, in cycles; a model, not a measurement.

    ``fixed`` are the variables of loops around the one over ``v``, if that loop may be cut at conditions.
    """
    innermost = v if v in stage.inner or not stage.inner else stage.inner[-1]
    total = 0.0
    expressions = [e for s in stage.statements for e in s.expressions]
    for x in walk(*expressions):
        if isinstance(x, Load) and x.index:
            total += _access(x.index[0], x.dtype.itemsize, v, innermost)
    each = max(1, cost.count(stage.reduced))
    for s in stage.statements:
        if s.address is not None:
            total += _access(s.address, s.dtype.itemsize, v, innermost, STORE, is_load=False) / each
    total += cost.of_expression(*expressions) * (ONE_BY_ONE if v is None else 1 / LANES)
    if stage.reduced and v is None:
        total += CHAINED
    if v is None:
        return total
    if v in stage.reduced:
        total += sum(FOUND for s in stage.statements if s.place is not None) / each
    if v in stage.inner:
        total += sum(PREFIX for s in stage.statements if isinstance(s.how, Scan))
    if fixed is None or not is_decidable(stage.statements, v, fixed):
        total += sum(_masking(x, v) for x in walk(*expressions) if isinstance(x, Guarded) and _is_of_lanes(x, v))
    size, lanes = cost.count([v]), lanes_of(v)
    return total * max(LANES, -(-size // lanes) * LANES) / max(1, size)


def _access(
    index: Index, width: int, v: Var | None, innermost: Var | None, each: float = 1.0, is_load: bool = True
) -> float:
    """What a load or store takes for one element: how many are read at once, and how many lines of memory are new."""
    step = 0 if innermost is None else _step(index, innermost)
    lines = 1.0 if step is None else min(1.0, abs(step) * width / LINE)
    if v is None:
        return each * ONE_BY_ONE + lines * MISS
    along = _step(index, v)
    if along is None:
        return (each if is_load and width >= GATHERED else 2 * each) + lines * MISS
    if along in (0, 1):
        return (along * width / 4 + 1) / LANES
    if is_load and along in EVERY:
        return PICKED / LANES + along * width / LINE * MISS
    return each + min(1.0, abs(along) * width / LINE) * MISS


def _masking(x: Guarded, v: Var) -> float:
    """What a condition that differs between lanes takes for one of them: branches, and loads of single lanes."""
    apart = [
        y for y in walk(x.value, x.other) if isinstance(y, Load) and any(_step(i, v) not in (0, 1) for i in y.index)
    ]
    narrow = [y for y in walk(x.value, x.other) if isinstance(y, Load) and y.index and y.dtype.itemsize < 4]
    return 4 / LANES + len(apart) + len(narrow)


def _idle(v: Var, n: Nest) -> float:
    """How much longer it takes if vectors along an outer loop leave fewer parts than threads."""
    parts = -(-cost.count([v]) // lanes_of(v)) * cost.count([w for w in n.outer if w != v])
    return max(1.0, min(FEW, cost.count(n.outer)) / max(1, parts))


def _waits(n: Nest) -> bool:
    """Whether a step of a scan takes so long that several lines at once pay, whatever their distance in memory.

    Two lines are two threads'.
    """
    return cost.count(n.outer) > 2 and any(
        isinstance(s.how, Scan) and s.combiner == "log_sum_exp" for stage in n.stages for s in stage.statements
    )


def _around(v: Var, s: StageNest, n: Nest) -> frozenset[Var] | None:
    """The variables of the loops around one over ``v``, if that loop can be cut: one inside which nothing is kept."""
    return frozenset((*n.outer, *s.free)) - {v} if v in s.free else None


def _share(n: Nest, stage: StageNest) -> float:
    """The part of the kernel's work that a stage has."""
    work = [cost.count(s.inner) for s in n.stages]
    return cost.count(stage.inner) / max(1, sum(work))


def _last(loops: tuple[Var, ...], v: Var | None) -> tuple[Var, ...]:
    """Loops with ``v`` innermost."""
    return loops if v not in loops else (*(w for w in loops if w != v), v)


def _elementwise(n: Nest) -> Nest:
    """A nest without inner loops: one of the outer variables becomes the inner loop, in vectors."""
    (stage,) = n.stages
    if not n.outer:
        return n
    blocks = in_blocks(n)
    if blocks is not None:
        return blocks
    choices = [
        (_gain(v, stage.statements), v) for v in n.outer if _can_run_in_vectors(v, n.stages, frozenset(n.outer) - {v})
    ] or [(_gain(v, stage.statements), v) for v in n.outer if _can_run_in_vectors(v, n.stages)]
    gain, v = max(choices, key=lambda x: x[0], default=(0.0, None))
    if choices and gain <= 0:  # places that are read from a table, say
        time, v = min(((_time(v, stage), v) for _, v in choices), key=lambda x: x[0])
        gain = _time(None, dataclasses.replace(stage, free=n.outer[-1:])) - time
    if v is None or gain <= 0:
        v = n.outer[-1]
        inner = dataclasses.replace(stage, free=(v,))
        return sliced(Nest(tuple(w for w in n.outer if w != v), (inner,)), v, None)
    across = _read_across(n, v) if _has_no_conditions(v, stage) else None
    if across is not None:
        return _transposed(n, v, across)
    around = _around_a_short_loop(v, stage, [w for _, w in choices])
    if around is not None:
        made = Nest(tuple(w for w in n.outer if w != v), (dataclasses.replace(stage, free=(v,)),))
        return dataclasses.replace(made, vector=around)
    below = _loop_over_windows(v, stage, n.outer)
    if below is not None:
        made = Nest(tuple(w for w in n.outer if w != below), (dataclasses.replace(stage, free=(below,)),))
        return dataclasses.replace(made, vector=v)
    inner = dataclasses.replace(stage, free=(v,), vector=v)
    return sliced(Nest(tuple(w for w in n.outer if w != v), (inner,)), v, v)


def _loop_over_windows(v: Var, stage: StageNest, outer: Sequence[Var]) -> Var | None:
    """The loop over windows along which a vector along ``v`` meets the same factors again, as weights of an image's.

    They stay in registers, or at least near, if that loop is the innermost. What is no window is read in its own order.
    """
    found = {x for x in walk(*(e for s in stage.statements for e in s.expressions)) if isinstance(x, Load) and x.index}
    along = [x for x in found if distance(x.index[0], v) == 1]

    def is_over_windows(w: Var) -> bool:
        moved = Counter(x.source for x in along if w in x.index[0].variables)
        return len(along) - moved.total() >= FACTORS and max(moved.values(), default=0) >= FACTORS

    stored = [s.address for s in stage.statements if s.address is not None]
    others = [w for w in outer if w != v and is_over_windows(w)]
    return min(others, key=lambda w: min(distance(i, w) or math.inf for i in stored), default=None)


def _around_a_short_loop(v: Var, stage: StageNest, others: Iterable[Var]) -> Var | None:
    """The loop around a short one ``v`` along which vectors are quicker, though they find no neighbours in memory.

    That is where much is computed of each element, and conditions cut the short loop in parts without vectors, as
    those of a window do.
    """
    if cost.count([v]) > SHORTER or _has_no_conditions(v, stage):
        return None
    found = [(_time(w, stage), w) for w in others if w != v and cost.count([w]) >= LANES]
    time, w = min(found, key=lambda x: x[0], default=(math.inf, None))
    return w if time < _time(None, dataclasses.replace(stage, free=(v,))) else None


def _read_across(n: Nest, v: Var) -> Var | None:
    """A variable along which some load reads neighbours while ``v`` steps over lines of memory."""
    for index in indices(*n.stages[0].statements):
        if distance(index, v) > 1:
            for w in n.outer:
                if w != v and index.coefficient(w) == 1 and cost.count([w]) >= 4:
                    return w
    return None


def _transposed(n: Nest, v: Var, across: Var) -> Nest:
    """Vectors along ``v``, and inside them the variable along which reads are neighbours.

    Where the lines that this writes push each other out of the first cache, blocks of rows are written, each from its
    begin to its end.
    """
    (stage,) = n.stages
    rest = [w for w in n.outer if w != across]
    apart = max(_apart(s, across) for s in stage.statements)
    if not isinstance(across.size, int) or apart < LINE or across.size <= WAY // apart * WAYS:
        made = Nest(tuple(rest), (dataclasses.replace(stage, free=(across,)),))
        return dataclasses.replace(sliced(made, across, None), vector=v)
    read = [x.dtype.itemsize for x in walk(*stage.statements[0].expressions) if isinstance(x, Load) and x.index]
    block = max(BLOCK, min(WAY // apart * NEAR_WAYS, LINE // min(read)))  # whole lines are read, if there is room
    p, q = cut(across, block)
    statements = substituted(stage.statements, {across: Index.of(p) * block + q})
    rest.insert(rest.index(v), p)
    return Nest(tuple(rest), (StageNest((q,), (), statements, None),), vector=v)


def _apart(s: Statement, v: Var) -> int:
    """Bytes, the power of two that divides what lies between lines that a loop over ``v`` writes: up to all places."""
    return 0 if s.address is None else math.gcd(s.address.coefficient(v) * s.dtype.itemsize, WAY)


def sliced(n: Nest, v: Var, vector: Var | None) -> Nest:
    """Cut a long inner loop in slices, so that there are enough for the threads."""
    (stage,) = n.stages
    others, size = cost.count(n.outer), Index.of(v.size)
    known = all(isinstance(w.size, int) for w in n.outer)
    if size.bounds[1] < 2 * SLICE or not size.is_fixed or (others >= 64 and (known or size.is_constant)):
        return n
    chunk = max(SLICE, -(-size.constant * others // 64 // LANES) * LANES) if size.is_constant and known else SLICE
    p, q = cut(v, chunk)
    statements = substituted(stage.statements, {v: Index.of(p) * chunk + q})
    stage = StageNest((q,), (), statements, q if vector is not None else None)
    return Nest((*n.outer, p), (stage,))
