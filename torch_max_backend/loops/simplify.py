"""Passes over loop programs: a program in, a program out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from torch_max_backend.loops.expr import (
    CASTS,
    Const,
    FromIndex,
    Guarded,
    Load,
    Op,
    Scalar,
    as_index,
    cast,
    compare_index,
    constant,
    guarded,
    op,
    rewrite,
)
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.program import Call, Definition, Program, Reduction, reads


def without_dead_definitions(program: Program) -> Program:
    """Leave out what nothing reads and what does not leave, but no collective."""
    wanted = {name for name, _ in program.outputs} | {source for _, source in program.stores}
    kept = []
    for step in reversed(program.steps):
        names = [r.name for r in step.results if r] if isinstance(step, Call) else [step.name]
        if wanted.isdisjoint(names) and not (isinstance(step, Call) and step.is_collective):
            continue
        kept.append(step)
        wanted.update(reads(step))
    return dataclasses.replace(program, steps=kept[::-1])


def without_reductions_of_one(program: Program) -> Program:
    """Make plain loops of reductions over single elements.

    Before: ``t0[i] = sum over r:1 of x[i, 0]``. After: ``t0[i] = x[i, 0]``.
    """
    steps = [_plain(s) if isinstance(s, Definition) else s for s in program.steps]
    return dataclasses.replace(program, steps=steps)


def _plain(d: Definition) -> Definition:
    if not isinstance(d.how, Reduction) or any(v.size != 1 for v in d.how.variables):
        return d
    body = Const(0, d.dtype) if d.how.combiner.startswith("arg") else cast(d.body, d.dtype)
    return dataclasses.replace(d, body=body, how=None)


def without_sums_of_one_element(program: Program) -> Program:
    """Read the element that a sum consists of where all others are zero.

    Before: ``t0[i] = sum over r:48 of (x[i] if r == 3 else 0)``. After: ``t0[i] = x[i] + 0``, where -0 gives 0 as well.
    """
    steps = [_found(s) if isinstance(s, Definition) else s for s in program.steps]
    return dataclasses.replace(program, steps=steps)


def _found(d: Definition) -> Definition:
    only = _only(d.body) if isinstance(d.how, Reduction) and d.how.combiner == "sum" else None
    if only is None:
        return d
    assert isinstance(d.how, Reduction)
    condition, value = only
    zero = constant(0, value.dtype)
    for k, part in enumerate(conjuncts := list(_conjuncts(condition))):
        if found := _place(part, d.how.variables):
            for other in conjuncts[:k] + conjuncts[k + 1 :]:
                value = guarded(other, value, zero)
            break
    else:
        return d
    v, place = found
    body = guarded(compare_index("lt", place, Index.of(v.size)), rewrite(value, {v: place}), zero)
    body = guarded(compare_index("ge", place, Index.of(0)), body, zero)
    rest = tuple(w for w in d.how.variables if w != v)
    if rest:
        return dataclasses.replace(d, body=body, how=Reduction("sum", rest))
    return dataclasses.replace(d, body=cast(op("add", body, zero), d.dtype), how=None)


def _only(x: Scalar) -> tuple[Scalar, Scalar] | None:
    """The condition without which ``x`` is zero, and its value where that holds."""
    if isinstance(x, Op) and x.name in CASTS:
        inner = _only(x.args[0])
        return inner and (inner[0], cast(inner[1], x.dtype, x.name))
    if isinstance(x, Guarded) and isinstance(x.other, Const) and x.other.value == 0:
        return x.condition, x.value
    if isinstance(x, Op) and x.name == "select" and isinstance(x.args[2], Const) and x.args[2].value == 0:
        return x.args[0], x.args[1]
    return None


def _conjuncts(x: Scalar) -> Iterator[Scalar]:
    """The conditions that must all hold for one to hold."""
    if isinstance(x, Op) and x.name == "bit_and":
        for part in x.args:
            yield from _conjuncts(part)
    else:
        yield x


def _place(condition: Scalar, variables: tuple[Var, ...]) -> tuple[Var, Index] | None:
    """The variable for which an equality of indices is solved, and the only place at which it holds."""
    if not isinstance(condition, Op) or condition.name != "eq":
        return None
    if not all(isinstance(x, FromIndex | Const | Load) and x.dtype is torch.int64 for x in condition.args):
        return None
    difference = as_index(condition.args[0]) - as_index(condition.args[1])
    for v in variables:
        k = difference.coefficient(v)
        if abs(k) == 1 and difference.stride(v) == k:
            return v, Index.of(v) - difference * k
    return None
