"""Rows that a kernel writes and reads again, and nothing else reads: a thread keeps one at a time in memory of its own.

The memory is on the thread's stack, and so near that it is in the first cache. A tensor in its place would be written
out to memory row by row, and its allocation be as large as all rows together.

Before: ``for i:512: for j:64: t[64*i + j] = ...`` and then ``for j:64: y[64*i + j] = t[64*i + j] / ...``.
After: ``t[j] = ...`` and ``y[64*i + j] = t[j] / ...``, where ``t`` has 64 elements.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from torch_max_backend.loops.expr import Load, Scalar, rewrite, walk
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.program import Call, Scatter
from torch_max_backend.schedule.nest import Nest, OwnRow, StageNest, Statement

NEAR = 1 << 15
"""Bytes that a kernel's threads keep each: most of what a core's first cache holds."""
ROOM = 1 << 18
"""Bytes that all kernels of a program may want of a stack, as they do if the compiler makes one function of them."""


def own_rows(steps: Sequence[Nest | Call], kept: Collection[str]) -> list[Nest | Call]:
    """The steps with rows in memory of the threads.

    Args:
        kept: Tensors that must be in memory as a whole, since they leave or a library reads them.
    """
    users = Counter(name for step in steps if isinstance(step, Nest) for name in _touched(step))
    room, found = ROOM, list[Nest | Call]()
    for step in steps:
        if isinstance(step, Nest) and not step.several and step.vector is None:
            step = _with_own_rows(step, {name for name in _written(step) if users[name] == 1} - {*kept}, room)
            room -= sum(row.bytes for row in step.own)
        found.append(step)
    return found


def _with_own_rows(n: Nest, names: Collection[str], room: int) -> Nest:
    """The nest with those of ``names`` in the threads' memory that have rows, the shortest first."""
    found = [made for name in sorted(names) if (made := _row(n, name)) is not None]
    left, kept = min(NEAR, room), dict[str, _Steps]()
    rows = list[OwnRow]()
    for row, steps in sorted(found, key=lambda made: made[0].bytes):
        if row.bytes <= left:
            left -= row.bytes
            rows.append(row)
            kept[row.name] = steps
    return dataclasses.replace(n, stages=_moved(n, kept), own=tuple(rows)) if rows else n


def _row(n: Nest, name: str) -> tuple[OwnRow, _Steps] | None:
    """The row of a tensor that one iteration of the outer loops writes and reads; ``None`` if it has none."""
    if any(isinstance(s.how, Scatter) for stage in n.stages for s in stage.statements):
        return None
    written = [s for stage in n.stages for s in stage.statements if s.name == name and s.address is not None]
    stores = [s.address for s in written if s.address is not None]
    reads = [x.index[0] for x in _reads(n) if x.source == name]
    split = [_split(address, n.outer) for address in (*stores, *reads)]
    inside = [x[1] for x in split if x is not None]
    if len(inside) < len(split) or len({x[0] for x in split if x is not None}) > 1:
        return None
    low, high = min(x.bounds[0] for x in inside[: len(stores)]), max(x.bounds[1] for x in inside[: len(stores)])
    if low < 0 or not math.isfinite(high) or any(x.bounds[0] < low or x.bounds[1] > high for x in inside):
        return None
    steps = _steps(inside)
    if steps is None:
        return None
    size = int(max(_placed(x, steps).bounds[1] for x in inside)) + 1
    return OwnRow(name, written[0].dtype, size), steps


def _split(address: Index, outer: tuple[Var, ...]) -> tuple[Index, Index] | None:
    """The part of an address by outer loops, and the part by inner ones, both sums of loop variables."""
    if not all(isinstance(atom, Var) and k > 0 for atom, k in address.terms):
        return None
    around = Index(0, tuple((atom, k) for atom, k in address.terms if atom in outer))
    return around, address - around


# -- gaps between the elements of a row --------------------------------------------------------------------------------
_Steps = list[tuple[int, int]]
"""Steps in the tensor, the longest first, and what they are in the row: an address is a sum of multiples of them."""


def _steps(inside: Sequence[Index]) -> _Steps | None:
    """The steps of a row's addresses, without gaps; ``None`` if the addresses are not made of them."""
    least = math.gcd(*(k for x in inside for k in (x.constant, *(k for _, k in x.terms)))) or 1
    lengths = sorted({least, *(k for x in inside for _, k in x.terms)})
    lengths = [least, *(k for k in lengths[1:] if all(_below(x, k).bounds[1] < k for x in inside))]
    if any(k % max(c for c in lengths if c <= k) for x in inside for _, k in x.terms):
        return None
    steps: _Steps = [(least, 1)]
    for k in lengths[1:]:
        room = int(max(_placed(_below(x, k), steps).bounds[1] for x in inside)) + 1
        steps.insert(0, (k, room))
    return steps


def _below(x: Index, k: int) -> Index:
    """The part of an address that is less than a step."""
    return Index(x.constant % k, tuple((atom, c) for atom, c in x.terms if c < k))


def _placed(x: Index, steps: _Steps) -> Index:
    """The place in a row of a place in the tensor."""
    constant, rest = 0, x.constant
    for k, made in steps:
        constant, rest = constant + rest // k * made, rest % k
    terms = []
    for atom, c in x.terms:
        k, made = next((k, made) for k, made in steps if k <= c)
        terms.append((atom, c // k * made))
    return Index(constant, tuple(terms))


def _moved(n: Nest, rows: Mapping[str, _Steps]) -> tuple[StageNest, ...]:
    """The stages with addresses in rows."""
    done = dict[Scalar, Scalar]()

    def place(name: str, address: Index) -> Index:
        _, inside = _split(address, n.outer) or (None, address)
        return _placed(inside, rows[name])

    def load(x: Load) -> Scalar:
        return Load(x.source, (place(x.source, x.index[0]),), x.dtype) if x.index and x.source in rows else x

    def statement(s: Statement) -> Statement:
        address = s.address if s.address is None else s.address.substitute({}, lambda x: rewrite(x, {}, load, done))
        if address is not None and s.name in rows:
            address = place(s.name, address)
        return dataclasses.replace(s, body=rewrite(s.body, {}, load, done), address=address)

    return tuple(dataclasses.replace(s, statements=tuple(map(statement, s.statements))) for s in n.stages)


def _reads(n: Nest) -> list[Load]:
    expressions = [e for stage in n.stages for s in stage.statements for e in s.expressions]
    return [x for x in walk(*expressions) if isinstance(x, Load) and x.index]


def _written(n: Nest) -> set[str]:
    return {s.name for stage in n.stages for s in stage.statements if s.address is not None}


def _touched(n: Nest) -> set[str]:
    return _written(n) | {x.source for x in _reads(n)}
