"""Small kernels of a grid that do not need each other share a launch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from torch_max_backend.loops.expr import Load, walk
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.program import Call
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.nest import Nest, Statement, substituted

SMALL = 1 << 14
"""Outer indices of a kernel that takes little longer than its launch."""
MOST, FAR = 16, 128
"""Statements of such kernels together, and steps between them."""

Step = Nest | Call


def sharing_launches(steps: Sequence[Step], stores: Iterable[tuple[str, str]]) -> list[Step]:
    """Make one kernel of small ones over loops of the same sizes, as far as one can run where the other does.

    Before: ``for i:64: a[i] = x[i]``, a call that reads ``b``, ``for j:64: c[j] = y[j]``. After: ``for i:64: a[i] =
    x[i]; c[i] = y[i]``, and the call. What is written into an input counts as the input, too.
    """
    written = {source: target for target, source in stores}
    result: list[_Placed] = []
    for step in steps:
        new = _Placed(step, *_touched(step, written), _form(step))
        place, moved = _partner(result, new)
        if place is None:
            result.append(new)
            continue
        old = result[place]
        one = _Placed(_together(old.step, new.step), old.reads | new.reads, old.writes | new.writes, old.form)
        if moved:
            result[place] = one
        else:
            result = [*result[:place], *result[place + 1 :], one]
    return [placed.step for placed in result]


@dataclasses.dataclass(frozen=True)
class _Placed:
    """A step with the tensors that it reads and writes, and what kernels have in common that it can be one with."""

    step: Step
    reads: frozenset[str]
    writes: frozenset[str]
    form: object

    def needs(self, other: _Placed) -> bool:
        """Whether the two must run in their order."""
        return bool(self.writes & (other.reads | other.writes) or self.reads & other.writes)


def _partner(before: Sequence[_Placed], new: _Placed) -> tuple[int | None, bool]:
    """The place of the kernel that a new one joins, and whether the new one moves there, not the old one here."""
    if new.form is None:
        return None, False
    comes, passed = True, list[_Placed]()  # whether the new one can run right behind what is passed
    for k in reversed(range(max(0, len(before) - FAR), len(before))):
        old = before[k]
        if old.form == new.form and len(_statements(old.step)) + len(_statements(new.step)) <= MOST:
            if old.needs(new):
                return None, False
            if comes:
                return k, True
            if not any(old.needs(other) for other in passed):
                return k, False
        comes = comes and not new.needs(old)
        passed.append(old)
    return None, False


def _form(step: Step) -> object:
    """What two kernels have in common that can be one; none for what shares no launch."""
    if not isinstance(step, GridNest) or len(step.stages) != 1 or step.stages[0].inner:
        return None
    if (
        step.tile is not None
        or step.interleaved is not None
        or step.flat
        or step.held
        or step.columns
        or step.repeated is not None
    ):
        return None
    sizes = tuple(v.size for v in step.outer)
    if not all(isinstance(size, int) for size in sizes) or cost.count(step.outer) > SMALL:
        return None
    vector = None if step.vector is None else step.outer.index(step.vector)
    return sizes, vector, step.rows, step.threads, step.lanes, step.each


def _together(old: Step, new: Step) -> GridNest:
    """One kernel with the statements of two, over the loops of the first."""
    assert isinstance(old, GridNest) and isinstance(new, GridNest)
    (stage,), (other,) = old.stages, new.stages
    names = {v: Index.of(w) for v, w in zip(new.outer, old.outer, strict=True)}
    statements = (*stage.statements, *substituted(other.statements, names))
    return dataclasses.replace(old, stages=(dataclasses.replace(stage, statements=statements),))


def _statements(step: Step) -> list[Statement]:
    return [] if isinstance(step, Call) else [s for stage in step.stages for s in stage.statements]


def _touched(step: Step, written: Mapping[str, str]) -> tuple[frozenset[str], frozenset[str]]:
    """The tensors in memory that a step reads, and those that it writes."""
    if isinstance(step, Call):
        return frozenset(step.reads()), frozenset(r.name for r in step.results if r)
    reads, writes = set[str](), set[str]()
    for s in _statements(step):
        reads |= {x.source for x in walk(*s.expressions) if isinstance(x, Load) and x.index}
        if s.address is not None:
            writes |= {s.name, written.get(s.name, s.name)}
    return frozenset(reads), frozenset(writes)


def is_in_order(late: Step, between: Iterable[Step], written: Mapping[str, str]) -> bool:
    """Whether a step may run before those that it stands behind; ``written`` are tensors that are written into inputs,
    with these."""
    new = _Placed(late, *_touched(late, written), None)
    others = (_Placed(step, *_touched(step, written), None) for step in between)
    return not any(new.needs(other) for other in others)
