"""Online softmax: a row's maximum and the sum of its exponentials in one pass over the row."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch

from torch_max_backend.loops.expr import Load, Op, Scalar, cast, constant, op, select, walk
from torch_max_backend.loops.index import Index
from torch_max_backend.schedule.nest import StageNest, Statement, substituted


def in_one_pass(stages: Sequence[StageNest]) -> list[StageNest] | None:
    """Stages of which one finds both a maximum and the sum of exponentials below it; none if there are no such two.

    Before: ``m = maximum of x[r]``, then over the row again ``s = sum of exp(x[r] - m)``. After: beside ``m``
    ``s_scaled = sum_exp of x[r]``, which is scaled whenever the maximum grows, then once ``s = s_scaled + (m - m)``.
    The difference is 0, or NaN of an infinite maximum, as the sum is. Where a sum is below ``m``, or below 0 if that is
    infinite (as logsumexp's), it is ``exp(m)`` then.
    """
    for i, first in enumerate(stages):
        for m in first.statements:
            if m.combiner != "maximum" or m.how is not None or m.dtype is not torch.float32 or first.free:
                continue
            for j in range(i + 1, len(stages)):
                found = _joined(stages, i, j, m)
                if found is not None:
                    return found
    return None


def _joined(stages: Sequence[StageNest], i: int, j: int, m: Statement) -> list[StageNest] | None:
    """The stages with the sum of number ``j`` in number ``i``, if it is one of exponentials below ``m``."""
    first, second = stages[i], stages[j]
    if second.free or [v.size for v in first.reduced] != [v.size for v in second.reduced]:
        return None
    names = {v: Index.of(w) for v, w in zip(second.reduced, first.reduced, strict=True)}
    statements = substituted(second.statements, names)
    between = [s for stage in stages[i:j] for s in stage.statements]
    guarded = {s.name for s in between if s.body == _finite(m) and not s.combiner}
    sums = [s for s in statements if _is_below(s, m, guarded)]
    if len(sums) != 1:
        return None
    (s,) = sums
    others = [t for t in statements if t is not s]
    known = {t.name for t in (*between, s)}
    if any(x.source in known for x in _loads(others)):
        return None
    total, greatest = Load(f"{s.name}_scaled", (), torch.float32), _of(m)
    is_guarded = any(x.source in guarded for x in _loads([s]))
    value = select(op("is_inf", greatest), op("exp", greatest), total) if is_guarded else total + (greatest - greatest)
    scaled = Statement(total.source, torch.float32, m.body, None, "sum_exp")
    once = dataclasses.replace(s, body=value if s.dtype is torch.float32 else cast(value, s.dtype), combiner="")
    return [
        *stages[:i],
        dataclasses.replace(first, statements=(*first.statements, scaled, *others)),
        *stages[i + 1 : j],
        StageNest((), (), (once,)),
        *stages[j + 1 :],
    ]


def _of(m: Statement) -> Load:
    return Load(m.name, (), m.dtype)


def _finite(m: Statement) -> Scalar:
    """A maximum, or 0 where it is infinite."""
    return select(op("is_inf", _of(m)), constant(0, m.dtype), _of(m))


def _is_below(s: Statement, m: Statement, guarded: set[str]) -> bool:
    """Whether a statement is the sum of the exponentials of what ``m`` is the maximum of, less ``m``."""
    if s.combiner != "sum" or s.how is not None or not isinstance(s.body, Op) or s.body.name != "exp":
        return False
    (x,) = s.body.args
    if not isinstance(x, Op) or x.name != "sub" or x.args[0] != m.body:
        return False
    below = x.args[1]
    return isinstance(below, Load) and not below.index and below.source in {m.name, *guarded}


def _loads(statements: Sequence[Statement]) -> Iterator[Load]:
    for s in statements:
        for x in walk(*s.expressions):
            if isinstance(x, Load):
                yield x
