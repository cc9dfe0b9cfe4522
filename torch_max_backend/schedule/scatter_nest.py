"""Loop nests of scatters: the tensor that is scattered into, and then the updates, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch_max_backend.loops.expr import Load, Scalar, rewrite, variables
from torch_max_backend.loops.index import Index, Var, least
from torch_max_backend.loops.program import Definition, Scatter
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.kernel import Kernel, Layout, Stage
from torch_max_backend.schedule.nest import (
    LANES,
    Nest,
    StageNest,
    Statement,
    distance,
    linear_nest,
    merged,
    substituted,
)
from torch_max_backend.schedule.vectors import nest

PARTS = 16
"""Parts of a row that threads share."""
FEW = 2
"""Times as many elements as are updated, at most, are copied by the threads that update them: most of a larger tensor
stays as it is, and is copied faster line by line."""


def scatter_nests(d: Definition, layouts: Mapping[str, Layout]) -> list[Nest]:
    """Two nests in the same memory, or one of two stages.

    Before: ``t0[i:8, j:4] = x[i, j], then sum at [[n[k]], c] over k:9, c:4 of y[k, c]``. After: a kernel over i and j
    that copies x, and one over c, in each thread for k in order, that adds to ``t0[[n[k]], c]``. Where threads share a
    few pieces of rows, one kernel does both, so that none of them writes what is in another one's cache.
    """
    assert isinstance(d.how, Scatter)
    plain = dataclasses.replace(d, how=None)
    updates = _updates(d, d.how, layouts)
    together = _with_copy(plain, d.how, updates, layouts)
    if together is not None:
        return [together]
    first = nest(Kernel(tuple(v for v in d.variables if v.size != 1), [Stage((), [plain])]), layouts, frozenset())
    return [first, updates]


def _with_copy(plain: Definition, how: Scatter, updates: Nest, layouts: Mapping[str, Layout]) -> Nest | None:
    """The nest of updates, with what they are added to in a stage before them, if pieces of rows are all they share."""
    (stage,) = updates.stages
    if len(updates.outer) != 1 or stage.vector is None or cost.count(updates.outer) > PARTS:
        return None
    if cost.count(plain.variables) > FEW * cost.count(how.variables):
        return None
    (p,) = updates.outer
    whole = [
        v
        for v, t in zip(plain.variables, how.target, strict=True)
        if v.size != 1 and any(_is(t, w) for w in how.variables)
    ]
    rows = tuple(v for v in plain.variables if v.size != 1 and v not in whole)
    made = merged(linear_nest(Kernel(tuple(whole), [Stage(rows, [plain])]), layouts, frozenset()))
    (copy,) = made.stages
    address, target = copy.statements[0].address, stage.statements[0].address
    if len(made.outer) != 1 or address is None or target is None or address.coefficient(made.outer[0]) != 1:
        return None
    (v,) = made.outer
    chunk = target.coefficient(p)
    if not isinstance(v.size, int) or chunk == 0 or p.size != -(-v.size // chunk):
        return None
    mine = Var(f"{v.name}q", stage.vector.size)
    statements = substituted(copy.statements, {v: Index.of(p) * chunk + mine})
    return dataclasses.replace(updates, stages=(StageNest((*copy.free, mine), (), statements, mine), stage))


def _updates(d: Definition, how: Scatter, layouts: Mapping[str, Layout]) -> Nest:
    """Threads share the variables that are an index of the target themselves: no two of them write the same element."""
    statement = update_of(d, how, layouts)
    address = statement.address
    assert address is not None
    loops = [v for v in how.variables if v.size != 1]
    own = [v for v in loops if any(_is(t, v) for t in how.target)]
    shared = tuple(sorted(own, key=lambda v: -distance(address, v)))
    ordered = tuple(v for v in loops if v not in own)
    return _with_rows_inside(merged(Nest(shared, (StageNest(ordered, (), (statement,)),))))


def update_of(d: Definition, how: Scatter, layouts: Mapping[str, Layout]) -> Statement:
    """What combines one element of the source of a scatter into its place."""
    done: dict[Scalar, Scalar] = {}

    def load(x: Load) -> Load:
        return Load(x.source, (layouts[x.source].address(x.index),), x.dtype)

    def again(x: Scalar) -> Scalar:
        return rewrite(x, {}, load, done)

    address = layouts[d.name].address(tuple(t.substitute({}, again) for t in how.target))
    return Statement(d.name, d.dtype, again(how.source), address, where=d.where, how=how)


def _is(index: Index, v: Var) -> bool:
    """Whether an index is the variable, apart from a constant: different values are different places."""
    return len(index.terms) == 1 and index.terms[0][0] == v


def _with_rows_inside(n: Nest) -> Nest:
    """The variable along which the tensor's elements are neighbours, cut in parts for the threads, runs innermost.

    In vectors, unless each of its values has a place of its own: picking those apart costs more than is won.
    """
    (stage,) = n.stages
    address = stage.statements[0].address
    scattered = frozenset().union(*(variables(x) for x in stage.statements[0].expressions[1:]))
    v = next((v for v in n.outer if address is not None and address.coefficient(v) == 1), None)
    if v is None or not isinstance(v.size, int):
        return n
    others = tuple(w for w in n.outer if w != v)
    parts = max(1, min(-(-PARTS // max(1, cost.count(others))), v.size // (4 * LANES)))
    chunk = -(-v.size // (parts * LANES)) * LANES
    if chunk >= v.size:
        return Nest(others, (dataclasses.replace(stage, free=(*stage.free, v), vector=None if v in scattered else v),))
    p = Var(f"{v.name}p", -(-v.size // chunk))
    left = least(Index.of(chunk), v.size - Index.of(p) * chunk)
    q = Var(f"{v.name}q", left.constant if left.is_constant else left)
    statements = substituted(stage.statements, {v: Index.of(p) * chunk + q})
    return Nest((*others, p), (StageNest((*stage.free, q), (), statements, q if v not in scattered else None),))
