"""Torch's symbolic sizes as indices of a loop program.

A size is a sympy expression over symbols. Sums, products, floor divisions, remainders, minima and maxima become an
:class:`~torch_max_backend.loops.index.Index` over them. Whatever else there is (true division, ceil, a float's digits)
becomes a symbol of its own, whose value the call path computes on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from sympy import Expr
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod
from torch.utils._sympy.numbers import int_oo

from torch_max_backend.capture.fake_tensors import expr_of
from torch_max_backend.loops.index import (
    Atom,
    Div,
    Index,
    Least,
    Product,
    Sym,
    floor_div,
    greatest,
    least,
    product,
    remainder,
)
from torch_max_backend.loops.index import Mod as Remainder

MOST_POWER = 8
"""The highest power that is written out as a product."""
NO_HINT = 256
"""What a size counts as that depends on data."""


class Symbols:
    """The symbols of one program, named by first use so that equal regions get equal names."""

    def __init__(self) -> None:
        self.known: dict[Expr, Sym] = {}
        self.environment: Any = None
        """Torch's shape environment, where the program has symbolic sizes."""

    def of(self, size: int | torch.SymInt) -> Index:
        """A size or another integer as an index."""
        if isinstance(size, int):
            return Index.of(size)
        self.environment = size.node.shape_env
        return self._index(expr_of(size), self.environment)

    def shape(self, sizes: Sequence[Any]) -> tuple[Index, ...]:
        """Sizes or strides."""
        return tuple(map(self.of, sizes))

    def back(self, x: Index) -> int | torch.SymInt:
        """An index of symbols as torch has it."""
        if x.is_constant:
            return x.constant
        expr = expression_of(x, {symbol: e for e, symbol in self.known.items()})
        env = self.environment
        if expr.is_number:
            return int(expr)
        return env.create_symintnode(expr, hint=_value(expr, env))

    def given(self) -> dict[Sym, Expr]:
        """The symbols so far, each with the expression that gives its value, as torch's guards have it by now."""
        if self.environment is None:
            return {symbol: expr for expr, symbol in self.known.items()}
        return {symbol: self.environment.replace(expr) for expr, symbol in self.known.items()}

    def _index(self, expr: Expr, env: Any) -> Index:
        if isinstance(expr, sympy.Integer):
            return Index.of(int(expr))
        if isinstance(expr, sympy.Add):
            total = Index.of(0)
            for a in expr.args:
                total = total + self._index(a, env)
            return total
        if isinstance(expr, sympy.Mul) and all(a.is_integer for a in expr.args):
            return product(self._index(a, env) for a in expr.args)
        if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and 1 < int(expr.exp) <= MOST_POWER:
            return product([self._index(expr.base, env)] * int(expr.exp))
        if isinstance(expr, FloorDiv | Mod | PythonMod) and env.bound_sympy(expr.args[1]).lower >= 1:
            left, right = (self._index(a, env) for a in expr.args)
            return floor_div(left, right) if isinstance(expr, FloorDiv) else remainder(left, right)
        if isinstance(expr, Min | Max | sympy.Min | sympy.Max):
            first, *others = (self._index(a, env) for a in expr.args)
            for other in others:
                first = (least if isinstance(expr, Min | sympy.Min) else greatest)(first, other)
            return first
        return Index.of(self._symbol(expr, env))

    def _symbol(self, expr: Expr, env: Any) -> Sym:
        if expr not in self.known:
            lower = env.bound_sympy(expr).lower
            low = None if lower == -int_oo or not lower.is_finite else int(sympy.ceiling(lower))
            value = _value(expr, env)
            self.known[expr] = Sym(f"n{len(self.known)}", low, NO_HINT if value is None else value)
        return self.known[expr]


def _value(expr: Expr, env: Any) -> int | None:
    """What an expression was while torch traced; nothing if it depends on data."""
    values = {s: env.backed_var_to_val.get(s) for s in expr.free_symbols}
    return None if any(v is None for v in values.values()) else int(expr.xreplace(values))


def expression_of(x: Index, known: dict[Sym, Expr]) -> Expr:
    """An index of symbols as torch's expression, by what each symbol stands for."""
    total = sympy.Integer(x.constant)
    for atom, k in x.terms:
        total = total + k * _atom(atom, known)
    return total


def _atom(atom: Atom, known: dict[Sym, Expr]) -> Expr:
    if isinstance(atom, Product):
        return sympy.Mul(*(_atom(f, known) for f in atom.factors))
    if isinstance(atom, Div | Remainder):
        function = FloorDiv if isinstance(atom, Div) else PythonMod
        return function(expression_of(atom.dividend, known), expression_of(atom.divisor, known))
    if isinstance(atom, Least):
        return Min(expression_of(atom.left, known), expression_of(atom.right, known))
    assert isinstance(atom, Sym)
    return known[atom]
