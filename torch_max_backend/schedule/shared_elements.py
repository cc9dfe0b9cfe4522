"""What several stages of a kernel compute of the same elements, in a row that a thread keeps.

An exponential or a sigmoid takes several times as long as reading a number from the first cache. As where the variance
of something is computed: a sum for the mean, and one of squares of differences from that.

Before: ``for j: s = sum of sigmoid(x[64*i + j])`` and then ``for k: t = sum of sub(sigmoid(x[64*i + k]), s)``.
After: ``for j: e[j] = sigmoid(x[64*i + j])``, ``s = sum of e[j]`` and then ``for k: t = sum of sub(e[k], s)``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch_max_backend.loops.expr import Checked, Guarded, Load, Scalar, rewrite, variables, walk
from torch_max_backend.loops.index import Atom, Computed, Index
from torch_max_backend.loops.program import Call
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.nest import Nest, OwnRow, StageNest, Statement
from torch_max_backend.schedule.own_rows import ROOM

DEAR = 7
"""Cost of an element from which it is kept: that of a function and of what it is a function of."""
LONGEST = 1 << 16
"""Bytes of a row: what a core's second cache has room for, beside what is read."""


def shared_elements(steps: Sequence[Nest | Call]) -> list[Nest | Call]:
    """The steps with a row for what is dearest of what stages share, where threads have room for it."""
    room = ROOM - sum(row.bytes for step in steps if isinstance(step, Nest) for row in step.own)
    found = list[Nest | Call]()
    for step in steps:
        if isinstance(step, Nest) and step.vector is None and not step.several:
            made = _with_shared_elements(step, min(room, LONGEST - sum(row.bytes for row in step.own)))
            room -= sum(row.bytes for row in made.own) - sum(row.bytes for row in step.own)
            step = made
        found.append(step)
    return found


def _with_shared_elements(n: Nest, room: int) -> Nest:
    for k, stage in enumerate(n.stages):
        if not _is_simple(stage):
            continue
        later = {m: values for m in range(k + 1, len(n.stages)) if (values := _renamed(stage, n.stages[m])) is not None}
        elements = {m: set(walk(*_expressions(n.stages[m]))) for m in later}
        for x in sorted(_dear(stage), key=cost.of_expression, reverse=True):
            users = {m: moved for m, values in later.items() if (moved := rewrite(x, values)) in elements[m]}
            row = OwnRow(f"e{n.stages[k].statements[0].name}", x.dtype, cost.count(stage.inner))
            if users and row.bytes <= room:
                stages = list(n.stages)
                stages[k] = _keeping(stage, x, row)
                for m, moved in users.items():
                    stages[m] = _replaced(stages[m], moved, Load(row.name, (_place(stages[m]),), row.dtype))
                return dataclasses.replace(n, stages=tuple(stages), own=(*n.own, row))
    return n


def _is_simple(stage: StageNest) -> bool:
    """Whether it has loops of known lengths, all of which it reduces or none, with vectors along the last one."""
    is_known = all(isinstance(v.size, int) for v in stage.inner)
    is_plain = not (stage.free and stage.reduced) and not any(s.how or s.first for s in stage.statements)
    return is_known and is_plain and bool(stage.inner) and stage.vector == stage.inner[-1]


def _renamed(first: StageNest, second: StageNest) -> dict[Atom, Index] | None:
    """The loops of a later stage for those of one, if they are equal."""
    if not _is_simple(second) or [v.size for v in first.inner] != [v.size for v in second.inner]:
        return None
    return {v: Index.of(w) for v, w in zip(first.inner, second.inner, strict=True)}


def _expressions(stage: StageNest) -> list[Scalar]:
    return [s.body for s in stage.statements]


def _dear(stage: StageNest) -> list[Scalar]:
    """Dear expressions of numbers in memory that each iteration of a stage has another one of."""
    return [
        x
        for x in dict.fromkeys(walk(*_expressions(stage)))
        if x.dtype.is_floating_point
        and cost.of_expression(x) >= DEAR
        and variables(x) >= {v for v in stage.inner if v.size != 1}
        and all(map(_is_of_memory, walk(x)))
    ]


def _is_of_memory(x: Scalar) -> bool:
    """Whether it is no condition, and no load of a register or of a place that is looked up."""
    if isinstance(x, Load):
        return bool(x.index) and not any(isinstance(a, Computed) for i in x.index for a in i.atoms)
    return not isinstance(x, Guarded | Checked)


def _place(stage: StageNest) -> Index:
    """Where an iteration's element is in a row."""
    place = Index.of(0)
    for v in stage.inner:
        place = place * Index.of(v.size) + Index.of(v)
    return place


def _keeping(stage: StageNest, x: Scalar, row: OwnRow) -> StageNest:
    """The stage that computes an element, writes it and has it in a register for the rest."""
    rest = _replaced(stage, x, Load(row.name, (), row.dtype))
    kept = Statement(row.name, row.dtype, x, _place(stage), where=stage.statements[0].where)
    return dataclasses.replace(rest, statements=(kept, *rest.statements))


def _replaced(stage: StageNest, x: Scalar, by: Load) -> StageNest:
    done: dict[Scalar, Scalar] = {x: by}
    statements = tuple(dataclasses.replace(s, body=rewrite(s.body, {}, done=done)) for s in stage.statements)
    return dataclasses.replace(stage, statements=statements)
