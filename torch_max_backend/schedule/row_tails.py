"""What is computed once a row, for sixteen rows at a time in vectors.

A logarithm or a root of one number takes as long as of sixteen. Where rows are short it takes longer than the row.

Before: ``for i:512:``, in it ``t = sum of x[32*i + r]`` and then ``y[i] = log(t)``.
After: ``for ip:32:``, in it ``for iq:16: t[iq] = sum of x[512*ip + 32*iq + r]`` and then, in a vector,
``y[16*ip + iq] = log(t[iq])``, where ``t`` has 16 elements that the thread keeps. It keeps sixteen of each row that it
kept one of.
"""

from __future__ import annotations

import dataclasses

from torch_max_backend.loops.expr import Load, Scalar, rewrite, walk
from torch_max_backend.loops.index import Atom, Index, Var
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.nest import LANES, Nest, OwnRow, StageNest, Statement, cut
from torch_max_backend.schedule.own_rows import NEAR

DEAR = 6
"""Cost of what is computed once a row, from which it is worth to be computed in vectors."""
SHORT, MANY = 512, 512
"""Elements of a row up to which it matters, and rows from which there are enough blocks for the threads."""


def tails_in_vectors(n: Nest) -> Nest:
    """The nest with blocks of rows, if each row is reduced and something dear is computed of the results."""
    if n.vector is not None or n.several or not n.outer or LANES * sum(row.bytes for row in n.own) > NEAR // 2:
        return n
    tails = [s for s in n.stages if not s.inner]
    dear = cost.of_expression(*(e for s in tails for x in s.statements for e in x.expressions))
    if dear < DEAR or not all(map(_is_plain, n.stages)) or len(tails) == len(n.stages):
        return n
    if cost.count(n.outer) < MANY or max(cost.count(s.inner) for s in n.stages) > SHORT:
        return n
    v = n.outer[-1]
    size = Index.of(v.size)
    stores = [s.address for stage in tails for s in stage.statements if s.address is not None]
    if not size.is_fixed or cost.count([v]) < LANES or any(address.coefficient(v) != 1 for address in stores):
        return n
    if any(v in w.size.variables for s in n.stages for w in s.inner if isinstance(w.size, Index)):
        return n
    if any(s.name in _kept(n) and s.address is not None for stage in n.stages for s in stage.statements):
        return n
    return _blocks(n, v)


def _is_plain(stage: StageNest) -> bool:
    """Whether it reduces a row, or computes something once or for each element."""
    return not (stage.free and stage.reduced) and all(s.how is None for s in stage.statements)


def _blocks(n: Nest, v: Var) -> Nest:
    p, q = cut(v, LANES)
    values: dict[Atom, Index] = {v: Index.of(p) * LANES + q}
    kept = _kept(n)
    rows = {row.name: row.size for row in n.own}
    own = (*kept.values(), *(dataclasses.replace(row, size=row.size * LANES) for row in n.own))

    def moved(stage: StageNest) -> StageNest:
        here, done = {s.name for s in stage.statements}, dict[Scalar, Scalar]()

        def load(x: Load) -> Scalar:
            if x.source in rows and x.index:
                return Load(x.source, (x.index[0] + Index.of(q) * rows[x.source],), x.dtype)
            return x if x.index or x.source in here else Load(x.source, (Index.of(q),), x.dtype)

        def again(x: Scalar) -> Scalar:
            return rewrite(x, values, load, done)

        def statement(s: Statement) -> Statement:
            address = None if s.address is None else s.address.substitute(values, again)
            place = None if s.place is None else s.place.substitute(values, again)
            if s.name in kept:
                address = Index.of(q)
            elif s.name in rows and address is not None:
                address = address + Index.of(q) * rows[s.name]
            return dataclasses.replace(s, body=again(s.body), address=address, place=place)

        statements = tuple(map(statement, stage.statements))
        return StageNest((q, *stage.free), stage.reduced, statements, stage.vector if stage.inner else q)

    return dataclasses.replace(n, outer=(*n.outer[:-1], p), stages=tuple(map(moved, n.stages)), own=own)


def _kept(n: Nest) -> dict[str, OwnRow]:
    """What stages read in registers that earlier ones have written, with the memory for it."""
    found: dict[str, OwnRow] = {}
    for stage in n.stages:
        here = {s.name for s in stage.statements}
        for x in walk(*(e for s in stage.statements for e in s.expressions)):
            if isinstance(x, Load) and not x.index and x.source not in here:
                found[x.source] = OwnRow(x.source, x.dtype, LANES)
    return found
