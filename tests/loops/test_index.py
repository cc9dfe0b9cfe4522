"""Index arithmetic against brute force: simplified or not, an index has the same value everywhere."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from torch_max_backend.loops.index import (
    Atom,
    Div,
    Index,
    Least,
    Mod,
    Product,
    Sym,
    Var,
    floor_div,
    least,
    remainder,
)

Values = dict[Atom, Any]
Truth = Callable[[Values], Any]

SIZES = (1, 2, 3, 4, 5, 6, 8)
FACTORS = (-8, -4, -3, -2, -1, 1, 2, 3, 4, 6, 8, 12, 16)
DIVISORS = (1, 2, 3, 4, 6, 8, 12, 16, 24)


def value_of(x: Index, at: Values) -> Any:
    """The value of an index, by what its atoms are."""

    def atom(a: Atom) -> Any:
        if isinstance(a, Var | Sym):
            return at[a]
        if isinstance(a, Product):
            return math.prod(atom(f) for f in a.factors)
        if isinstance(a, Least):
            return np.minimum(value_of(a.left, at), value_of(a.right, at))
        assert isinstance(a, Div | Mod)
        left, right = value_of(a.dividend, at), value_of(a.divisor, at)
        return left // right if isinstance(a, Div) else left % right

    return sum((k * atom(a) for a, k in x.terms), np.int64(x.constant))


class Expressions:
    """Random expressions, each as a simplified index and as a function that computes it step by step."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        pick = self.random.choice
        self.variables = [Var(name, pick(SIZES)) for name in "ijk"]
        self.symbol = Sym("n")
        self.wide = Var("w", Index.of(self.symbol))

    def grid(self, symbol: int) -> Values:
        """Every value of all variables."""
        sizes = [v.size for v in self.variables] + [symbol]
        grids = np.meshgrid(*[np.arange(s, dtype=np.int64) for s in sizes], indexing="ij")
        return {**dict(zip([*self.variables, self.wide], grids, strict=True)), self.symbol: np.int64(symbol)}

    def leaf(self) -> tuple[Index, Truth]:
        pick = self.random.choice
        atom = pick([*self.variables, *self.variables, self.wide, self.symbol, None])
        if atom is None:
            k = self.random.randint(-9, 20)
            return Index.of(k), lambda at: np.int64(k)
        return Index.of(atom), lambda at: at[atom]

    def expression(self, depth: int) -> tuple[Index, Truth]:
        """An index and what it should be."""
        if depth == 0:
            return self.leaf()
        pick = self.random.choice
        a, f = self.expression(depth - 1)
        kind = pick(["add", "add", "sub", "mul", "div", "mod", "split", "least", "by_symbol", "times"])
        if kind in ("add", "sub", "least", "times"):
            b, g = self.expression(depth - 1)
            if kind == "add":
                return a + b, lambda at: f(at) + g(at)
            if kind == "sub":
                return a - b, lambda at: f(at) - g(at)
            if kind == "times" and depth == 1:
                return a * b, lambda at: f(at) * g(at)
            return least(a, b), lambda at: np.minimum(f(at), g(at))
        if kind == "by_symbol":
            n = self.symbol
            if pick([True, False]):
                return (a * n) // n, lambda at: (f(at) * at[n]) // at[n]
            w = self.wide
            return (a * n + w) % Index.of(n), lambda at: (f(at) * at[n] + at[w]) % at[n]
        k = pick(FACTORS)
        if kind == "mul":
            return a * k, lambda at: f(at) * k
        d = pick(DIVISORS)
        if kind == "div":
            return floor_div(a, Index.of(d)), lambda at: f(at) // d
        if kind == "mod":
            return remainder(a, Index.of(d)), lambda at: f(at) % d
        return (a // d) * d * k + (a % d) * k, lambda at: (f(at) // d) * d * k + (f(at) % d) * k

    def replacement(self) -> tuple[dict[Atom, Index], list[Var], Callable[[Values], Values]]:
        """A variable as another index with the same values: what to substitute, new variables, and the old values."""
        old = self.random.choice([v for v in self.variables if isinstance(v.size, int)])
        assert isinstance(old.size, int)
        size = old.size
        inner = self.random.choice([d for d in range(1, size + 1) if size % d == 0])
        a, b = Var("a", size // inner), Var("b", inner)
        kind = self.random.choice(["split", "flip", "constant"])
        new = {
            "split": Index.of(a) * inner + b,
            "flip": size - 1 - Index.of(old),
            "constant": Index.of(self.random.randrange(size)),
        }[kind]
        return {old: new}, [a, b], lambda at: {**at, old: value_of(new, at)}


@pytest.mark.parametrize("seed", range(8))
def test_simplified_is_equal(seed: int) -> None:
    for case in range(150):
        made = Expressions(seed * 1000 + case)
        index, truth = made.expression(made.random.randint(1, 5))
        for symbol in (1, 2, 5):
            at = made.grid(symbol)
            want, got = truth(at), value_of(index, at)
            np.testing.assert_array_equal(np.broadcast_to(got, np.shape(want)), want, str(index))
            low, high = index.bounds
            assert low <= np.min(want) and np.max(want) <= high, f"{index} is not within {low} and {high}"


@pytest.mark.parametrize("seed", range(8))
def test_substituted_is_equal(seed: int) -> None:
    for case in range(150):
        made = Expressions(77_000 + seed * 1000 + case)
        index, truth = made.expression(made.random.randint(1, 5))
        values, new, old_values = made.replacement()
        changed = index.substitute(values)
        at = made.grid(3)
        shape = np.shape(at[made.wide])
        grids = np.meshgrid(*[np.arange(v.size) for v in new], indexing="ij")
        at = {a: np.reshape(x, (*np.shape(x), *[1] * len(new))) for a, x in at.items()}
        at |= {v: np.reshape(g, (*[1] * len(shape), *g.shape)) for v, g in zip(new, grids, strict=True)}
        want, got = np.broadcast_arrays(truth(old_values(at)), value_of(changed, at))
        np.testing.assert_array_equal(got, want, f"{index} with {values} as {changed}")
        assert index.substitute({}) is index


def test_equal_sums_are_equal() -> None:
    i, j = Var("i", 8), Var("j", 4)
    flat = Index.of(i) * 4 + j
    assert flat // 4 == Index.of(i)
    assert flat % 4 == Index.of(j)
    assert (flat // 4) * 4 + flat % 4 == flat
    assert (flat // 8) * 8 + flat % 8 == flat
    assert Index.of(Var("one", 1)) == 0
