"""Loop programs: definitions of tensors by loops, and calls of libraries, in an order in which they can run.

>>> i, j = Var("i", 4), Var("j", 8)
>>> x = Load("x", (Index.of(i), Index.of(j)), torch.float32)
>>> print(Definition("t0", torch.float32, (i,), x, Reduction("sum", (j,))))
t0[i:4]: f32 = sum over j:8 of x[i, j]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from torch_max_backend.aten_functions.torch_executed.collectives import COLLECTIVES
from torch_max_backend.base.index_sites import Site
from torch_max_backend.loops.expr import SHORT, Load, Scalar, loads, nested, walk
from torch_max_backend.loops.index import Index, Sym, Var

COMBINERS = ("sum", "product", "maximum", "minimum", "any", "all", "argmax", "argmin")
"""What a reduction does with its elements. Maximum and minimum are NaN if an element is; argmax and argmin give the
place of the first greatest or least (a NaN counts as such) in the order of the reduction's variables."""


def dense_strides(
    sizes: Sequence[Index], order: Sequence[int] | None = None, rows: tuple[int, int] | None = None
) -> tuple[Index, ...]:
    """The strides of a tensor without gaps, in elements.

    Args:
        order: The dimensions as memory has them.
        rows: The length of a row, and the elements from one to the next, if there are gaps between them.
    """
    strides, step = [Index.of(1)] * len(sizes), Index.of(1)
    for d in reversed(range(len(sizes)) if order is None else order):
        strides[d] = step
        step = step * (sizes[d] if sizes[d] != 0 else 1)
        if rows is not None and step == rows[0]:
            step = Index.of(rows[1])
    return tuple(strides)


@dataclass(frozen=True)
class Reduction:
    """A combiner and the variables that are reduced, the last one running fastest.

    What the body gives is combined in the body's dtype, and the result converted to the definition's; a sum that is
    declared float64 is added up in float64.
    """

    combiner: str
    variables: tuple[Var, ...]


@dataclass(frozen=True)
class Scan:
    """Prefixes along ``variable``, which is one of the definition's: an element combines all up to its own place.

    Combiners are those of a reduction, and "log_sum_exp"; argmax and argmin give the place of the *last* greatest or
    least so far. What the body gives is combined in the body's dtype.
    """

    combiner: str
    variable: Var


@dataclass(frozen=True)
class Sort:
    """What a body gives, an integer, in ascending order along ``variable``; or where each was before.

    With ``gives_places`` equal ones stay in their order, and results have the dtype int64.
    """

    variable: Var
    gives_places: bool = False

    def __str__(self) -> str:
        return f"{'places of sorted' if self.gives_places else 'sorted'} along {self.variable}"


@dataclass(frozen=True)
class Scatter:
    """Elements of ``source`` combined into the tensor that the definition's body gives, at computed places.

    For every value of ``variables``, ``source`` is combined into the element at ``target``, and rounded each time. The
    combiner is "sum",
    "product", "maximum", "minimum" or "set"; with "set" the last in the order of the variables stays.
    """

    combiner: str
    variables: tuple[Var, ...]
    target: tuple[Index, ...]
    source: Scalar


@dataclass(frozen=True)
class Definition:
    """A tensor: for every value of ``variables``, the scalar ``body``, as it is or as ``how`` says: reduced, scanned,
    sorted or scattered into.

    ``where`` is the op and the user's line that it comes from, and behind that a line for each that became part of it.
    The dimensions of what is ``whole`` are not split: it is small, and what reads it has long loops over all of each.
    """

    name: str
    dtype: torch.dtype
    variables: tuple[Var, ...]
    body: Scalar
    how: Reduction | Scan | Sort | Scatter | None = None
    where: str = ""
    whole: bool = False

    @property
    def reduced(self) -> tuple[Var, ...]:
        """The variables that only the body has."""
        return self.how.variables if isinstance(self.how, Reduction) else ()

    @property
    def sizes(self) -> tuple[Index, ...]:
        """The tensor's sizes."""
        return tuple(Index.of(v.size) for v in self.variables)

    def expressions(self) -> tuple[Scalar, ...]:
        """Every expression in it: what a pass must look at."""
        extra = (self.how.source, *_nested(self.how.target)) if isinstance(self.how, Scatter) else ()
        return (self.body, *extra)

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """All loads in it, each once."""
        return tuple(loads(*self.expressions()))

    def __str__(self) -> str:
        head = f"{self.name}[{_ranges(self.variables)}]: {SHORT[self.dtype]} ="
        if isinstance(self.how, Reduction):
            return f"{head} {self.how.combiner} over {_ranges(self.how.variables)} of {self.body}"
        if isinstance(self.how, Scan):
            return f"{head} {self.how.combiner} up to {self.how.variable} of {self.body}"
        if isinstance(self.how, Sort):
            return f"{head} {self.how} of {self.body}"
        if isinstance(self.how, Scatter):
            target = ", ".join(map(str, self.how.target))
            over = _ranges(self.how.variables)
            return f"{head} {self.body}, then {self.how.combiner} at [{target}] over {over} of {self.how.source}"
        return f"{head} {self.body}"


@dataclass(frozen=True)
class Input:
    """A tensor that enters, by its sizes and its strides in elements."""

    name: str
    dtype: torch.dtype
    sizes: tuple[Index, ...]
    strides: tuple[Index, ...]

    def __str__(self) -> str:
        sizes, strides = (", ".join(map(str, x)) for x in (self.sizes, self.strides))
        return f"in {self.name}: {SHORT[self.dtype]}[{sizes}] strides ({strides})"


@dataclass(frozen=True)
class Called:
    """A tensor that a library call returns: its name, sizes and strides."""

    name: str
    dtype: torch.dtype
    sizes: tuple[Index, ...]
    strides: tuple[Index, ...]


