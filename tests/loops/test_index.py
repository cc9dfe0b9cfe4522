"""Index arithmetic against brute force: simplified or not, an index has the same value everywhere."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from torch_max_backend.loops.index import (
    UNKNOWN,
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
        self.symbol, self.other = Sym("n", low=1), Sym("m", low=2)
        self.wide = Var("w", Index.of(self.symbol))
        n, m = Index.of(self.symbol), Index.of(self.other)
        self.wider = Var("v", pick([n * m, m + 1, n * 3]))

    def grid(self, symbol: int) -> Values:
        """Every value of all variables."""
        known: Values = {self.symbol: np.int64(symbol), self.other: np.int64(symbol + 1)}
        sizes = [v.size for v in self.variables] + [value_of(Index.of(v.size), known) for v in (self.wide, self.wider)]
        grids = np.meshgrid(*[np.arange(s, dtype=np.int64) for s in sizes], indexing="ij")
        return {**dict(zip([*self.variables, self.wide, self.wider], grids, strict=True)), **known}

    def leaf(self) -> tuple[Index, Truth]:
        pick = self.random.choice
        atom = pick([*self.variables, *self.variables, self.wide, self.wider, self.symbol, self.other, None])
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
            n, m, w = self.symbol, self.other, self.wide
            size = pick([Index.of(n), Index.of(m), Index.of(n) * m, Index.of(n) + 1, Index.of(m) * 4 + n])
            made = pick([a * n, a * n + w, a * size, a * size + w, a])
            truth = {a * n: lambda at: f(at) * at[n], a * n + w: lambda at: f(at) * at[n] + at[w]}
            truth |= {a * size: lambda at: f(at) * value_of(size, at)}
            truth |= {a * size + w: lambda at: f(at) * value_of(size, at) + at[w]}
            g = f if made == a else truth[made]
            kind = pick(["div", "mod", "both"])
            if kind == "div":
                return made // size, lambda at: g(at) // value_of(size, at)
            if kind == "mod":
                return made % size, lambda at: g(at) % value_of(size, at)
            return (made // size) * size * m + (made % size) * m, lambda at: g(at) * at[m]
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


def grows(index: Index, v: Var, at: Values) -> None:
    """The stride of a variable is by how much the index grows with it."""
    step = index.stride(v)
    if step is not None:
        more = value_of(index.substitute({v: Index.of(v) + 1}), at) - value_of(index, at)
        np.testing.assert_array_equal(*np.broadcast_arrays(more, value_of(step, at)), f"{index} along {v}")


@pytest.mark.parametrize("seed", range(8))
def test_simplified_is_equal(seed: int) -> None:
    for case in range(100):
        made = Expressions(seed * 1000 + case)
        index, truth = made.expression(made.random.randint(1, 5))
        for symbol in (1, 2, 5):
            at = made.grid(symbol)
            want, got = truth(at), value_of(index, at)
            np.testing.assert_array_equal(np.broadcast_to(got, np.shape(want)), want, str(index))
            low, high = index.bounds
            assert low <= np.min(want) and np.max(want) <= high, f"{index} is not within {low} and {high}"
            for v in (made.wide, made.variables[0]):
                grows(index, v, at)


@pytest.mark.parametrize("seed", range(8))
def test_substituted_is_equal(seed: int) -> None:
    for case in range(150):
        made = Expressions(77_000 + seed * 1000 + case)
        index, truth = made.expression(made.random.randint(1, 5))
        values, new, old_values = made.replacement()
        changed = index.substitute(values)
        at = made.grid(3)
        shape = np.shape(at[made.wide])  # of all variables
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


def test_ranges_of_symbolic_variables_decide() -> None:
    n, m = Sym("n", low=1), Sym("m", low=1)
    i, j = Var("i", Index.of(n)), Var("j", Index.of(m))
    flat = Index.of(i) * m + j
    assert (flat // m, flat % m) == (Index.of(i), Index.of(j))
    assert (flat - Index.of(n) * m).bounds[1] == -1
    assert (Index.of(n) - 1 - i).bounds[0] == 0
    long = Var("k", Index.of(n) * m)
    assert str((Index.of(long) // m) * m * 4 + (Index.of(long) % m) * 4) == "4*k"
    assert least(Index.of(i), Index.of(n)) == Index.of(i)


@pytest.mark.parametrize(("size", "outputs"), [(15, 9), (7, 7), (9, 4), (4, 9), (224, 7), (100, 3)])
def test_bounds_of_windows_that_share_a_size(size: int, outputs: int) -> None:
    """Those of adaptive pooling differ by one element at most, which the difference of two quotients tells."""
    i = Index.of(Var("i", outputs))
    begin, end = i * size // outputs, ((i + 1) * size + outputs - 1) // outputs
    lengths = [-(-(k + 1) * size // outputs) - k * size // outputs for k in range(outputs)]
    low, high = (end - begin).bounds
    assert low <= min(lengths) and max(lengths) <= high <= low + 1
    assert tuple((begin - end).bounds) == (-high, -low)
    assert ((end - begin) * 2 + i).bounds == (2 * low, 2 * high + outputs - 1)


def test_hints_are_for_estimates_alone() -> None:
    n = Sym("n", hint=40)
    assert Sym("n", hint=7) == n
    assert (Index.of(n) * 2 + 1).typical == 81
    assert Index.of(Var("i", Index.of(n))).typical == UNKNOWN


def test_a_quotient_within_a_quotient_is_one() -> None:
    """Also where something is added to it, with all signs."""
    i, j = Var("i", 40), Var("j", 50)
    for k, d, m in ((4, 3, 5), (128, 14, 578), (-7, 14, 9), (2, 6, 4)):
        index = (Index.of(i) * k + Index.of(j) // d - 3) // m
        for a in range(40):
            for b in range(50):
                assert index.substitute({i: Index.of(a), j: Index.of(b)}) == (k * a + b // d - 3) // m
    p, q = Index.of(Var("p", 289)), Index.of(Var("q", 1792))
    whole = p * 1792 + q
    assert whole // 8092 * 8092 + whole // 14 % 578 * 14 + whole % 14 == whole
