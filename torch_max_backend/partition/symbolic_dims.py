"""Torch's symbolic sizes as MAX dims.

A size is a sympy expression over symbols. Polynomials become algebraic dims. Everything else (floor division, Mod, Max,
…) becomes an *atom*: a dim with a name of its own, as if it were a symbol. MAX dims know floor division too, but its
engine cannot show two such expressions equal once they are multiplied, as every reshape of an image does. An atom gets
its value from a graph input that has it as a size, or else from a *carrier*: an extra input of shape [size, 0], which
holds no bytes and names the size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import sympy
from max.graph import Dim
from sympy import Expr


def _is_polynomial(expr: Expr) -> bool:
    """Whether the expression is made of symbols, integers, sums, products and small powers alone."""
    if isinstance(expr, sympy.Symbol | sympy.Integer):
        return True
    return _is_compound(expr) and all(_is_polynomial(a) for a in expr.args)


def _is_compound(expr: Expr) -> bool:
    """Whether the outermost operation is one that algebraic dims have: a sum, a product, a small power."""
    if isinstance(expr, sympy.Pow):
        return bool(expr.exp.is_Integer and 1 < int(expr.exp) <= 8)
    return isinstance(expr, sympy.Add | sympy.Mul)


class DimTable:
    """Names for the atoms of one region, numbered by first use so that equal regions get equal names."""

    def __init__(self) -> None:
        self.names: dict[Expr, str] = {}
        self.bound: set[Expr] = set()
        self.sizes: set[Expr] = set()

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

    def use_size(self, size: Expr) -> None:
        """Note that a tensor of the region has ``size``: never negative, so that it may be an atom as a whole."""
        self.sizes.add(size)
        self.use_number(size)

    def use_number(self, expr: Expr) -> None:
        """Note that an op takes ``expr``, which may be negative. All sizes must have been announced before."""
        for atom in self._atoms(expr):
            self._name(atom)

    def _atoms(self, expr: Expr) -> list[Expr]:
        if isinstance(expr, sympy.Integer):
            return []
        return [expr] if self._is_atom(expr) else [a for arg in expr.args for a in self._atoms(arg)]

    def _is_atom(self, expr: Expr) -> bool:
        """Whether the dim of the expression is a name, and not algebra over names."""
        if not _is_compound(expr):
            return True
        return expr in self.sizes and not _is_polynomial(expr)

    def carriers(self) -> list[Expr]:
        """Atoms that no input binds: their values are computed on the host and passed in."""
        return [e for e in self.names if e not in self.bound and self._is_atom(e)]

    def dim(self, size: Expr) -> Dim:
        """The dim of an expression whose atoms are known.

        Raises:
            KeyError: An atom was never announced.
        """
        if isinstance(size, sympy.Integer):
            return Dim(int(size))
        if self._is_atom(size):
            return Dim(self.names[size])
        if isinstance(size, sympy.Pow):
            return _fold([self.dim(size.base)] * int(size.exp), lambda a, b: a * b)
        args = [self.dim(a) for a in size.args]
        return _fold(args, (lambda a, b: a + b) if isinstance(size, sympy.Add) else (lambda a, b: a * b))

    def _name(self, expr: Expr) -> str:
        return self.names.setdefault(expr, f"d{len(self.names)}")


def _fold(dims: list[Dim], combine: Callable[[Dim, Dim], Dim]) -> Dim:
    total = dims[0]
    for d in dims[1:]:
        total = combine(total, d)
    return total