@dataclass(frozen=True)
class Call:
    """A call of a library: ``target`` is a torch op; in ``args``, :class:`Ref` stands for a tensor of the program.

    ``node`` is the name of the graph's node that it is made from. ``holds`` are tensors that others may read until the
    call is over: those that a collective is at work on, for the call that waits for it.
    """

    library: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(hash=False)
    results: tuple[Called | None, ...] = ()
    where: str = ""
    node: str = ""
    holds: tuple[str, ...] = ()

    def reads(self) -> tuple[str, ...]:
        """The names of the tensors that it reads, and of those that are read until it is over."""
        return (*_refs([self.args, list(self.kwargs.values())]), *self.holds)

    @property
    def is_collective(self) -> bool:
        """Whether it is called even if nothing reads its results: other ranks count on it."""
        return self.target in COLLECTIVES

    def __str__(self) -> str:
        results = ", ".join(r.name if r else "_" for r in self.results)
        args = ", ".join([*map(str, self.args), *(f"{k}={v}" for k, v in self.kwargs.items())])
        return f"{results} = {self.library} {self.target}({args})"


@dataclass(frozen=True)
class Ref:
    """A tensor as a library call reads it: the one of that name, viewed with these sizes and strides."""

    name: str
    sizes: tuple[Index, ...]
    strides: tuple[Index, ...]
    offset: Index

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.sizes))})"


Step = Definition | Call


@dataclass
class Program:
    """Inputs, steps in an order in which they can run, and what leaves.

    ``outputs`` are pairs of a name and the order of its dimensions in memory, ``shapes`` their sizes, whatever loops
    compute them. ``stores`` are pairs of an input and the definition that is written into it after every step that
    reads the input. ``symbols`` are the integers that a call gives, each with torch's expression for it, ``sites`` the
    places that check indices, by number. ``orders`` are those of dimensions in memory for definitions that libraries
    read and that do not leave, where it is not their own; ``rows`` are the lengths of their rows in memory, with what
    lies between the beginnings of two, where that is more. ``free`` are the strides of outputs that leave as they lie,
    ``views`` the sizes and strides of those that are other views of a library's result.
    ``modules`` are the paths of the user's modules that compute definitions and results of calls, for profiles.
    """

    inputs: dict[str, Input] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    outputs: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    stores: list[tuple[str, str]] = field(default_factory=list)
    symbols: dict[Sym, Any] = field(default_factory=dict)
    shapes: dict[str, tuple[Index, ...]] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    orders: dict[str, tuple[int, ...]] = field(default_factory=dict)
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    free: dict[str, tuple[int, ...]] = field(default_factory=dict)
    views: dict[str, tuple[tuple[Index, ...], tuple[Index, ...]]] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [*map(str, self.inputs.values()), *map(str, self.steps)]
        lines += [f"{name} in memory {order}" for name, order in self.orders.items()]
        lines += [f"{name} in rows of {length} every {step}" for name, (length, step) in self.rows.items()]
        lines += [f"out {name} order {order}" for name, order in self.outputs]
        lines += [f"out {name} as {list(map(str, n))} by {list(map(str, k))}" for name, (n, k) in self.views.items()]
        lines += [f"store {source} into {target}" for target, source in self.stores]
        return "\n".join(lines)

    def definitions(self) -> Iterator[Definition]:
        """The definitions, in order."""
        return (s for s in self.steps if isinstance(s, Definition))


def reads(step: Step) -> tuple[str, ...]:
    """The names of the tensors that a step reads, each once."""
    if isinstance(step, Call):
        return tuple(dict.fromkeys(step.reads()))
    return tuple(dict.fromkeys(x.source for x in step.loads))


def _nested(target: tuple[Index, ...]) -> tuple[Scalar, ...]:
    return tuple(x for index in target for x in nested(index))


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, list | tuple):
        for v in value:
            yield from _refs(v)


def _ranges(variables: tuple[Var, ...]) -> str:
    return ", ".join(f"{v.name}:{v.size}" for v in variables)


def check(program: Program) -> None:
    """Raise ``ValueError`` unless names are defined before they are read, with as many indices as they have dimensions.

    Every pass is followed by this in tests.
    """
    ranks = {name: len(x.sizes) for name, x in program.inputs.items()}
    for step in program.steps:
        if isinstance(step, Call):
            missing = [n for n in step.reads() if n not in ranks]
            ranks.update({r.name: len(r.sizes) for r in step.results if r is not None})
        else:
            missing = []
            combiner = "sum" if step.how is None or isinstance(step.how, Sort) else step.how.combiner
            if combiner not in (*COMBINERS, "set"):
                raise ValueError(f"{step.name}: {combiner} is no combiner")
            bound = {*step.variables, *step.reduced}
            if isinstance(step.how, Scatter):
                bound |= {*step.how.variables}
            for x in walk(*step.expressions()):
                if isinstance(x, Load):
                    if x.source not in ranks:
                        missing.append(x.source)
                    elif len(x.index) != ranks[x.source]:
                        raise ValueError(
                            f"{step.name}: {x} has {len(x.index)} indices for {ranks[x.source]} dimensions"
                        )
                    free = frozenset().union(*(i.variables for i in x.index), frozenset()) - bound
                    if free:
                        raise ValueError(f"{step.name}: {x} reads {sorted(map(str, free))}, which no loop gives")
            ranks[step.name] = len(step.variables)
        if missing:
            raise ValueError(f"{step}: {missing} is not defined before it")
    for name in [n for n, _ in program.outputs] + [s for _, s in program.stores]:
        if name not in ranks:
            raise ValueError(f"{name} leaves and is not defined")
