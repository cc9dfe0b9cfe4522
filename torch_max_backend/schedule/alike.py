"""Kernels that differ in names alone, as those of a model's layers do, are planned and written once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch_max_backend.loops.expr import Checked, Const, FromIndex, Guarded, Load, Op, Scalar, rewrite, walk
from torch_max_backend.loops.index import Computed, Div, Index, Least, Mod, Product, Sym, Var
from torch_max_backend.loops.program import Reduction
from torch_max_backend.schedule.kernel import Kernel, Layout
from torch_max_backend.schedule.nest import Nest, StageNest, Statement


@dataclasses.dataclass(frozen=True)
class Form:
    """What a kernel is, however its loops and tensors are called: kernels of one ``key`` differ in names alone.

    ``names`` are those of its tensors, in the order in which they first occur.
    """

    key: tuple[Any, ...]
    names: tuple[str, ...]


def form_of(kernel: Kernel, layouts: Mapping[str, Layout], local: frozenset[str]) -> Form | None:
    """The form of a kernel; none for one that scans, sorts or scatters."""
    walk_ = _Walk(layouts, local)
    key: list[Any] = [walk_.loops(kernel.outer)]
    for stage in kernel.stages:
        key.append(walk_.loops(stage.inner))
        for d in stage.definitions:
            if not isinstance(d.how, Reduction | None):
                return None
            how = None if d.how is None else (d.how.combiner, walk_.loops(d.how.variables))
            key.append((walk_.tensor(d.name), d.dtype, walk_.loops(d.variables), how, walk_.scalar(d.body)))
    return Form((*key, *walk_.parts, *walk_.facts), tuple(walk_.tensors))


class _Walk:
    """Spells a kernel with numbers for names."""

    def __init__(self, layouts: Mapping[str, Layout], local: frozenset[str]) -> None:
        self.layouts, self.local = layouts, local
        self.tensors: dict[str, int] = {}
        self.facts: list[Any] = []
        """What is known of each tensor."""
        self.parts: list[Any] = []
        """Every expression, by the numbers of its operands."""
        self._expressions: dict[Scalar, int] = {}
        self._variables: dict[Var, int] = {}
        self._indices: dict[Index, Any] = {}

    def tensor(self, name: str) -> int:
        number = self.tensors.get(name)
        if number is None:
            number = self.tensors[name] = len(self.tensors)
            self.facts.append((self.layouts.get(name), name in self.local))
        return number

    def loops(self, variables: Iterable[Var]) -> tuple[Any, ...]:
        return tuple(map(self._variable, variables))

    def scalar(self, x: Scalar) -> int:
        for y in walk(x):
            if y not in self._expressions:
                self._expressions[y] = len(self.parts)
                self.parts.append(self._part(y))
        return self._expressions[x]

    def _part(self, x: Scalar) -> tuple[Any, ...]:
        if isinstance(x, Op):
            return (x.name, x.dtype, *(self._expressions[y] for y in x.args))
        if isinstance(x, Load):
            return ("load", x.dtype, self.tensor(x.source), *map(self._index, x.index))
        if isinstance(x, Const):
            return x._key
        if isinstance(x, FromIndex):
            return ("index", x.dtype, self._index(x.index))
        operands = tuple(self._expressions[y] for y in x.operands)
        if isinstance(x, Checked):
            return ("checked", *operands, self._index(Index.of(x.size)), x.site, x.wraps)
        assert isinstance(x, Guarded)
        return ("guarded", x.dtype, *operands)

    def _index(self, x: Index) -> Any:
        if not x.terms:
            return x.constant
        spelled = self._indices.get(x)
        if spelled is None:
            spelled = self._indices[x] = (x.constant, *((self._atom(atom), k) for atom, k in x.terms))
        return spelled

    def _atom(self, atom: Any) -> Any:
        if isinstance(atom, Var):
            return self._variable(atom)
        if isinstance(atom, Sym):
            return (atom.name, atom.low, atom.hint)
        if isinstance(atom, Computed):
            return ("computed", self._expressions[atom.value], atom.low, atom.high)
        if isinstance(atom, Product):
            return ("product", *map(self._atom, atom.factors))
        if isinstance(atom, Least):
            return ("least", self._index(atom.left), self._index(atom.right))
        assert isinstance(atom, Div | Mod)
        return (type(atom).__name__, self._index(atom.dividend), self._index(atom.divisor))

    def _variable(self, v: Var) -> Any:
        """Its number, and at its first occurrence its size."""
        number = self._variables.get(v)
        if number is not None:
            return ("loop", number)
        number = self._variables[v] = len(self._variables)
        return ("loop", number, self._index(Index.of(v.size)))


class AlikeKernels:
    """Plans kernels, those of one form once.

    Args:
        plan: Makes the nest of a kernel.
        layouts: Where tensors lie.
        local: Those that need no memory.
    """

    def __init__(self, plan: Callable[[Kernel], Nest], layouts: Mapping[str, Layout], local: frozenset[str]) -> None:
        self._plan, self._layouts, self._local = plan, layouts, local
        self._known: dict[tuple[Any, ...], tuple[Nest, Kernel, Form]] = {}
        self._forms: dict[int, tuple[Nest, Form]] = {}

    def nest(self, kernel: Kernel) -> Nest:
        """The nest of a kernel, with its own names."""
        form = form_of(kernel, self._layouts, self._local)
        if form is None:
            return self._plan(kernel)
        known = self._known.get(form.key)
        if known is None:
            nest = self._plan(kernel)
            self._known[form.key] = nest, kernel, form
        else:
            nest, first, own = known
            origins = {d.name: e.where for d, e in zip(first.definitions, kernel.definitions, strict=True)}
            nest = renamed(nest, dict(zip(own.names, form.names, strict=True)), origins)
        self._forms[id(nest)] = nest, form
        return nest

    def form(self, nest: Nest) -> Form | None:
        """The form of the kernel that a nest was made for, if no pass has changed the nest since."""
        found = self._forms.get(id(nest))
        return found[1] if found is not None and found[0] is nest else None


def renamed(nest: Nest, names: Mapping[str, str], origins: Mapping[str, str]) -> Nest:
    """A nest with other tensors, and with where its statements come from, by their old names."""
    done: dict[Scalar, Scalar] = {}

    def load(x: Load) -> Load:
        return Load(_renamed(x.source, names), x.index, x.dtype)

    def again(x: Scalar) -> Scalar:
        return rewrite(x, {}, load, done)

    def statement(s: Statement) -> Statement:
        return dataclasses.replace(
            s,
            name=_renamed(s.name, names),
            body=again(s.body),
            address=None if s.address is None else s.address.substitute({}, again),
            place=None if s.place is None else s.place.substitute({}, again),
            where=origins.get(_known(s.name, names), s.where),
        )

    def stage(s: StageNest) -> StageNest:
        return dataclasses.replace(s, statements=tuple(map(statement, s.statements)))

    own = tuple(dataclasses.replace(row, name=_renamed(row.name, names)) for row in nest.own)
    stages, several = tuple(map(stage, nest.stages)), tuple(map(stage, nest.several))
    return dataclasses.replace(nest, stages=stages, several=several, own=own)


def _renamed(name: str, names: Mapping[str, str]) -> str:
    known = _known(name, names)
    return names[known] + name[len(known) :]


def _known(name: str, names: Mapping[str, str]) -> str:
    """The tensor that a name is made from: ``t5`` for ``t5.2`` and ``t5_scaled``."""
    known = name
    while known not in names:
        known = known[: max(known.rfind("."), known.rfind("_"), 0)]
        if not known:
            raise KeyError(f"{name} is made from none of the kernel's tensors {', '.join(names)}")
    return known
