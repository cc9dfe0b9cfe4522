"""Torch's symbolic sizes as MAX dims.

A size is a sympy expression over symbols. MAX dims know ``+ - * //``; everything else (Max, Min, powers of two by a
symbol, …) becomes an *atom*: a dim with a name of its own. An atom gets its value from a graph input that has it as
a size, or else from a *carrier*: an extra input of shape [size, 0], which holds no bytes and names the size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import sympy
from max.graph import Dim
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

Expr: TypeAlias = sympy.Expr


def atoms_of(expr: Expr) -> list[Expr]:
    """The symbols and inexpressible subexpressions that the dim of ``expr`` is made of, in order of occurrence."""
    if isinstance(expr, sympy.Integer | int):
        return []
    if _is_expressible(expr):
        return [a for arg in expr.args for a in atoms_of(arg)]  # type: ignore[arg-type]
    return [expr]


def _is_expressible(expr: Expr) -> bool:
    """Whether the outermost operation is one that MAX dims have."""
    if isinstance(expr, FloorDiv | Mod | PythonMod):
        return bool(expr.args[1].is_positive) or isinstance(expr.args[1], sympy.Symbol)
    if isinstance(expr, sympy.Pow):
        return bool(expr.exp.is_Integer and 1 < int(expr.exp) <= 8)
    if isinstance(expr, sympy.Mul):
        return all(not a.is_Rational or a.is_Integer for a in expr.args)
    return isinstance(expr, sympy.Add)


class DimTable:
    """Names for the atoms of one region, numbered by first use so that equal regions get equal names."""

    def __init__(self) -> None:
        self.names: dict[Expr, str] = {}
        self.bound: set[Expr] = set()

    def bind_input(self, sizes: Iterable[Expr]) -> list[str | int]:
        """Dims for the type of a graph input: static sizes, atoms (bound by this input), or a name to rebind later."""
        dims: list[str | int] = []
        for size in sizes:
            if isinstance(size, sympy.Integer):
                dims.append(int(size))
            else:
                dims.append(self._name(size))
                self.bound.add(size)
        return dims

    def use(self, size: Expr) -> None:
        """Note that the region needs ``size``."""
        for atom in atoms_of(size):
            self._name(atom)

    def carriers(self) -> list[Expr]:
        """Atoms that no input binds: their values are computed on the host and passed in."""
        return [e for e in self.names if e not in self.bound and self._is_atom(e)]

    def dim(self, size: Expr) -> Dim:
        """The dim of an expression whose atoms are known.

        Raises:
            KeyError: An atom was never announced with :meth:`use`.
        """
        if isinstance(size, sympy.Integer | int):
            return Dim(int(size))
        if self._is_atom(size):
            return Dim(self.names[size])
        args = [self.dim(a) for a in size.args]  # type: ignore[arg-type]
        if isinstance(size, sympy.Add):
            return _fold(args, lambda a, b: a + b)
        if isinstance(size, sympy.Mul):
            return _fold(args, lambda a, b: a * b)
        if isinstance(size, FloorDiv):
            return args[0] // args[1]
        if isinstance(size, Mod | PythonMod):
            return args[0] - (args[0] // args[1]) * args[1]
        return _fold([args[0]] * int(size.args[1]), lambda a, b: a * b)  # type: ignore[call-overload]

    def _is_atom(self, size: Expr) -> bool:
        return not isinstance(size, sympy.Integer) and not _is_expressible(size)

    def _name(self, expr: Expr) -> str:
        return self.names.setdefault(expr, f"d{len(self.names)}")


def _fold(dims: list[Dim], combine) -> Dim:  # type: ignore[no-untyped-def]
    total = dims[0]
    for d in dims[1:]:
        total = combine(total, d)
    return total
