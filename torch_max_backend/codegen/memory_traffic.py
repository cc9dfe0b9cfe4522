"""How many bytes a kernel reads and writes: each tensor once, and of each no more than the kernel's loops reach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import torch

from torch_max_backend.loops.expr import Load, loads, variables, walk
from torch_max_backend.loops.index import Computed, Index, least, product
from torch_max_backend.schedule.kernel import Layout
from torch_max_backend.schedule.nest import Nest, StageNest


def bytes_of(nest: Nest, layouts: Mapping[str, Layout], dtypes: Mapping[str, torch.dtype]) -> Index:
    """The bytes that a kernel moves, by symbolic sizes.

    A tensor that is read twice, or written and then read, counts once: the second time it is near. One of which the
    loops reach a part (rows of a table, a slice) counts with that part. Rows that threads keep do not count.
    """
    own = {row.name for row in nest.own}
    reached: dict[str, list[Index | None]] = defaultdict(list)
    for stage in nest.stages:
        for name, address in dict.fromkeys(_addresses(stage)):
            if name in own:
                continue
            reached[name].append(_elements(address, nest, stage))
    total = Index.of(0)
    for name, counts in reached.items():
        layout = layouts[name]
        count = product(size for size, stride in zip(layout.sizes, layout.strides, strict=True) if stride != 0)
        known = [c for c in counts if c is not None]
        if len(known) == len(counts):
            count = least(sum(known, Index.of(0)), count)
        total = total + count * torch.empty((), dtype=dtypes[name]).element_size()
    return total


def _addresses(stage: StageNest) -> Iterator[tuple[str, Index]]:
    for s in stage.statements:
        for x in walk(*s.expressions):
            if isinstance(x, Load) and x.index:
                yield x.source, x.index[0]
        if s.address is not None:
            yield s.name, s.address


def _elements(address: Index, nest: Nest, stage: StageNest) -> Index | None:
    """How many elements an address may name while the loops run; ``None`` where a loop's length varies."""
    loops = {*nest.outer, *stage.inner}
    computed = [a.value for a in address.atoms if isinstance(a, Computed)]
    if not any(not x.index for x in loads(*computed)):  # what a register holds may depend on every loop
        loops &= address.variables.union(*map(variables, computed))
    if any(not Index.of(v.size).is_fixed for v in loops):
        return None
    return product(v.size for v in loops)
