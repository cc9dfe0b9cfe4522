"""Loops are cut where conditions change, so that most of a loop runs without conditions, and in vectors.

Before: ``for i:40: y[i] = (x[i - 3] if i >= 3 else 0)``.
After: ``for i:3: y[i] = 0`` and ``for i:37: y[i + 3] = x[i]``.

Conditions compare an index that is linear in the loop's variable with one that outer loops know; the smaller of two
indices is such a condition too. Where the cut depends on an outer variable, the parts have sizes that depend on it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch

from torch_max_backend.loops.expr import (
    Const,
    FromIndex,
    Guarded,
    Load,
    Op,
    Scalar,
    as_index,
    rewrite,
    variables,
    walk,
)
from torch_max_backend.loops.index import Atom, Index, Least, Var, clamped

SHORT, FEW = 16, 4
"""Iterations of a part, of long statements and of others, below which vectors do not pay; neighbours that short stay
one part with its conditions."""
LONG = 128
"""Expressions of long statements: the source would grow more than vectors save."""
MOST = 12
"""Parts of a loop, above which the source grows for little."""
DEEP = 4
"""How often parts are cut again, for the smaller of two indices of which one is such a choice itself."""


@dataclass(frozen=True)
class Switch:
    """What decides between values: ``values[k]`` holds from the ``k``-th cut on, ``values[0]`` before the first."""

    decides: Scalar | Least
    cuts: tuple[Index, ...]
    values: tuple[bool, ...]


@dataclass(frozen=True)
class Part:
    """Statements of a part of a loop over ``variable``; ``guarded`` says that a condition still depends on it."""

    variable: Var
    statements: tuple[object, ...]
    guarded: bool


Values = dict[Scalar | Least, bool]


# -- conditions --------------------------------------------------------------------------------------------------------
def _bodies(statements: Collection[object]) -> Iterator[Scalar]:
    return (s.body for s in statements)  # type: ignore[attr-defined]


def _indices(bodies: Collection[Scalar]) -> Iterator[Index]:
    for body in bodies:
        for x in walk(body):
            if isinstance(x, Load):
                yield from x.index
            elif isinstance(x, FromIndex):
                yield x.index


def _condition(x: Guarded) -> Scalar:
    return x.condition


def switches(statements: Collection[object], v: Var, fixed: Collection[Var]) -> list[Switch]:
    """The conditions that can be decided by cutting a loop over ``v``, where ``fixed`` are the variables around it."""
    found: dict[object, Switch] = {}
    bodies = list(_bodies(statements))
    for x in walk(*bodies):
        if isinstance(x, Guarded) and x.condition not in found:
            made = _of_comparison(_condition(x), v, fixed)
            if made is not None:
                found[x.condition] = made
    for index in _indices(bodies):
        for atom in index.atoms:
            if isinstance(atom, Least) and atom not in found:
                cut = _cut(atom.right - atom.left, v, fixed)
                if cut is not None:
                    found[atom] = Switch(atom, (cut[0],), cut[1])
    return list(found.values())


def _of_comparison(x: Scalar, v: Var, fixed: Collection[Var]) -> Switch | None:
    if not isinstance(x, Op) or x.name not in ("lt", "le", "gt", "ge", "eq", "ne"):
        return None
    if not all(isinstance(a, FromIndex | Const) and a.dtype is torch.int64 for a in x.args):
        return None
    difference = as_index(x.args[0]) - as_index(x.args[1])
    if x.name in ("eq", "ne"):
        if abs(difference.coefficient(v)) != 1:
            return None
        cut = _cut(difference * difference.coefficient(v), v, fixed)
        return cut and Switch(x, (cut[0], cut[0] + 1), (x.name == "ne", x.name == "eq", x.name == "ne"))
    least = {"ge": difference, "gt": difference - 1, "le": -difference, "lt": -difference - 1}[x.name]
    cut = _cut(least, v, fixed)
    return cut and Switch(x, (cut[0],), cut[1])


def _cut(x: Index, v: Var, fixed: Collection[Var]) -> tuple[Index, tuple[bool, bool]] | None:
    """Where ``x >= 0`` changes while ``v`` grows, and whether it holds before and after."""
    k = x.coefficient(v)
    rest = x - Index.of(v) * k
    if k == 0 or not rest.variables <= {*fixed} or any(variables_of(a) for a in rest.atoms):
        return None
    if k > 0:
        return (-rest + (k - 1)) // k, (False, True)
    return rest // -k + 1, (True, False)


def variables_of(atom: Atom) -> bool:
    """Whether an atom is read from a tensor, so that no bound of a loop shall depend on it."""
    return hasattr(atom, "value")


def is_decidable(statements: Collection[object], v: Var, fixed: Collection[Var]) -> bool:
    """Whether cutting the loop over ``v`` leaves its long parts without a condition that depends on ``v``."""
    decided = {s.decides: all(cut.is_constant for cut in s.cuts) for s in switches(statements, v, fixed)}
    for body in _bodies(statements):
        for x in walk(body):
            if isinstance(x, Guarded) and v in variables(_condition(x)):
                if x.condition not in decided and not _will_be(_condition(x), v):
                    return False
                runs = decided.get(x.condition, False) and isinstance(v.size, int)
                if not runs and any(isinstance(y, Load) and v not in variables(y) for y in walk(x.operands[1])):
                    return False  # such a load would move out of its loop, which may run no time
    return True


def _will_be(x: Scalar, v: Var) -> bool:
    """Whether a condition is a comparison of what is linear once the choices inside are made."""
    return (
        isinstance(x, Op)
        and x.name in ("lt", "le", "gt", "ge")
        and all(isinstance(a, FromIndex | Const) for a in x.args)
        and any(isinstance(a, Least) for i in _indices([x]) for a in i.atoms)
    )


# -- parts -------------------------------------------------------------------------------------------------------------
def partition(statements: tuple[object, ...], v: Var, fixed: Collection[Var], depth: int = 0) -> list[Part]:
    """The loop over ``v`` in parts, in order, which together do what it does."""
    whole = [Part(v, statements, _is_guarded(statements, v))]
    short = FEW if sum(1 for _ in walk(*_bodies(statements))) < LONG else SHORT
    if depth == DEEP or (isinstance(v.size, int) and v.size < short):
        return whole
    found = _in_order(switches(statements, v, fixed))
    if not found:
        return whole
    cuts = _sorted({cut for s in found for cut in s.cuts})
    size = Index.of(v.size)
    bounds = [Index.of(0), *(clamped(cut, Index.of(0), size) for cut in cuts), size]
    pieces: list[tuple[Index, Index, Values]] = []
    for k, (start, end) in enumerate(itertools.pairwise(bounds)):
        if (end - start).bounds[1] <= 0:
            continue
        before = set(cuts[:k])
        values = {s.decides: s.values[sum(cut in before for cut in s.cuts)] for s in found}
        pieces.append((start, end, values))
    pieces = _joined(pieces, short)
    if len(pieces) > MOST:
        return whole
    parts: list[Part] = []
    for k, (start, end, values) in enumerate(pieces):
        length = end - start
        w = Var(f"{v.name}{'abcdefghijklmnop'[k]}", length.constant if length.is_constant else length)
        made = _decided(statements, values, {v: start + w})
        parts += partition(made, w, fixed, depth + 1)
    return parts if len(parts) <= MOST else whole


def _is_guarded(statements: Collection[object], v: Var) -> bool:
    return any(
        isinstance(x, Guarded) and v in variables(_condition(x)) for body in _bodies(statements) for x in walk(body)
    )


def _compared(a: Index, b: Index) -> int | None:
    low, high = (a - b).bounds
    return 0 if low == high == 0 else -1 if high <= 0 else 1 if low >= 0 else None


def _in_order(found: list[Switch]) -> list[Switch]:
    """Those switches whose cuts are known to be before or behind those of all others."""
    kept: list[Switch] = []
    for s in found:
        others = [cut for k in kept for cut in k.cuts]
        if all(_compared(a, b) is not None for a in s.cuts for b in [*others, *s.cuts]):
            kept.append(s)
    return kept


def _sorted(cuts: Collection[Index]) -> list[Index]:
    def order(a: Index, b: Index) -> int:
        return _compared(a, b) or 0

    return sorted(sorted(cuts, key=str), key=functools.cmp_to_key(order))


def _joined(pieces: list[tuple[Index, Index, Values]], short: int) -> list[tuple[Index, Index, Values]]:
    """Neighbours that are known to be short as one, with what holds in both."""

    def is_short(start: Index, end: Index) -> bool:
        length = end - start
        return length.is_constant and length.constant < short

    result: list[tuple[Index, Index, Values]] = []
    for start, end, values in pieces:
        if result and is_short(start, end) and is_short(*result[-1][:2]) and is_short(result[-1][0], end):
            first, _, others = result[-1]
            result[-1] = (first, end, {k: v for k, v in values.items() if others.get(k) is v})
        else:
            result.append((start, end, values))
    return result


def _decided(statements: tuple[object, ...], values: Values, place: dict[Var, Index]) -> tuple[object, ...]:
    """Statements with decided conditions replaced, and the variable by its place in the part."""
    known: dict[Scalar, Scalar] = {x: Const(b, torch.bool) for x, b in values.items() if isinstance(x, Op)}
    sides: dict[Atom, Index] = {a: a.left if b else a.right for a, b in values.items() if isinstance(a, Least)}
    done, moved = dict(known), {}  # type: ignore[var-annotated]

    def body(x: Scalar) -> Scalar:
        return rewrite(rewrite(x, sides, done=done), place, done=moved)

    def index(i: Index | None) -> Index | None:
        return None if i is None else i.substitute(sides).substitute(place)

    return tuple(
        dataclasses.replace(s, body=body(s.body), address=index(s.address), place=index(s.place))  # type: ignore[type-var, attr-defined]
        for s in statements
    )
