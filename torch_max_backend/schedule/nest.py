"""Loop nests: a kernel with addresses for indices, its loops merged and in order; ``vectors.py`` chooses vectors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from torch_max_backend.loops.expr import FromIndex, Load, Scalar, nested, rewrite, variables, walk
from torch_max_backend.loops.index import Computed, Div, Index, Mod, Product, Replaced, Var, least
from torch_max_backend.loops.program import Definition, Reduction, Scan, Scatter, Sort
from torch_max_backend.loops.tensor import sized
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.kernel import Kernel, Layout, Stage

LANES = 16
"""Elements of a vector, whatever their dtype: the registers of a processor hold them as one or several."""
EVERY = (2, 3, 4)
"""Short steps in memory: a CPU reads whole vectors, and picks the elements."""
HALF = 8
"""Lanes of a vector along a short loop that still reads blocks of memory and turns them."""
ALONE, AGAIN = 8, 8
"""How much more an operation on an element costs that is in no vector, and how much less one of a reduction on what it
reads again and again, which is near."""


def lanes_of(v: Var) -> int:
    """The lanes of vectors along ``v``: a power of two, fewer where the loop is short."""
    return LANES if not isinstance(v.size, int) or v.size >= LANES else 1 << max(1, (v.size - 1).bit_length())


@dataclass(frozen=True)
class Statement:
    """What one definition computes in a loop nest.

    Loads of ``body`` have one index, an address in elements; those with none read a value in registers. ``address`` is
    where the result is written, if it is. ``place`` is a reduction's position, for those that give one. A scan combines
    along the loops of its stage, and is written at every step; a sort knows its results when it has all elements of
    them; a scatter combines with what is at ``address``. ``first`` are the iterations of a sort's loop that a statement
    has, if it has fewer than there are.
    """

    name: str
    dtype: torch.dtype
    body: Scalar
    address: Index | None
    combiner: str = ""
    place: Index | None = None
    where: str = ""
    how: Scan | Sort | Scatter | None = None
    first: int | None = None

    @property
    def expressions(self) -> tuple[Scalar, ...]:
        """Every expression in it: the body, and those inside of the address."""
        return (self.body, *(() if self.address is None else nested(self.address)))

    def __str__(self) -> str:
        combiner = self.how.combiner if isinstance(self.how, Scan | Scatter) else str(self.how or self.combiner)
        head = f"{self.name} = " + (f"{combiner} of " if combiner else "") + str(self.body)
        head += f" -> [{self.address}]" if self.address is not None else ""
        return head + (f", {self.first} times" if self.first is not None else "")


@dataclass(frozen=True)
class StageNest:
    """Loops over ``free`` and inside them over ``reduced``; ``vector`` is the one that runs in vectors, if any."""

    free: tuple[Var, ...]
    reduced: tuple[Var, ...]
    statements: tuple[Statement, ...]
    vector: Var | None = None

    @property
    def inner(self) -> tuple[Var, ...]:
        """All loops, the outermost first."""
        return (*self.free, *self.reduced)

    @cached_property
    def accesses(self) -> tuple[tuple[Index, int], ...]:
        """Every address that is read or written, with the bytes of an element."""
        found: list[tuple[Index, int]] = []
        for s in self.statements:
            found += [(x.index[0], x.dtype.itemsize) for x in walk(*s.expressions) if isinstance(x, Load) and x.index]
            found += [(s.address, s.dtype.itemsize)] if s.address is not None else []
        return tuple(found)

    def __str__(self) -> str:
        loops = ", ".join(f"{v}:{v.size}{' in vectors' if v == self.vector else ''}" for v in self.inner)
        return "\n".join([f"  for {loops or 'once'}:", *(f"    {s}" for s in self.statements)])


@dataclass(frozen=True)
class OwnRow:
    """``size`` elements of a tensor in memory of a thread: those that one iteration of the outer loops touches."""

    name: str
    dtype: torch.dtype
    size: int

    @property
    def bytes(self) -> int:
        """The memory that it takes."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True)
