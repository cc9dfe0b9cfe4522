"""Sums of exponentials below a maximum that is found in parts: each part is read once for both.

Before: ``m_parts[p] = maximum over q of x[p, q]``, ``m = maximum over p of m_parts[p]``, and over everything again
``s = sum over r of exp(x[r] - m)``. After: ``s_parts[p] = sum over q of exp(x[p, q] - m_parts[p])``, and ``s = sum over
p of s_parts[p] * exp(m_parts[p] - m)``. An infinite maximum counts as 0 in its part, and as ``m`` beside ``m``: what is
minus infinity adds nothing, and the sum is not a number where it was none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from torch_max_backend.loops.expr import Const, Load, Op, Scalar, constant, op, rewrite, select
from torch_max_backend.loops.index import Atom, Index, Var
from torch_max_backend.loops.program import Definition, Reduction


def exponentials_in_parts(
    d: Definition, maxima: Mapping[str, Sequence[Definition]], definitions: Mapping[str, Definition]
) -> list[Definition]:
    """The parts of such a sum, and the sum of these; empty if ``d`` is none.

    Args:
        maxima: By their names maxima that have been cut, and the definitions of their parts.
        definitions: Those of the program, by name.
    """
    x, m = _below(d)
    greatest = _greatest(m, definitions)
    if x is None or m is None or greatest is None or greatest.source not in maxima:
        return []
    whole, parts = maxima[greatest.source]
    own, others = (*whole.variables, *whole.reduced), (*d.variables, *d.reduced)
    if [v.size for v in own] != [v.size for v in others] or len(d.reduced) != len(whole.reduced):
        return []
    if greatest.index != tuple(map(Index.of, d.variables)) or parts.dtype is not torch.float32:
        return []
    if rewrite(whole.body, dict(zip(own, map(Index.of, others), strict=True)), lambda y: y, {}) != x:
        return []
    assert isinstance(parts.how, Reduction)
    values: dict[Atom, Index] = dict(zip(whole.variables, map(Index.of, d.variables), strict=True))
    names, rest = (fresh(vs, values) for vs in (parts.variables[len(d.variables) :], parts.how.variables))
    at = (*map(Index.of, d.variables), *map(Index.of, names))
    of_part = Load(parts.name, at, parts.dtype)
    body = rewrite(parts.body, values, lambda y: y, {})
    first = dataclasses.replace(
        d,
        name=f"{d.name}_parts",
        variables=(*d.variables, *names),
        body=op("exp", body - select(op("is_inf", of_part), constant(0, m.dtype), of_part)),
        how=Reduction("sum", tuple(rest)),
    )
    again = [Var(f"{v.name}c", v.size) for v in names]
    at = (*map(Index.of, d.variables), *map(Index.of, again))
    of_part = Load(parts.name, at, parts.dtype)
    scale = op("exp", select(op("is_inf", of_part), m, of_part) - m)
    second = dataclasses.replace(d, body=Load(first.name, at, d.dtype) * scale, how=Reduction("sum", tuple(again)))
    return [first, second]


def fresh(variables: Sequence[Var], values: dict[Atom, Index]) -> list[Var]:
    """Variables of the same sizes, which are noted in ``values``."""
    found = []
    for v in variables:
        size = v.size if isinstance(v.size, int) else v.size.substitute(values)
        found.append(Var(f"{v.name}m", size))
        values[v] = Index.of(found[-1])
    return found


def _below(d: Definition) -> tuple[Scalar | None, Scalar | None]:
    """What a sum has exponentials of, as a difference."""
    is_sum = isinstance(d.how, Reduction) and d.how.combiner == "sum" and d.dtype is torch.float32
    if is_sum and isinstance(d.body, Op) and d.body.name == "exp":
        (below,) = d.body.args
        if isinstance(below, Op) and below.name == "sub":
            return below.args[0], below.args[1]
    return None, None


def _greatest(m: Scalar | None, definitions: Mapping[str, Definition]) -> Load | None:
    """The maximum that is taken off, or of which 0 is if it is infinite."""
    if not isinstance(m, Load):
        return _guarded(m)
    known = definitions.get(m.source)
    found = None if known is None or known.how is not None else _guarded(known.body)
    if known is None or found is None:
        return m
    at = dict(zip(known.variables, m.index, strict=True))
    return Load(found.source, tuple(i.substitute(at) for i in found.index), found.dtype)


def _guarded(m: Scalar | None) -> Load | None:
    """What ``m`` is, but for infinite numbers, for which it is 0."""
    if not isinstance(m, Op) or m.name != "select":
        return None
    condition, nothing, found = m.args
    is_guard = isinstance(found, Load) and condition == op("is_inf", found)
    return found if is_guard and isinstance(nothing, Const) and nothing.value == 0 else None  # type: ignore[return-value]
