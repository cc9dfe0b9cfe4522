"""Long searches for the place of an extreme, by way of the extremes of parts.

Extremes of parts take one instruction an element and are shared by threads; only the part that has the best of them is
searched. Where the extreme is wanted, too, its parts are the same.

Before: ``t0[] = argmax over r:100000 of x[r]``.
After: ``t0_parts[p:13] = maximum over q:8192 of x[8192*p + q]``, ``t0_best[] = argmax over p:13 of t0_parts[p]``,
``t0_place[] = argmax over r:8192 of x[8192*t0_best + r]`` and ``t0[] = 8192*t0_best + t0_place``. The last part begins
earlier in the third of them, so as to have a whole length: what it has of the part before is less than its extreme.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from torch_max_backend.loops.expr import Load, as_index, from_index
from torch_max_backend.loops.index import Index, Var, least, product
from torch_max_backend.loops.program import Call, Definition, Program, Reduction
from torch_max_backend.loops.tensor import sized
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.kernel import Layout
from torch_max_backend.schedule.machine import Machine
from torch_max_backend.schedule.split import (
    ACCUMULATORS,
    chunk_of,
    is_along_memory,
    is_search,
    is_worth_sharing,
    merged_loops,
    parts_for_threads,
    rewritten,
    width_read,
)

FEWEST = 8
"""Parts, at least, where the loop that is cut has other loops inside: all of a part is read again."""


def split_long_searches(program: Program, layouts: Mapping[str, Layout], machine: Machine) -> Program:
    """Cut searches for places of extremes in parts, where threads would have too few results."""
    steps: list[Definition | Call] = []
    for step in program.steps:
        if isinstance(step, Definition) and is_search(step):
            steps += _in_parts(step, layouts, machine)
        else:
            steps.append(step)
    return dataclasses.replace(program, steps=steps)


def _in_parts(whole: Definition, layouts: Mapping[str, Layout], machine: Machine) -> list[Definition]:
    assert isinstance(whole.how, Reduction)
    d, how = (whole, whole.how) if machine.has_grid else merged_loops(whole, whole.how, layouts)
    wide = [v for v in how.variables if v.size != 1]
    if not wide or not all(Index.of(v.size).is_fixed for v in wide):
        return [whole]
    chunk = _chunk(d, wide, layouts, machine)
    size = Index.of(wide[0].size)
    if chunk is None or size == chunk:
        return [whole]
    return _by_parts(d, how.combiner, wide, chunk)


def _chunk(d: Definition, wide: Sequence[Var], layouts: Mapping[str, Layout], machine: Machine) -> Index | None:
    """The length of parts of the first loop; ``None`` where it is not worth cutting."""
    (v, *others), results = wide, cost.count(d.variables)
    along_memory = is_along_memory(d, wide[-1], layouts)
    if not machine.has_grid:
        elements = cost.count(wide)
        if not is_worth_sharing(d, results, elements, along_memory, machine):
            return None
        parts = parts_for_threads(results, elements, along_memory, machine, is_searched=True)
        if others and min(parts, cost.count([v])) < FEWEST:
            return None
        return chunk_of(Index.of(v.size), parts, ACCUMULATORS if along_memory and not others else 1, machine)
    width = width_read(d) if along_memory else machine.line
    if others or results >= machine.results[0] or not isinstance(v.size, int) or v.size * width < machine.block:
        return None
    most = machine.most_parts // results if along_memory else v.size // ACCUMULATORS  # a block has neighbours' results
    multiple = ACCUMULATORS if along_memory else 1
    return chunk_of(Index.of(v.size), max(2, min(machine.most_parts, most)), multiple, machine)


def _by_parts(d: Definition, combiner: str, wide: Sequence[Var], chunk: Index) -> list[Definition]:
    """The extremes of parts of the first loop, the best part, the place in it, and the place in all."""
    (v, *others) = wide
    size = Index.of(v.size)
    count = (size + chunk - 1) // chunk
    p, again = sized(f"{v.name}p", count), sized(f"{v.name}c", count)
    q, within = sized(f"{v.name}q", least(chunk, size - chunk * p)), sized(f"{v.name}r", least(chunk, size))
    index = tuple(map(Index.of, d.variables))

    def load(name: str, *at: Index, dtype: torch.dtype = torch.int64) -> Load:
        return Load(f"{d.name}_{name}", (*index, *at), dtype)

    best = as_index(load("best"), 0, int(count.constant) - 1 if count.is_constant else None)
    begin = least(best * chunk, size - least(chunk, size))
    first = rewritten(d, {v: Index.of(p) * chunk + q})
    extreme = Reduction({"argmax": "maximum", "argmin": "minimum"}[combiner], (q, *others))
    chosen, place = load("parts", Index.of(again), dtype=d.body.dtype), Reduction(combiner, (within, *others))
    each = product(Index.of(w.size) for w in others)
    return [
        dataclasses.replace(
            first, name=f"{d.name}_parts", dtype=d.body.dtype, variables=(*d.variables, p), how=extreme
        ),
        dataclasses.replace(d, name=f"{d.name}_best", body=chosen, how=Reduction(combiner, (again,))),
        dataclasses.replace(rewritten(d, {v: begin + within}), name=f"{d.name}_place", how=place),
        dataclasses.replace(d, body=from_index(begin * each + as_index(load("place"))), how=None),
    ]