class Nest:
    """Loops over ``outer``, which threads share; inside them the stages in order. ``vector`` is one of ``outer``.

    ``several`` is what computes ``rows`` iterations of the last outer loop at once, if that is worth it; with
    ``across``, all of that loop for so many iterations of the one around it. ``own`` are tensors of which a thread
    keeps a row by itself: their addresses in the stages are places in it.
    """

    outer: tuple[Var, ...]
    stages: tuple[StageNest, ...]
    vector: Var | None = None
    rows: int = 1
    across: int = 1
    several: tuple[StageNest, ...] = ()
    own: tuple[OwnRow, ...] = ()

    @property
    def work(self) -> Index:
        """What it costs, in simple operations on one element."""
        total = Index.of(0)
        for s in self.stages:
            each = 1 + cost.of_expression(*(e for x in s.statements for e in x.expressions))
            if self.vector is None and s.vector is None:
                each *= ALONE
            work = cost.exact_count((*self.outer, *s.inner)) * each
            total = total + (work // AGAIN if self._reads_again(s) else work)
        return total

    def _reads_again(self, stage: StageNest) -> bool:
        """Whether a stage has long sums of what it reads many times, as a product of matrices does."""
        if cost.count(stage.reduced) < LANES:
            return False
        return cost.reads_again((*self.outer, *stage.inner), *(s.body for s in stage.statements))

    def __str__(self) -> str:
        outer = ", ".join(f"{v}:{v.size}{' in vectors' if v == self.vector else ''}" for v in self.outer)
        at_once = f", {self.rows} at once" if self.rows > 1 else ""
        own = "".join(f", {row.size} of {row.name} in a thread" for row in self.own)
        return "\n".join([f"kernel over {outer or 'nothing'}{at_once}{own}:", *map(str, self.stages)])


def linear_nest(kernel: Kernel, layouts: Mapping[str, Layout], local: frozenset[str]) -> Nest:
    """A kernel's loops as they are, with addresses for indices."""
    registers = {d.name for s in kernel.stages for d in s.definitions if not _free(d, s)}
    return Nest(kernel.outer, tuple(_linear(s, layouts, local, registers) for s in kernel.stages))


def _free(d: Definition, stage: Stage) -> bool:
    return any(v in stage.inner for v in d.variables)


def _linear(stage: Stage, layouts: Mapping[str, Layout], local: frozenset[str], registers: set[str]) -> StageNest:
    own = {d.name for d in stage.definitions if d.how is None}
    reduced = stage.reduced
    sorts = {d.name: d for d in stage.definitions if isinstance(d.how, Sort)}

    def load(x: Load) -> Load:
        if x.source in own or x.source in registers:
            return Load(x.source, (), x.dtype)
        if x.source in sorts:
            return _of_sorted_row(x, sorts[x.source])
        return Load(x.source, (layouts[x.source].address(x.index),), x.dtype)

    statements = []
    for d in stage.definitions:
        address = None if d.name in local else layouts[d.name].address(tuple(map(Index.of, d.variables)))
        combiner = d.how.combiner if isinstance(d.how, Reduction | Scan) else ""
        place = None
        if combiner.startswith("arg"):
            place = Index.of(0)
            for v in d.reduced if isinstance(d.how, Reduction) else (d.how.variable,):  # type: ignore[union-attr]
                place = place * Index.of(v.size) + Index.of(v)
        how = None if isinstance(d.how, Reduction) else d.how
        first = _first(d, stage.inner[0], layouts[d.name]) if sorts else None
        body = rewrite(d.body, {}, load)
        statements.append(Statement(d.name, d.dtype, body, address, combiner, place, d.where, how, first))
    return StageNest(tuple(v for v in stage.inner if v not in reduced), reduced, tuple(statements))


def row_of(name: str) -> str:
    """What an outer index's row of a sort is called where other elements than the own one are read."""
    return f"{name} of the row"


def _of_sorted_row(x: Load, d: Definition) -> Load:
    """An element of what the stage sorts: the own one, or one by its place in the row."""
    assert isinstance(d.how, Sort)
    if x.index == tuple(map(Index.of, d.variables)):
        return Load(x.source, (), x.dtype)
    return Load(row_of(x.source), (x.index[d.variables.index(d.how.variable)],), x.dtype)


def _first(d: Definition, v: Var, layout: Layout) -> int | None:
    """How many elements along ``v`` a definition has, if it has fewer than others that run in the same loop."""
    count = layout.sizes[d.variables.index(v)].constant if v in d.variables else 1
    return None if count == v.size else int(count)


# -- merging and ordering ----------------------------------------------------------------------------------------------
def indices(*statements: Statement) -> Iterator[Index]:
    """Every index in statements, at any depth."""
    for s in statements:
        for x in walk(*s.expressions):
            if isinstance(x, Load):
                yield from x.index
            elif isinstance(x, FromIndex):
                yield x.index
        yield from (i for i in (s.address, s.place) if i is not None)


def merged(n: Nest) -> Nest:
    """Two loops over neighbouring memory as one: ``x[8*i + j]`` for i and j < 8 as ``x[k]``."""
    while True:
        every = [s for stage in n.stages for s in stage.statements]
        pair = _mergeable(n.outer, every, n)
        if pair is not None:
            n = _merge(n, *pair)
            continue
        for stage in n.stages:  # each has its own inner loops, also where several stages have a variable
            pair = _mergeable(stage.free, stage.statements, n) or _mergeable(stage.reduced, stage.statements, n)
            if pair is not None:
                n = _merge(n, *pair, only=stage)  # another stage may have loops of the same names
                break
        else:
            return n


def _mergeable(loops: tuple[Var, ...], statements: Iterable[Statement], n: Nest) -> tuple[Var, Var] | None:
    found = list(indices(*statements))
    in_order = any(s.how is not None for s in statements)
    sizes = [v.size for v in (*n.outer, *(v for s in n.stages for v in s.inner)) if isinstance(v.size, Index)]
    for a in loops:
        for b in loops:
            if a == b or not Index.of(a.size).is_fixed or not Index.of(b.size).is_fixed:
                continue
            if in_order and loops.index(a) > loops.index(b):
                continue
            if all(runs_on(i, a, b) for i in found) and not any(v in s.variables for v in (a, b) for s in sizes):
                return a, b
    return None


def runs_on(index: Index, a: Var, b: Var) -> bool:
    """Whether ``a`` goes on where ``b`` ends."""
    for atom, _ in index.terms:
        if isinstance(atom, Div | Mod) and runs_on(atom.dividend, a, b) and not {a, b} & {*atom.divisor.variables}:
            continue
        inside = () if isinstance(atom, Var | Product) else Index(0, ((atom, 1),)).atoms
        if a in inside or b in inside:
            return False
        if isinstance(atom, Computed) and {a, b} & variables(atom.value):
            return False
    linear = Index(index.constant, tuple((atom, k) for atom, k in index.terms if not isinstance(atom, Div | Mod)))
    steps = linear.stride(a), linear.stride(b)
    return steps[0] is not None and steps[1] is not None and steps[0] == steps[1] * b.size


def _merge(n: Nest, a: Var, b: Var, only: StageNest | None = None) -> Nest:
    one = sized(b.name + "m", Index.of(a.size) * b.size)
    values = {a: Index.of(0), b: Index.of(one)}

    def loops(of: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(one if v == b else v for v in of if v != a)

    stages = tuple(
        dataclasses.replace(
            s, free=loops(s.free), reduced=loops(s.reduced), statements=substituted(s.statements, values)
        )
        if only is None or s is only
        else s
        for s in n.stages
    )
    return Nest(loops(n.outer), stages)


def substituted(statements: tuple[Statement, ...], values: Replaced) -> tuple[Statement, ...]:
    """Statements with variables replaced."""
    done: dict[Scalar, Scalar] = {}
    return tuple(
        dataclasses.replace(
            s,
            body=rewrite(s.body, values, done=done),
            address=None
            if s.address is None
            else s.address.substitute(values, lambda x: rewrite(x, values, done=done)),
            place=None if s.place is None else s.place.substitute(values),
        )
        for s in statements
    )


def ordered(n: Nest) -> Nest:
    """Loops with the longest steps in memory outside; where a position counts, the order of the reduction stays."""
    every = [s for stage in n.stages for s in stage.statements]

    def step(v: Var, statements: list[Statement]) -> tuple[int, int]:
        stores = [distance(s.address, v) for s in statements if s.address is not None]
        reads = [distance(i, v) for i in indices(*statements)]
        return -max(stores, default=0), -max(reads, default=0)

    stages = []
    for s in n.stages:
        own = list(s.statements)
        reduced = s.reduced
        if not any(x.place is not None for x in own) and all(Index.of(v.size).is_fixed for v in reduced):
            reduced = tuple(sorted(reduced, key=lambda v: step(v, own)[1]))
        free = tuple(sorted(s.free, key=lambda v: step(v, own)))
        stages.append(dataclasses.replace(s, free=free, reduced=reduced))
    return Nest(tuple(sorted(n.outer, key=lambda v: step(v, every))), tuple(stages))


def distance(index: Index, v: Var) -> int:
    """How far apart in memory neighbours along ``v`` are, as far as hints say; 0 where that is not one number."""
    step = index.stride(v)
    return 0 if step is None else abs(step.typical)


def cut(v: Var, chunk: int) -> tuple[Var, Var]:
    """A loop as two: over chunks, and over what is in each."""
    size = Index.of(v.size)
    p = sized(f"{v.name}p", (size + (chunk - 1)) // chunk)
    return p, sized(f"{v.name}q", least(Index.of(chunk), size - Index.of(p) * chunk))
