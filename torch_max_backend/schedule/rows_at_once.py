"""Reductions of several outer iterations at once, which share what they read: a matrix times one row, or a few.

A thread that sums ``w[i, r] * x[r]`` for four neighbouring ``i`` reads and converts ``x`` once for all of them, follows
four streams of memory, and has sums that do not wait for each other. With a few rows, ``w[i, r] * x[j, r]``, it sums
those of all ``j`` for two ``i``: the large ``w`` is read once, and what was read of ``x`` is used twice. Where vectors
run across a matrix and loops down its columns, neighbouring vectors at once read longer pieces of its rows.

Before: ``t0 = sum of mul(w[8*i + r], x[r])``.
After: ``t0.0 = sum of mul(w[8*i + r], x[r])``, ``t0.1 = sum of mul(w[8*i + 8 + r], x[r])``, and so on.
"""

from __future__ import annotations

import dataclasses

from torch_max_backend.loops.expr import Load, Scalar, rewrite, variables, walk
from torch_max_backend.loops.index import Atom, Index, Var
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.nest import Nest, StageNest, Statement, distance, lanes_of

ROWS = 4
"""Outer iterations at once: more of them need more registers than there are."""
LONG, MANY = 48, 16
"""Elements of a reduction, and outer iterations, from which it pays."""
SHORT = 8
"""Elements of a reduction from which it pays where vectors run along an outer loop."""
FEW, LARGE = 8, 1 << 18
"""Outer iterations up to which all of them are computed at once, for the sake of so many elements that they share."""
VECTORS, APART = 4, 256
"""Neighbouring vectors at once, where a loop reads pieces that are so many bytes apart, or more."""
FEWEST, MOST = 2, 8
"""Times so many vectors, at least, where no other loop is shared among threads; and statements, at most, whose copies
registers have room for."""
ACROSS = 2
"""Iterations of the loop around these that are computed at once with them."""


def rows_at_once(n: Nest) -> Nest:
    """The nest with the stages for several iterations of its last outer loop at once, where these share reads.

    A short outer loop becomes the last one if its iterations share what is large.
    """
    if not n.outer or not all(map(_is_plain, n.stages)):
        return n
    inside = any(s.free for s in n.stages)
    if n.vector is not None:
        made = n if inside else _columns(n, n.vector)
        return _vectors(n, n.vector) if made is n else made
    if inside:
        return n
    short = [v for v in n.outer if 1 < cost.count([v]) <= FEW and any(_shares_large_reads(s, v) for s in n.stages)]
    if len(short) == 1 and len(n.outer) > 1 and isinstance(short[0].size, int):
        return _block(n, short[0])
    v = n.outer[-1]
    if cost.count([v]) < MANY or not any(_shares_reads(s, v) for s in n.stages) or _bounds_others(v, n):
        return n
    return dataclasses.replace(n, rows=ROWS, several=several(n.stages, [{v: Index.of(v) + k} for k in range(ROWS)]))


def _block(n: Nest, v: Var) -> Nest:
    """All iterations of a short outer loop at once, for two of the longest loop around it."""
    others = [w for w in n.outer if w != v]
    w = max(others, key=lambda w: cost.count([w]))
    if cost.count([w]) < MANY or _bounds_others(v, n) or _bounds_others(w, n):
        return n
    size = cost.count([v])
    places: list[dict[Atom, Index]] = [
        {w: Index.of(w) + k, v: Index.of(place)} for k in range(ACROSS) for place in range(size)
    ]
    outer = (*(u for u in others if u != w), w, v)
    return dataclasses.replace(n, outer=outer, rows=len(places), across=ACROSS, several=several(n.stages, places))


def _columns(n: Nest, v: Var) -> Nest:
    """Vectors along ``v`` for several of another outer loop at once, if a reduction reads them for all of those."""
    found = [w for w in n.outer if w != v and cost.count([w]) >= ROWS and not _bounds_others(w, n)]
    w = next((w for w in reversed(found) if any(_shares_vectors(s, v, w) for s in n.stages)), None)
    if w is None:
        return n
    outer = (*(u for u in n.outer if u not in (v, w)), v, w)
    places: list[dict[Atom, Index]] = [{w: Index.of(w) + k} for k in range(ROWS)]
    return dataclasses.replace(n, outer=outer, rows=ROWS, several=several(n.stages, places))


def _vectors(n: Nest, v: Var) -> Nest:
    """Several neighbouring vectors at once, if loops inside read them from places that are far apart."""
    lanes, others = lanes_of(v), [w for w in n.outer if w != v]
    if cost.count([v]) < lanes * VECTORS * (1 if cost.count(others) >= MANY else FEWEST) or _bounds_others(v, n):
        return n
    if not any(_reads_far_apart(s, v) for s in n.stages) or sum(len(s.statements) for s in n.stages) > MOST:
        return n
    places: list[dict[Atom, Index]] = [{v: Index.of(v) + lanes * k} for k in range(VECTORS)]
    return dataclasses.replace(n, outer=(*others, v), rows=VECTORS, several=several(n.stages, places))


