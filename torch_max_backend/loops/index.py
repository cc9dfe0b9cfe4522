"""Integer expressions over loop variables and symbolic sizes: what a tensor is indexed with.

An :class:`Index` is a sum of atoms with integer coefficients and a constant. Atoms are loop variables, symbolic sizes,
products of atoms, floor divisions, remainders, and integers that are read from a tensor. Sums are kept in a normal
form, so that equal sums are equal objects; divisions and remainders are simplified by what is known of the ranges of
their operands. Loop variables run from 0 to their size, symbolic sizes are at least 0 or what is known of them.

>>> i, j = Var("i", 8), Var("j", 4)
>>> flat = Index.of(i) * 4 + Index.of(j)
>>> print(flat, "|", flat // 4, "|", flat % 4, "|", flat % 2)
4*i + j | i | j | j % 2
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch_max_backend.base.errors import Unsupported


@dataclass(frozen=True)
class Var:
    """A loop variable, from 0 to ``size``, which is an integer or depends on symbolic sizes and outer variables."""

    name: str
    size: int | Index

    def __str__(self) -> str:
        return self.name

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.size))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Sym:
    """An integer that is known when the program is called, mostly a size.

    Two of one name are one. ``low`` is the least that it may be, if there is such a bound; ``hint`` is a value that it
    may well have, for estimates of cost alone.
    """

    name: str
    low: int | None = field(default=0, compare=False)
    hint: int = field(default=256, compare=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Div:
    """``dividend // divisor``, rounded down; the divisor is positive."""

    dividend: Index
    divisor: Index

    def __str__(self) -> str:
        return f"{_grouped(self.dividend)} // {_grouped(self.divisor)}"


@dataclass(frozen=True)
class Mod:
    """``dividend % divisor`` with the sign of the divisor, which is positive."""

    dividend: Index
    divisor: Index

    def __str__(self) -> str:
        return f"{_grouped(self.dividend)} % {_grouped(self.divisor)}"


@dataclass(frozen=True)
class Product:
    """A product of two or more atoms, in a fixed order."""

    factors: tuple[Any, ...]

    def __str__(self) -> str:
        return "*".join(f"({f})" if isinstance(f, Div | Mod) else str(f) for f in self.factors)


@dataclass(frozen=True)
class Least:
    """The smaller of two integers."""

    left: Index
    right: Index

    def __str__(self) -> str:
        return f"min({self.left}, {self.right})"


@dataclass(frozen=True)
class Computed:
    """An integer that a scalar expression computes, mostly read from a tensor; ``low`` and ``high`` are included."""

    value: Any  # an Expr of dtype int64
    low: int | None = None
    high: int | None = None

    def __str__(self) -> str:
        return f"[{self.value}]"


Atom = Var | Sym | Div | Mod | Product | Least | Computed


