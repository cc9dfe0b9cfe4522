"""Prefixes of few or long rows, on a grid: rows are cut in parts, which threads share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch

from torch_max_backend.loops.expr import Load, Op, cast, compare_index, constant, guarded, op, select
from torch_max_backend.loops.index import Index, Var, least
from torch_max_backend.loops.program import Call, Definition, Program, Reduction, Scan
from torch_max_backend.loops.tensor import sized
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.kernel import Layout
from torch_max_backend.schedule.machine import Machine
from torch_max_backend.schedule.split import is_along_memory, reindexed, rewritten, split_order, with_orders

JOINED = {"sum": "add", "product": "mul", "maximum": "maximum", "minimum": "minimum"}
"""How prefixes of parts become one, by combiner. Sums of exponentials do by :func:`_exponentials_in_parts`; places of
extremes are not cut."""
WARPS, THREADS = 2112, 1 << 15
"""Parts of all rows together, at most: warps along memory, else threads."""
MOST = 4096
"""Parts of a row, at most: one warp adds up what is before each of them."""
SHORTEST = 16
"""Elements of a part, at least, in iterations of what runs them: a warp has 32 at a time."""


def split_long_scans(program: Program, layouts: Mapping[str, Layout], machine: Machine) -> Program:
    """Cut rows in parts where there are too few rows to keep a grid busy.

    Before: ``t0[i:65536] = sum up to i of x[i]``. After, for parts of 512 elements: ``t0_parts[p:128] = sum over q:512
    of x[512*p + q]``, ``t0_before[p:128] = sum up to p of t0_parts[p]``, and ``t0[p:128, q:512] = sum up to q of
    x[512*p + q]``, to whose first elements ``t0_before[p - 1]`` is added. Where no part divides the row, the last part
    is shorter, and ``t0[i] = t0_within[i // 512, i % 512]``.
    """
    steps: list[Definition | Call] = []
    split: dict[str, list[tuple[int, Index]]] = {}
    orders = {**program.orders, **dict(program.outputs)}
    for step in program.steps:
        if isinstance(step, Definition):
            step = reindexed(_in_own_dtype(step) if machine.has_grid else step, split)
            chunk = _chunk(step, layouts, machine)
            if chunk:
                assert isinstance(step.how, Scan)
                whole, size = step, step.how.variable.size
                position = step.variables.index(step.how.variable)
                if step.how.combiner == "log_sum_exp":
                    steps += _exponentials_in_parts(step, chunk)
                    continue
                *before, step = _in_parts(step, chunk)
                steps += before
                orders[before[0].name] = tuple(range(len(step.variables) - 1))  # a warp adds up what is before parts
                if int(size) % chunk == 0:
                    split[step.name] = [(position, Index.of(chunk))]
                    if step.name in orders:
                        orders[step.name] = split_order(orders[step.name], position)
                else:
                    within = dataclasses.replace(step, name=f"{step.name}_within")
                    steps.append(within)
                    step = _picked(whole, within, position, chunk)
        steps.append(step)
    return with_orders(program, steps, orders)


def _chunk(d: Definition, layouts: Mapping[str, Layout], machine: Machine) -> int:
    """Elements of a part, which divide the row if such parts are as many; 0 where the row is left whole."""
    if not machine.has_grid or not isinstance(d.how, Scan) or d.how.combiner not in (*JOINED, "log_sum_exp"):
        return 0
    v = d.how.variable
    if not all(isinstance(w.size, int) for w in d.variables):
        return 0
    rows, size = cost.count(w for w in d.variables if w != v), int(v.size)
    by_warps = is_along_memory(d, v, layouts)
    parts = min(
        (WARPS if by_warps else THREADS) // max(1, rows),
        size // (SHORTEST * (32 if by_warps else 1)),
        MOST if by_warps else int(size**0.5),
    )
    if parts < 4:
        return 0
    equal = [p for p in range(parts // 2 + 1, parts + parts // 4 + 1) if size % p == 0]
    return -(-size // min(equal, key=lambda p: abs(p - parts), default=parts))


def _in_own_dtype(d: Definition) -> Definition:
    """Sums of exponentials of float32 in float32: they are kept with their greatest, and lose nothing."""
    x = d.body
    if not isinstance(d.how, Scan) or d.how.combiner != "log_sum_exp" or d.dtype is not torch.float32:
        return d
    return dataclasses.replace(d, body=x.args[0] if isinstance(x, Op) and x.name == "cast" else cast(x, d.dtype))


def _exponentials_in_parts(d: Definition, chunk: int) -> list[Definition]:
    """Prefixes within parts, those of whole parts, and both together: ``log(exp(a) + exp(b))`` of two prefixes."""
    assert isinstance(d.how, Scan)
    v, dtype = d.how.variable, d.body.dtype
    position, size = d.variables.index(v), int(v.size)
    count = -(-size // chunk)
    p, q, again = Var(f"{v.name}p", count), Var(f"{v.name}q", chunk), Var(f"{v.name}s", count)
    place = least(Index.of(p) * chunk + q, Index.of(size - 1))
    within = dataclasses.replace(
        rewritten(d, {v: place}),
        name=f"{d.name}_within",
        dtype=dtype,
        variables=tuple(w for y in d.variables for w in ((p, q) if y == v else (y,))),
        how=Scan("log_sum_exp", q),
    )
    others = [w for w in d.variables if w != v]
    index = list(map(Index.of, d.variables))
    ends = [*index[:position], Index.of(again), Index.of(chunk - 1), *index[position + 1 :]]
    before = dataclasses.replace(
        within,
        name=f"{d.name}_before",
        variables=(*others, again),
        body=Load(within.name, tuple(ends), dtype),
        how=Scan("log_sum_exp", again),
    )
    own, part = index.copy(), index[position] // chunk
    own[position : position + 1] = [part, index[position] % chunk]
    a = Load(within.name, tuple(own), dtype)
    b = Load(before.name, (*map(Index.of, others), part - 1), dtype)
    high, low = op("maximum", a, b), op("minimum", a, b)
    both = op("add", high, op("log1p", op("exp", op("sub", low, high))))
    both = select(op("eq", high, low), op("add", high, constant(math.log(2), dtype)), both)  # infinities, too
    body = cast(guarded(compare_index("gt", part, Index.of(0)), both, a), d.dtype)
    return [within, before, dataclasses.replace(d, body=body, how=None)]


def _in_parts(d: Definition, chunk: int) -> list[Definition]:
    """The definitions of parts, of what is before each, and of the prefixes."""
    assert isinstance(d.how, Scan)
    v, combiner, dtype = d.how.variable, d.how.combiner, d.body.dtype
    others, size = tuple(w for w in d.variables if w != v), int(v.size)
    count = -(-size // chunk)
    p, q, again = Var(f"{v.name}p", count), Var(f"{v.name}q", chunk), Var(f"{v.name}s", count)
    rest = sized(f"{v.name}r", least(Index.of(chunk), size - Index.of(p) * chunk))
    index = tuple(map(Index.of, others))
    first = dataclasses.replace(
        rewritten(d, {v: Index.of(p) * chunk + rest}),
        name=f"{d.name}_parts",
        dtype=dtype,
        variables=(*others, p),
        how=Reduction(combiner, (rest,)),
    )
    second = dataclasses.replace(
        first,
        name=f"{d.name}_before",
        variables=(*others, again),
        body=Load(first.name, (*index, Index.of(again)), dtype),
        how=Scan(combiner, again),
    )
    place = Index.of(p) * chunk + q
    x = guarded(compare_index("lt", place, Index.of(size)), rewritten(d, {v: place}).body, constant(0, dtype))
    at_begin = [compare_index("eq", Index.of(q), Index.of(0)), compare_index("gt", Index.of(p), Index.of(0))]
    carried = op(JOINED[combiner], Load(second.name, (*index, Index.of(p) - 1), dtype), x)
    variables = tuple(w for y in d.variables for w in ((p, q) if y == v else (y,)))
    body = guarded(op("bit_and", *at_begin), carried, x)
    return [first, second, dataclasses.replace(d, variables=variables, body=body, how=Scan(combiner, q))]


def _picked(d: Definition, within: Definition, position: int, chunk: int) -> Definition:
    """The whole row's elements from those of parts."""
    index = list(map(Index.of, d.variables))
    index[position : position + 1] = [index[position] // chunk, index[position] % chunk]
    return dataclasses.replace(d, body=Load(within.name, tuple(index), d.dtype), how=None)