def _reads_far_apart(stage: StageNest, v: Var) -> bool:
    """Whether a long reduction reads vectors along ``v``, each of which is far from the one before."""
    if cost.count(stage.reduced) < SHORT:
        return False
    *_, last = stage.reduced
    read = [x for s in stage.statements for x in walk(s.body) if isinstance(x, Load) and x.index]
    return any(distance(x.index[0], v) == 1 and distance(x.index[0], last) * x.dtype.itemsize >= APART for x in read)


def _shares_vectors(stage: StageNest, v: Var, w: Var) -> bool:
    """Whether a reduction reads vectors along ``v`` that are the same for all ``w``, and numbers that are not."""
    if cost.count(stage.reduced) < SHORT:
        return False
    read = [variables(x) for s in stage.statements for x in walk(s.body) if isinstance(x, Load) and x.index]
    inside = [found for found in read if found & {*stage.reduced}]
    return any(v in found and w not in found for found in inside) and any(
        w in found and v not in found for found in inside
    )


def _bounds_others(v: Var, n: Nest) -> bool:
    return any(isinstance(w.size, Index) and v in w.size.variables for s in n.stages for w in s.inner)


def _is_plain(stage: StageNest) -> bool:
    return all(s.how is None for s in stage.statements)


def _shares_reads(stage: StageNest, v: Var) -> bool:
    """Whether a long reduction along memory reads one thing for all ``v``, and another for each."""
    along = stage.vector
    if along is None or along not in stage.reduced or cost.count(stage.reduced) < LONG:
        return False
    read = [variables(x) for s in stage.statements for x in walk(s.body) if isinstance(x, Load) and x.index]
    inside = [found for found in read if along in found]
    return any(v in found for found in inside) and any(v not in found for found in inside)


def _shares_large_reads(stage: StageNest, v: Var) -> bool:
    """Whether a long reduction along memory reads much that is the same for all ``v``, and little that is not."""
    if not _shares_reads(stage, v):
        return False
    read = [variables(x) for s in stage.statements for x in walk(s.body) if isinstance(x, Load) and x.index]
    shared = [cost.count(found) for found in read if v not in found]
    own = [cost.count(found) for found in read if v in found]
    return max(shared) >= LARGE and max(shared) >= FEW * max(own)


def several(stages: tuple[StageNest, ...], places: list[dict[Atom, Index]]) -> tuple[StageNest, ...]:
    """The stages with each statement once for each of ``places``, which are values of outer variables.

    What a statement writes is kept in registers, and written after it: sums after their loop, elements inside of it.
    Sums inside of a free loop are written where they are, under the name of their place (:func:`tensor_of`).
    """
    own = {s.name for stage in stages for s in stage.statements}
    found: list[StageNest] = []
    for stage in stages:
        copies: list[Statement] = []
        stores: list[Statement] = []
        for s in stage.statements:
            rows = [_at(s, values, k, own) for k, values in enumerate(places)]
            if s.combiner and stage.free:
                copies += rows
                continue
            writes = [_store_of(s, row) for row in rows if row.address is not None]
            copies += [dataclasses.replace(row, address=None) for row in rows]
            if s.combiner:
                stores += writes
            else:
                copies += writes
        found.append(dataclasses.replace(stage, statements=tuple(copies)))
        if stores:
            found.append(StageNest((), (), tuple(stores)))
    return tuple(found)


def _at(s: Statement, values: dict[Atom, Index], k: int, own: set[str]) -> Statement:
    """A statement at the place ``k``; what it reads in registers is that place's."""
    done: dict[Scalar, Scalar] = {}

    def load(x: Load) -> Scalar:
        return Load(f"{x.source}.{k}", (), x.dtype) if not x.index and x.source in own else x

    def again(x: Scalar) -> Scalar:
        return rewrite(x, values, load, done)

    address = None if s.address is None else s.address.substitute(values, again)
    return dataclasses.replace(s, name=f"{s.name}.{k}", body=again(s.body), address=address)


def tensor_of(s: Statement) -> str:
    """The tensor that a statement writes, whichever of several iterations it is for."""
    name, _, place = s.name.rpartition(".")
    return name if place.isdigit() else s.name


def _store_of(s: Statement, row: Statement) -> Statement:
    """What writes a row's result, under the tensor's own name."""
    return Statement(s.name, s.dtype, Load(row.name, (), s.dtype), row.address, where=s.where)