@dataclass(frozen=True, eq=False)
class Index:
    """A sum: ``constant`` and, for each atom, an integer coefficient other than 0. Atoms are in a fixed order."""

    constant: int
    terms: tuple[tuple[Atom, int], ...] = ()

    # -- making ------------------------------------------------------------------------------------------------
    @staticmethod
    def of(value: int | Atom | Index) -> Index:
        """An index from what may stand for one."""
        if isinstance(value, Index):
            return value
        if isinstance(value, int):
            return _constant(value)
        if isinstance(value, Var) and value.size == 1:
            return _constant(0)
        return Index(0, ((value, 1),))

    @staticmethod
    def _sum(constant: int, terms: dict[Atom, int]) -> Index:
        kept = [(atom, k) for atom, k in terms.items() if k]
        if len(kept) > 1:
            kept.sort(key=lambda term: _order(term[0]))
        return Index(constant, tuple(kept))

    # -- identity ----------------------------------------------------------------------------------------------
    @cached_property
    def _hash(self) -> int:
        return hash((self.constant, self.terms))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, int):
            return not self.terms and self.constant == other
        return isinstance(other, Index) and self.constant == other.constant and self.terms == other.terms

    def __str__(self) -> str:
        parts = []
        for atom, k in self.terms:
            text = f"({atom})" if isinstance(atom, Div | Mod) and k != 1 else str(atom)
            parts.append(text if k == 1 else f"{k}*{text}")
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts)

    __repr__ = __str__

    # -- as a number: for rules that decide something in Python ------------------------------------------------
    def __int__(self) -> int:
        if self.terms:
            raise Unsupported(f"a number that is known, not {self}")
        return self.constant

    __index__ = __int__

    def __float__(self) -> float:
        return float(int(self))

    def __bool__(self) -> bool:
        low, high = self.bounds
        return True if low > 0 or high < 0 else bool(int(self))

    def __lt__(self, other: int | Index) -> bool:
        low, high = (self - other).bounds
        if low < 0 <= high:
            raise Unsupported(f"two numbers of which one is certainly the smaller, not {self} and {other}")
        return high < 0

    def __ge__(self, other: int | Index) -> bool:
        return not self < other

    def __gt__(self, other: int | Index) -> bool:
        return Index.of(other) < self

    def __le__(self, other: int | Index) -> bool:
        return not self > other

    # -- facts -------------------------------------------------------------------------------------------------
    @property
    def is_constant(self) -> bool:
        """Whether it is an integer."""
        return not self.terms

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest value that it may have; infinite where nothing is known."""
        low = high = float(self.constant)
        for k, (a, b) in _parts_of_sum(self.terms):
            low += k * (a if k > 0 else b)
            high += k * (b if k > 0 else a)
        if low == -math.inf:
            low = _extreme(self, 0)
        return low, _extreme(self, 1) if high == math.inf else high

    def coefficient(self, atom: Atom) -> int:
        """The coefficient of an atom at the top of the sum."""
        return next((k for a, k in self.terms if a == atom), 0)

    def stride(self, atom: Atom) -> Index | None:
        """By how much it grows with an atom; ``None`` where that depends on the atom itself."""
        total = Index(self.coefficient(atom))
        for other, k in self.terms:
            if other == atom or not _mentions(other, atom):
                continue
            if not isinstance(other, Product) or atom not in other.factors:
                return None
            rest = list(other.factors)
            rest.remove(atom)
            if any(_mentions(f, atom) for f in rest):
                return None
            total = total + product(map(Index.of, rest)) * k
        return total

    @cached_property
    def is_fixed(self) -> bool:
        """Whether it is made of numbers and symbolic sizes alone, so that it is known before any loop runs."""
        return not any(isinstance(a, Var | Computed) for a in self.atoms)

    @cached_property
    def typical(self) -> int:
        """What it is, or is at most, where symbolic sizes are as their hints say: for estimates of cost alone."""
        hints = {a: _constant(a.hint) for a in self.atoms if isinstance(a, Sym)}
        known = self.substitute(hints) if hints else self
        top = known.bounds[1]
        return int(top) if math.isfinite(top) else UNKNOWN

    @cached_property
    def atoms(self) -> frozenset[Atom]:
        """Every atom in it, at any depth."""
        return frozenset().union(*(_inside(a) for a, _ in self.terms))

    @property
    def variables(self) -> frozenset[Var]:
        """The loop variables in it, not those inside computed integers."""
        return frozenset(a for a in self.atoms if isinstance(a, Var))

    # -- arithmetic --------------------------------------------------------------------------------------------
    def __add__(self, other: int | Atom | Index) -> Index:
        other = Index.of(other)
        if not other.terms:
            return Index(self.constant + other.constant, self.terms) if other.constant else self
        if not self.terms:
            return Index(self.constant + other.constant, other.terms) if self.constant else other
        terms = dict(self.terms)
        for atom, k in other.terms:
            terms[atom] = terms.get(atom, 0) + k
        return _recombined(Index._sum(self.constant + other.constant, terms))

    __radd__ = __add__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: int | Atom | Index) -> Index:
        return self + Index.of(other) * -1

    def __rsub__(self, other: int | Atom | Index) -> Index:
        return Index.of(other) + self * -1

    def __mul__(self, other: int | Atom | Index) -> Index:
        other = Index.of(other)
        if not other.terms:
            k = other.constant
            return Index(self.constant * k, tuple((a, c * k) for a, c in self.terms) if k else ())
        if not self.terms:
            return other * self.constant
        result = Index(self.constant * other.constant)
        result = result + Index(0, other.terms) * self.constant + Index(0, self.terms) * other.constant
        for a, m in self.terms:
            for b, n in other.terms:
                result = result + Index(0, ((_product(a, b), m * n),))
        return result

    __rmul__ = __mul__

    def __floordiv__(self, other: int | Atom | Index) -> Index:
        return floor_div(self, Index.of(other))

    def __mod__(self, other: int | Atom | Index) -> Index:
        return remainder(self, Index.of(other))

    # -- substitution ------------------------------------------------------------------------------------------
    def substitute(self, values: Replaced, inside: Callable[[Any], Any] | None = None) -> Index:
        """The index with atoms replaced; ``inside`` rewrites the expressions of computed integers."""
        if not self.terms:
            return self
        terms: dict[Atom, int] = {}
        others: list[Index] = []
        for atom, k in self.terms:
            new = _substituted(atom, values, inside)
            if new is atom:
                terms[atom] = terms.get(atom, 0) + k
            else:
                others.append(Index.of(new) * k)
        if not others and len(terms) == len(self.terms):
            return self
        result = _recombined(Index._sum(self.constant, terms))
        for other in others:
            result = result + other
        return result


UNKNOWN = 1 << 20
"""What a size counts as for which there is neither a bound nor a hint."""
Replaced = Mapping[Any, Index]
"""What atoms are replaced by."""
_SMALL = [Index(k) for k in range(-8, 64)]


def _constant(value: int) -> Index:
    return _SMALL[value + 8] if -8 <= value < 64 else Index(int(value))


def _order(atom: Atom) -> tuple[int, str]:
    kinds = {Var: 1, Sym: 0, Product: 2, Div: 3, Mod: 4, Least: 5, Computed: 6}
    return kinds[type(atom)], str(atom)


def _grouped(index: Index) -> str:
    single = len(index.terms) + bool(index.constant) <= 1 and all(k == 1 for _, k in index.terms)
    simple = single and not any(isinstance(a, Div | Mod | Product) for a, _ in index.terms)
    return str(index) if simple else f"({index})"


def _inside(atom: Atom) -> frozenset[Atom]:
    found: frozenset[Atom] = frozenset({atom})
    if isinstance(atom, Div | Mod):
        return found | atom.dividend.atoms | atom.divisor.atoms
    if isinstance(atom, Least):
        return found | atom.left.atoms | atom.right.atoms
    if isinstance(atom, Product):
        return found.union(*(_inside(f) for f in atom.factors))
    if isinstance(atom, Var) and isinstance(atom.size, Index):
        return found | atom.size.atoms
    return found


def _mentions(atom: Atom, wanted: Atom) -> bool:
    """Whether an atom is computed from another one; a variable is not computed from its size."""
    if atom == wanted:
        return True
    if isinstance(atom, Div | Mod):
        return any(_mentions(a, wanted) for i in (atom.dividend, atom.divisor) for a, _ in i.terms)
    if isinstance(atom, Least):
        return any(_mentions(a, wanted) for i in (atom.left, atom.right) for a, _ in i.terms)
    return isinstance(atom, Product) and any(_mentions(f, wanted) for f in atom.factors)


def _extreme(x: Index, side: int) -> float:
    """The least (0) or greatest (1) value of a sum, by what variables are at the ends of their ranges.

    For ``i < n`` the greatest value of ``i - n`` is found as that of ``n - 1 - n``.
    """
    parts = {f: None for atom, _ in x.terms for f in (atom.factors if isinstance(atom, Product) else (atom,))}
    sizes = [f.size.atoms for f in parts if isinstance(f, Var) and isinstance(f.size, Index)]
    for atom in sorted(parts, key=lambda f: sum(f in size for size in sizes)):  # a size follows what it is the size of
        ends = _ends(atom)
        if ends == (None, None):
            continue
        stride = x.stride(atom)
        if stride is None:
            continue
        low, high = stride.bounds
        end = ends[side] if low >= 0 else ends[1 - side] if high <= 0 else None
        if end is not None:
            return x.substitute({atom: end}).bounds[side]
    return (-math.inf, math.inf)[side]


def _ends(atom: Atom) -> tuple[Index | None, Index | None]:
    """The least and the greatest value of an atom as an index, where that tells more than its bounds."""
    if isinstance(atom, Var) and isinstance(atom.size, Index):
        return _constant(0), atom.size - 1
    if isinstance(atom, Mod) and not atom.divisor.is_constant:
        return _constant(0), atom.divisor - 1
    if isinstance(atom, Div) and atom.divisor.is_constant and not atom.dividend.is_fixed:
        ends = [_end(atom.dividend, side) for side in (0, 1)]
        low, high = (None if end is None else floor_div(end, atom.divisor) for end in ends)
        return low, high
    if isinstance(atom, Sym) and atom.low is not None:
        return _constant(atom.low), None
    return None, None


def _end(x: Index, side: int) -> Index | None:
    """The least (0) or greatest (1) value of a sum over the ranges of its variables, if they are all at their ends."""
    for v in sorted(x.variables, key=str):
        stride = x.stride(v)
        if stride is None:
            return None
        low, high = stride.bounds
        if low < 0 < high:
            return None
        x = x.substitute({v: Index.of(v.size) - 1 if (low >= 0) == bool(side) else _constant(0)})
    return x if x.is_fixed else None


def _parts_of_sum(terms: Iterable[tuple[Atom, int]]) -> Iterator[tuple[int, tuple[float, float]]]:
    """The bounds of what is added up, with factors. ``(x + c) // n - x // n``, as of a window, is one number."""
    left = dict(terms)
    divisions = [a for a in left if isinstance(a, Div) and a.divisor.is_constant]
    for a, b in itertools.permutations(divisions, 2):
        if a.divisor != b.divisor or a not in left or b not in left or left[a] != -left[b] or left[a] < 0:
            continue
        apart = a.dividend - b.dividend
        if apart.is_constant:
            yield left.pop(a), (apart.constant // a.divisor.constant, -(-apart.constant // a.divisor.constant))
            del left[b]
    for atom, k in left.items():
        yield k, _bounds(atom)


def _bounds(atom: Atom) -> tuple[float, float]:
    if isinstance(atom, Var):
        top = float(atom.size) if isinstance(atom.size, int) else atom.size.bounds[1]
        return 0.0, max(0.0, top - 1)
    if isinstance(atom, Sym):
        return -math.inf if atom.low is None else float(atom.low), math.inf
    if isinstance(atom, Computed):
        return (-math.inf if atom.low is None else atom.low), (math.inf if atom.high is None else atom.high)
    if isinstance(atom, Least):
        (a, b), (c, d) = atom.left.bounds, atom.right.bounds
        return min(a, c), min(b, d)
    if isinstance(atom, Product):
        low = high = 1.0
        for factor in atom.factors:
            a, b = _bounds(factor)
            corners = [_times(x, y) for x in (low, high) for y in (a, b)]
            low, high = min(corners), max(corners)
        return low, high
    if isinstance(atom, Mod):
        top = atom.divisor.bounds[1] - 1
        return 0.0, min(top, atom.dividend.bounds[1]) if atom.dividend.bounds[0] >= 0 else top
    low, high = atom.dividend.bounds
    least, most = max(1.0, atom.divisor.bounds[0]), atom.divisor.bounds[1]
    return (
        _floor(low / (most if low >= 0 else least)) if low > -math.inf else low,
        _floor(high / (least if high >= 0 else most)) if high < math.inf else high,
    )


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _floor(x: float) -> float:
    return x if math.isinf(x) else float(math.floor(x))


def _product(a: Atom, b: Atom) -> Atom:
    factors = [f for atom in (a, b) for f in (atom.factors if isinstance(atom, Product) else (atom,))]
    return Product(tuple(sorted(factors, key=_order)))


def _quotient(atom: Atom, k: int, divisor: Index) -> Index | None:
    """``k * atom / divisor`` if that leaves no remainder whatever the atom is."""
    if divisor.is_constant:
        return None if k % divisor.constant else Index(0, ((atom, k // divisor.constant),))
    if len(divisor.terms) != 1 or divisor.constant:
        return None
    base, m = divisor.terms[0]
    wanted = list(base.factors) if isinstance(base, Product) else [base]
    factors = list(atom.factors) if isinstance(atom, Product) else [atom]
    if k % m:
        return None
    for factor in wanted:
        if factor not in factors:
            return None
        factors.remove(factor)
    result = _constant(k // m)
    for factor in factors:
        result = result * Index.of(factor)
    return result


def _parts(x: Index, divisor: Index) -> tuple[Index, Index]:
    """``x`` as ``quotient * divisor + rest``, with as much as possible in the quotient."""
    quotient, rest = _constant(0), Index(0)
    if len(divisor.terms) > 1 or (divisor.terms and divisor.constant):  # a sum: by the first of its terms
        lead, rest = Index(0, divisor.terms[:1]), x
        for atom, k in x.terms:
            whole = _quotient(atom, k, lead)
            if whole is not None and rest.coefficient(atom) == k:
                quotient, rest = quotient + whole, rest - whole * divisor
        return quotient, rest
    for atom, k in x.terms:
        whole = _quotient(atom, k, divisor)
        if whole is None:
            rest = rest + Index(0, ((atom, k),))
        else:
            quotient = quotient + whole
    if divisor.is_constant:
        return quotient + x.constant // divisor.constant, rest + x.constant % divisor.constant
    return quotient, rest + x.constant


def _is_below(x: Index, divisor: Index) -> bool:
    """Whether 0 <= x < divisor for certain."""
    low, high = x.bounds
    if low < 0:
        return False
    if divisor.is_constant:
        return high < divisor.constant
    if x.is_constant and x.constant == 0:
        return True
    return (x - divisor).bounds[1] < 0


def floor_div(x: Index, divisor: Index) -> Index:
    """``x // divisor``, rounded down; the divisor is positive, or 0 where nothing has an index, since a size is 0."""
    if divisor == 1 or divisor == 0:
        return x * divisor
    quotient, rest = _parts(x, divisor)
    if (rest.is_constant and divisor.is_constant) or _is_below(rest, divisor):
        return quotient  # the rest of a constant is below its divisor
    if divisor.is_constant and len(rest.terms) == 1 and not rest.constant and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, Div) and atom.divisor.is_constant:
            return quotient + floor_div(atom.dividend, atom.divisor * divisor)
        if isinstance(atom, Mod) and atom.divisor.is_constant and atom.divisor.constant % divisor.constant == 0:
            return quotient + remainder(
                floor_div(atom.dividend, divisor), _constant(atom.divisor.constant // divisor.constant)
            )
    if divisor.is_constant:
        shared = math.gcd(divisor.constant, *(k for _, k in rest.terms))
        if shared > 1:  # (2i + 3) // 4 = (i + 1) // 2
            small = Index(rest.constant // shared, tuple((a, k // shared) for a, k in rest.terms))
            return quotient + floor_div(small, _constant(divisor.constant // shared))
        inner = next((a for a, k in rest.terms if k == 1 and isinstance(a, Div) and a.divisor.is_constant), None)
        if inner is not None:  # (4i + j // 3) // 5 = (12i + j) // 15
            assert isinstance(inner, Div)
            return quotient + floor_div((rest - inner) * inner.divisor + inner.dividend, divisor * inner.divisor)
        # what cannot change the quotient: (4i + j) // 8 = i // 2 for j < 4
        kept, dropped = _without_small_terms(rest, divisor.constant)
        if dropped:
            return quotient + floor_div(kept, divisor)
    return quotient + Index(0, ((Div(rest, divisor), 1),))


def _without_small_terms(rest: Index, divisor: int) -> tuple[Index, bool]:
    """Leave terms out whose sum stays below what all other terms and the divisor are multiples of."""
    for step in sorted({abs(k) for _, k in rest.terms if abs(k) > 1}, reverse=True):
        if divisor % step:
            continue
        large = Index(0, tuple((a, k) for a, k in rest.terms if k % step == 0))
        small = Index(rest.constant, tuple((a, k) for a, k in rest.terms if k % step))
        if (small.terms or small.constant) and small.bounds[0] >= 0 and small.bounds[1] < step:
            return large, True
    return rest, False


def remainder(x: Index, divisor: Index) -> Index:
    """``x % divisor``, at least 0; the divisor is positive, or 0 where nothing has an index, since a size is 0."""
    if divisor == 1 or divisor == 0:
        return _constant(0)
    _, rest = _parts(x, divisor)
    if (rest.is_constant and divisor.is_constant) or _is_below(rest, divisor):
        return rest
    if divisor.is_constant and len(rest.terms) == 1 and not rest.constant and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, Mod) and atom.divisor.is_constant and atom.divisor.constant % divisor.constant == 0:
            return remainder(atom.dividend, divisor)
    if divisor.is_constant:
        shared = math.gcd(divisor.constant, *(k for _, k in rest.terms))
        low = rest.constant % shared
        if shared > 1:  # (4i + j) % 8 = 4 * (i % 2) + j for j < 4
            small = Index((rest.constant - low) // shared, tuple((a, k // shared) for a, k in rest.terms))
            return remainder(small, _constant(divisor.constant // shared)) * shared + low
        for step in sorted({abs(k) for _, k in rest.terms if abs(k) > 1}, reverse=True):
            if divisor.constant % step:
                continue
            large = Index(0, tuple((a, k) for a, k in rest.terms if k % step == 0))
            part = Index(rest.constant, tuple((a, k) for a, k in rest.terms if k % step))
            if part.bounds[0] >= 0 and part.bounds[1] < step:
                return remainder(large, divisor) + part
    return Index(0, ((Mod(rest, divisor), 1),))


def _recombined(x: Index) -> Index:
    """``k*d*(y // d) + k*(y % d)`` as ``k*y``; ``k`` may have symbolic sizes in it."""
    for atom, k in x.terms:
        factors = atom.factors if isinstance(atom, Product) else (atom,)
        for mod in factors:
            if not isinstance(mod, Mod):
                continue
            others = list(factors)
            others.remove(mod)
            times = product(map(Index.of, others)) * k
            whole = floor_div(mod.dividend, mod.divisor) * mod.divisor * times
            if not whole.terms or whole.constant:
                continue
            terms = dict(x.terms)
            if all(terms.get(a) == c for a, c in whole.terms if a != atom) and atom not in dict(whole.terms):
                del terms[atom]
                for a, _ in whole.terms:
                    del terms[a]
                return Index._sum(x.constant, terms) + mod.dividend * times
    return x


def _substituted(atom: Atom, values: Replaced, inside: Callable[[Any], Any] | None) -> Atom | Index:
    new = values.get(atom)
    if new is not None:
        return new
    if isinstance(atom, Div | Mod):
        dividend, divisor = atom.dividend.substitute(values, inside), atom.divisor.substitute(values, inside)
        if dividend is atom.dividend and divisor is atom.divisor:
            return atom
        return floor_div(dividend, divisor) if isinstance(atom, Div) else remainder(dividend, divisor)
    if isinstance(atom, Least):
        left, right = atom.left.substitute(values, inside), atom.right.substitute(values, inside)
        return atom if left is atom.left and right is atom.right else least(left, right)
    if isinstance(atom, Product):
        factors = [_substituted(f, values, inside) for f in atom.factors]
        if all(a is b for a, b in zip(factors, atom.factors, strict=True)):
            return atom
        return product(map(Index.of, factors))
    if isinstance(atom, Computed) and inside is not None:
        from torch_max_backend.loops.expr import as_index  # which is built on this module

        value = inside(atom.value)
        return atom if value is atom.value else as_index(value, atom.low, atom.high)
    return atom


def least(a: Index, b: Index) -> Index:
    """The smaller of two."""
    difference = (a - b).bounds
    if difference[1] <= 0:
        return a
    return b if difference[0] >= 0 else Index.of(Least(a, b))


def greatest(a: Index, b: Index) -> Index:
    """The larger of two."""
    return -least(-a, -b)


def clamped(x: Index, low: Index, high: Index) -> Index:
    """The index between ``low`` and ``high``, both included, that is next to ``x``."""
    return greatest(least(x, high), low)


def product(sizes: Iterable[int | Index]) -> Index:
    """The product of sizes."""
    result = _constant(1)
    for size in sizes:
        result = result * Index.of(size)
    return result
