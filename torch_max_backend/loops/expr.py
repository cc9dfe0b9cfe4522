"""Scalar expressions: what is computed at one index.

Every expression has a torch dtype. The names of operations are those of the kernel interface (``codegen``), which says
what each means; the table :data:`OPERATIONS` says how many operands it takes and of what dtype its result is.
Expressions are compared by value, and are small graphs rather than trees: what is used twice is one object.

>>> x = Load("x", (Index.of(Var("i", 4)),), torch.float32)
>>> print(op("mul", x, constant(2.0, torch.float32)))
mul(x[i], 2.0)
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from torch_max_backend.base.dtypes import FLOAT8
from torch_max_backend.loops.index import Computed, Index, Replaced, Var

SHORT = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.bool: "boolean",
    torch.float8_e4m3fn: "f8_e4m3fn",
    torch.float8_e4m3fnuz: "f8_e4m3fnuz",
    torch.float8_e5m2: "f8_e5m2",
    torch.float8_e5m2fnuz: "f8_e5m2fnuz",
    torch.float8_e8m0fnu: "f8_e8m0fnu",
}
"""The dtypes of scalar expressions, by their short names. In floats of 8 bits nothing but choices is computed."""

_SAME, _BOOL = "the dtype of the first operand", "bool"
_UNARY = """neg absolute sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh
    tanh asinh acosh atanh erf one_plus_erf erfc erfinv lgamma digamma floor ceil trunc round_even sign sigmoid
    bit_not"""
_BINARY = """add sub mul div floor_div trunc_div remainder fmod minimum maximum minimum_so_far maximum_so_far fmin fmax
    pow atan2 hypot copysign bit_and bit_or bit_xor shift_left shift_right"""
OPERATIONS: dict[str, tuple[int, str]] = {
    **dict.fromkeys(_UNARY.split(), (1, _SAME)),
    **dict.fromkeys(_BINARY.split(), (2, _SAME)),
    **dict.fromkeys(["eq", "ne", "lt", "le", "gt", "ge"], (2, _BOOL)),
    **dict.fromkeys(["is_nan", "is_inf", "is_finite"], (1, _BOOL)),
    "fma": (3, _SAME),
}
"""Operations on operands of one dtype: how many, and what the result is. Besides: ``CASTS`` and ``select``."""
CASTS = ("cast", "round", "widen")
"""Conversions to another dtype: by torch's ``.to``, between ops, and of what has been rounded between ops."""


class Expr:
    """A scalar expression of one dtype."""

    dtype: torch.dtype

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return (type(self).__name__, *self._fields())

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def _fields(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Expr) and self._hash == other._hash and self._key == other._key

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The expressions that it is computed from, those inside indices not among them."""
        return ()

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """The loads in it, those inside indices included, each once, and before what is computed from them."""
        return tuple(x for x in walk(self) if isinstance(x, Load))

    @cached_property
    def _variables(self) -> frozenset[Var]:
        known: frozenset[Var] = frozenset()
        for x in _walk((self,)):  # each after what it is made of, and kept with it
            if "_variables" not in vars(x):
                indices = x.index if isinstance(x, Load) else (x.index,) if isinstance(x, FromIndex) else ()
                own = (i.variables for i in indices)
                vars(x)["_variables"] = frozenset().union(*own, *(y._variables for y in inside(x)))
            known = x._variables
        return known

    @cached_property
    def _walked(self) -> tuple[Scalar, ...]:
        return tuple(_walk((self,)))

    # -- text ---------------------------------------------------------------------------------------------------
    def _text(self) -> str:
        """Itself, with the text of what it is made of."""
        raise NotImplementedError

    def __str__(self) -> str:
        names = _NAMES.get()
        return _text_of(self) if names is None else names.get(self) or self._text()

    __repr__ = __str__  # errors and tests show it: what is shared must not be written out again and again

    # -- formulas: numbers take the dtype of the other operand -------------------------------------------------
    def _binary(self, name: str, other: Any, turned: bool = False) -> Scalar:
        other = other if isinstance(other, Expr) else constant(other, self.dtype)
        return op(name, other, self) if turned else op(name, self, other)

    def __add__(self, other: Any) -> Scalar:
        return self._binary("add", other)

    def __radd__(self, other: Any) -> Scalar:
        return self._binary("add", other, turned=True)

    def __sub__(self, other: Any) -> Scalar:
        return self._binary("sub", other)

    def __rsub__(self, other: Any) -> Scalar:
        return self._binary("sub", other, turned=True)

    def __mul__(self, other: Any) -> Scalar:
        return self._binary("mul", other)

    def __rmul__(self, other: Any) -> Scalar:
        return self._binary("mul", other, turned=True)

    def __truediv__(self, other: Any) -> Scalar:
        return self._binary("div", other)

    def __rtruediv__(self, other: Any) -> Scalar:
        return self._binary("div", other, turned=True)

    def __and__(self, other: Any) -> Scalar:
        return self._binary("bit_and", other)

    def __or__(self, other: Any) -> Scalar:
        return self._binary("bit_or", other)

    def __xor__(self, other: Any) -> Scalar:
        return self._binary("bit_xor", other)

    def __neg__(self) -> Scalar:
        return op("neg", self)

    def __invert__(self) -> Scalar:
        return op("bit_not", self)

    def __lt__(self, other: Any) -> Scalar:
        return self._binary("lt", other)

    def __le__(self, other: Any) -> Scalar:
        return self._binary("le", other)

    def __gt__(self, other: Any) -> Scalar:
        return self._binary("gt", other)

    def __ge__(self, other: Any) -> Scalar:
        return self._binary("ge", other)

    def equals(self, other: Any) -> Scalar:
        """Whether the numbers are equal (``==`` says whether the expressions are)."""
        return self._binary("eq", other)


@dataclass(frozen=True, eq=False, repr=False)
class Const(Expr):
    """A number."""

    value: bool | int | float
    dtype: torch.dtype

    def _fields(self) -> tuple[Any, ...]:
        exact = self.value.hex() if isinstance(self.value, float) else self.value
        return (exact, self.dtype)

    def _text(self) -> str:
        return str(self.value)


@dataclass(frozen=True, eq=False, repr=False)
class Load(Expr):
    """An element of an input or of a definition."""

    source: str
    index: tuple[Index, ...]
    dtype: torch.dtype

    def _fields(self) -> tuple[Any, ...]:
        return (self.source, self.index)

    def _text(self) -> str:
        return f"{self.source}[{', '.join(map(str, self.index))}]"


@dataclass(frozen=True, eq=False, repr=False)
class Op(Expr):
    """An operation; ``cast`` is torch's ``.to``, ``round`` a cast that torch does between ops and may be left out, and
    ``widen`` one of what must be rounded."""

    name: str
    args: tuple[Expr, ...]
    dtype: torch.dtype

    def _fields(self) -> tuple[Any, ...]:
        return (self.name, self.dtype, self.args)

    def _text(self) -> str:
        name = f"{self.name}<{SHORT[self.dtype]}>" if self.name in (*CASTS, "bitcast") else self.name
        return f"{name}({', '.join(map(str, self.args))})"

    @property
    def operands(self) -> tuple[Expr, ...]:
        return self.args


@dataclass(frozen=True, eq=False, repr=False)
class FromIndex(Expr):
    """An index as a number of dtype int64."""

    index: Index
    dtype: torch.dtype = torch.int64

    def _fields(self) -> tuple[Any, ...]:
        return (self.index,)

    def _text(self) -> str:
        return f"index({self.index})"


@dataclass(frozen=True, eq=False, repr=False)
class Guarded(Expr):
    """``value`` where ``condition`` holds, else ``other``; each loads and checks only where it is the one taken."""

    condition: Expr
    value: Expr
    other: Expr
    dtype: torch.dtype

    def _fields(self) -> tuple[Any, ...]:
        return (self.condition, self.value, self.other)

    def _text(self) -> str:
        return f"({self.value} if {self.condition} else {self.other})"

    @property
    def operands(self) -> tuple[Expr, ...]:
        return (self.condition, self.value, self.other)


@dataclass(frozen=True, eq=False, repr=False)
class Checked(Expr):
    """An int64 as an index of one of ``size`` elements; with ``wraps`` a negative one counts from the end.

    One that is out of range is noted under the number ``site``, of the program's, and moved into the range. No loop
    variable is in the size.
    """

    value: Expr
    size: int | Index
    site: int
    wraps: bool
    dtype: torch.dtype = torch.int64

    def _fields(self) -> tuple[Any, ...]:
        return (self.value, self.size, self.site, self.wraps)

    def _text(self) -> str:
        return f"{'wrapped' if self.wraps else 'checked'}({self.value}, {self.size})"

    @property
    def operands(self) -> tuple[Expr, ...]:
        return (self.value,)


Scalar = Expr
"""What there is of it: :class:`Const`, :class:`Load`, :class:`Op`, :class:`FromIndex`, :class:`Guarded`
and :class:`Checked`."""


LONG, DEEP = 100, 32
"""Parts of a text, from which on it has names for what occurs several times, and for what is so many parts deep."""
_NAMES: ContextVar[dict[Scalar, str] | None] = ContextVar("_NAMES", default=None)
"""The names that the text which is being written has for some of its parts, those inside indices too."""


def _text_of(x: Scalar) -> str:
    """``mul(x[i], 2.0)``, or where that is long, ``mul(#1, #1) where #0 = add(x[i], 1.0), #1 = mul(#0, #0)``."""
    parts = list(walk(x)) if text_size(x) > LONG else []
    uses = Counter(y for part in parts for y in inside(part))
    depths: dict[Scalar, int] = {}
    names: dict[Scalar, str] = {}
    named: list[str] = []
    token = _NAMES.set(names)
    try:
        for part in parts[:-1]:
            depths[part] = max((1 + depths[y] for y in inside(part)), default=0)
            if depths[part] and (uses[part] > 1 or depths[part] == DEEP):
                name = f"#{len(names)}"
                named.append(f"{name} = {part._text()}")
                names[part], depths[part] = name, 0
        return f"{x._text()} where {', '.join(named)}" if named else x._text()
    finally:
        _NAMES.reset(token)


# -- making ------------------------------------------------------------------------------------------------------------
def constant(value: bool | int | float | Index, dtype: torch.dtype) -> Scalar:
    """A number as an element of ``dtype`` holds it: rounded, wrapped, or as a truth value."""
    if isinstance(value, Index):
        return cast(from_index(value), dtype)
    if dtype is torch.bool:
        return Const(bool(value), dtype)
    if dtype in FLOAT8:
        bits = torch.tensor(float(value), dtype=torch.float32).to(dtype).view(torch.uint8).item()
        return bitcast(Const(int(bits), torch.uint8), dtype)
    if dtype.is_floating_point:
        if dtype is torch.float64:
            return Const(float(value), dtype)
        return Const(_held(float(value).hex(), dtype), dtype)
    if isinstance(value, float) and not math.isfinite(value):
        value = 0
    info = torch.iinfo(dtype)
    return Const((int(value) - info.min) % (info.max - info.min + 1) + info.min, dtype)


@functools.lru_cache(maxsize=4096)
def _held(value: str, dtype: torch.dtype) -> float:
    """A number, as ``float.hex`` spells it with its sign, as ``dtype`` holds it."""
    return torch.tensor(float.fromhex(value), dtype=torch.float64).to(dtype).item()


def op(name: str, *args: Scalar) -> Scalar:
    """An operation on operands of one dtype."""
    count, result = OPERATIONS[name]
    if len(args) != count or len({a.dtype for a in args}) != 1:
        raise TypeError(f"{name} of {[SHORT[a.dtype] for a in args]}: it takes {count} of one dtype")
    if name in ("mul", "div") and args[0].dtype.is_floating_point and isinstance(args[1], Const) and args[1].value == 1:
        return args[0]
    return Op(name, args, torch.bool if result is _BOOL else args[0].dtype)


def cast(x: Scalar, dtype: torch.dtype, name: str = "cast") -> Scalar:
    """The expression in another dtype, as torch's ``.to`` gives it."""
    if x.dtype is dtype:
        return x
    if dtype in FLOAT8 or x.dtype in FLOAT8:
        from torch_max_backend.loops.float8 import decoded, encoded, is_held

        if dtype in FLOAT8:
            return encoded(cast(x, torch.float32), dtype)
        return cast(decoded(x), dtype, "round" if is_held(x.dtype, dtype) else name)
    if isinstance(x, Const) and (dtype.is_floating_point or isinstance(x.value, int) or math.isfinite(x.value)):
        return constant(x.value, dtype)
    if isinstance(x, Op) and x.name == "round" and dtype is x.args[0].dtype:
        if name == "widen":
            return Op("cast", (Op("cast", x.args, x.dtype),), dtype)
        return x.args[0]  # the rounding between two ops is left out
    if isinstance(x, Op) and x.name == "cast" and x.args[0].dtype is dtype is torch.bool:
        return x.args[0]  # zero and one have come through
    if dtype.is_floating_point and _is_held(x):
        return cast(x.operands[0], dtype, name)
    return Op(name, (x,), dtype)


def _is_held(x: Scalar) -> bool:
    """Whether ``x`` is an integer as a float that holds it without rounding."""
    return isinstance(x, Op) and x.name in CASTS and x.args[0].dtype in _HELD.get(x.dtype, ())


_HELD = {
    torch.bfloat16: frozenset((torch.int8, torch.uint8)),
    torch.float16: frozenset((torch.int8, torch.uint8)),
    torch.float32: frozenset((torch.int8, torch.uint8, torch.int16, torch.uint16)),
    torch.float64: frozenset((torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32)),
}
"""The integers that floats hold without rounding."""


def bitcast(x: Scalar, dtype: torch.dtype) -> Scalar:
    """The bits of ``x`` as an element of a dtype of the same width."""
    if isinstance(x, Op) and x.name == "bitcast":
        x = x.args[0]
    return x if x.dtype is dtype else Op("bitcast", (x,), dtype)


def rounded(x: Scalar, dtype: torch.dtype) -> Scalar:
    """The result of an op that torch computes in a wider dtype, rounded to ``dtype``; left out before another op."""
    return cast(x, dtype, "round")


def widened(x: Scalar, dtype: torch.dtype) -> Scalar:
    """An operand in the wider dtype that torch computes in, rounded as the op that computed it has rounded it: for what
    the smallest difference turns, such as comparisons."""
    return cast(x, dtype, "widen" if x.dtype in (torch.float16, torch.bfloat16) else "cast")


def select(condition: Scalar, yes: Scalar, no: Scalar) -> Scalar:
    """``yes`` where ``condition`` holds, else ``no``; both are computed."""
    if isinstance(condition, Const):
        return yes if condition.value else no
    if yes.dtype is not no.dtype or condition.dtype is not torch.bool:
        raise TypeError(f"select of {condition.dtype}, {yes.dtype}, {no.dtype}")
    return yes if yes == no else Op("select", (condition, yes, no), yes.dtype)


def guarded(condition: Scalar, value: Scalar, other: Scalar) -> Scalar:
    """``value`` where ``condition`` holds, else ``other``."""
    if isinstance(condition, Const):
        return value if condition.value else other
    return Guarded(condition, value, other, value.dtype)


def checked(x: Scalar, size: int | Index, site: int, wraps: bool) -> Scalar:
    """``x`` as an index of one of ``size`` elements; itself if it is in range for certain."""
    if isinstance(x, Const | FromIndex):
        index = as_index(x)
        if index.bounds[0] >= 0 and (index - size).bounds[1] < 0:
            return x
    return Checked(x, size, site, wraps)


def from_index(index: Index) -> Scalar:
    """An index as an int64 number."""
    if index.is_constant:
        return Const(index.constant, torch.int64)
    if len(index.terms) == 1 and not index.constant and index.terms[0][1] == 1:
        atom = index.terms[0][0]
        if isinstance(atom, Computed):
            return atom.value
    return FromIndex(index)


def compare_index(name: str, left: Index, right: Index) -> Scalar:
    """A comparison (``lt``, ``le``, ``gt``, ``ge``, ``eq``, ``ne``) of indices; a constant where ranges decide it."""
    low, high = (left - right).bounds
    decided = {
        "lt": (high < 0, low >= 0),
        "le": (high <= 0, low > 0),
        "gt": (low > 0, high <= 0),
        "ge": (low >= 0, high < 0),
        "eq": (low == high == 0, low > 0 or high < 0),
        "ne": (low > 0 or high < 0, low == high == 0),
    }[name]
    if any(decided):
        return Const(decided[0], torch.bool)
    return op(name, from_index(left), from_index(right))


def as_index(x: Scalar, low: int | None = None, high: int | None = None) -> Index:
    """An integer expression as an index, with what is known of its range."""
    if isinstance(x, Const):
        return Index.of(int(x.value))
    if isinstance(x, FromIndex):
        return x.index
    if x.dtype is not torch.int64:
        x = cast(x, torch.int64)
    return Index.of(Computed(x, low, high))


# -- reading and rewriting ---------------------------------------------------------------------------------------------
def nested(index: Index) -> Iterator[Scalar]:
    """The expressions inside the computed integers of an index."""
    for atom in index.atoms:
        if isinstance(atom, Computed):
            yield atom.value


def inside(x: Scalar) -> tuple[Scalar, ...]:
    """What an expression is made of directly, expressions inside its indices included."""
    indices = x.index if isinstance(x, Load) else (x.index,) if isinstance(x, FromIndex) else ()
    found = x.operands
    for index in indices:
        if index.terms:
            found += tuple(nested(index))
    return found


def depth(x: Scalar) -> int:
    """How many expressions stand inside each other in ``x``."""
    depths: dict[Scalar, int] = {}
    for y in walk(x):
        depths[y] = 1 + max((depths[z] for z in inside(y)), default=0)
    return depths[x]


def text_size(*roots: Scalar) -> int:
    """How many expressions the text of ``roots`` has, which repeats what they share."""
    sizes: dict[Scalar, int] = {}
    for x in walk(*roots):
        sizes[x] = 1 + sum(sizes[y] for y in inside(x))
    return sum(sizes[x] for x in roots)


def walk(*roots: Scalar) -> Iterator[Scalar]:
    """Every expression in ``roots`` once, operands before what uses them."""
    return iter(roots[0]._walked) if len(roots) == 1 else _walk(roots)


def _walk(roots: tuple[Scalar, ...]) -> Iterator[Scalar]:
    seen: set[Scalar] = set()
    stack: list[tuple[Scalar, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        x, ready = stack.pop()
        if ready:
            yield x
            continue
        if x in seen:
            continue
        seen.add(x)
        stack.append((x, True))
        stack.extend((y, False) for y in inside(x))


def loads(*roots: Scalar) -> list[Load]:
    """The loads in ``roots``, each once."""
    return list(roots[0].loads) if len(roots) == 1 else list(dict.fromkeys(x for r in roots for x in r.loads))


def variables(x: Scalar) -> frozenset[Var]:
    """The loop variables that an expression depends on."""
    return x._variables


def rewrite(
    x: Scalar,
    values: Replaced,
    load: Callable[[Load], Scalar] = lambda x: x,
    done: dict[Scalar, Scalar] | None = None,
) -> Scalar:
    """The expression with atoms of its indices replaced, and then each load by what ``load`` gives for it."""
    done = {} if done is None else done

    def again(y: Scalar) -> Scalar:
        if y not in done:
            done[y] = one(y)
        return done[y]

    def one(y: Scalar) -> Scalar:
        if isinstance(y, Const):
            return y
        if isinstance(y, Load):
            index = tuple(i.substitute(values, again) for i in y.index)
            same = all(a is b for a, b in zip(index, y.index, strict=True))
            return load(y if same else Load(y.source, index, y.dtype))
        if isinstance(y, FromIndex):
            index_ = y.index.substitute(values, again)
            return y if index_ is y.index else from_index(index_)
        parts = tuple(again(a) for a in y.operands)
        if all(a is b for a, b in zip(parts, y.operands, strict=True)):
            return y
        return remade(y, parts)

    return again(x)


def remade(x: Scalar, parts: tuple[Scalar, ...]) -> Scalar:
    """The operation or guard ``x`` with other operands, simplified as it is when it is made."""
    if isinstance(x, Guarded):
        return guarded(*parts)
    if isinstance(x, Checked):
        return checked(parts[0], x.size, x.site, x.wraps)
    assert isinstance(x, Op)
    if x.name in CASTS:
        return cast(parts[0], x.dtype, x.name)
    if x.name == "select":
        return select(*parts)
    if x.name in COMPARISONS and all(isinstance(p, Const | FromIndex) for p in parts):
        left, right = (as_index(p) for p in parts)
        if all(p.dtype is torch.int64 for p in parts):
            return compare_index(x.name, left, right)
    return Op(x.name, parts, x.dtype)


COMPARISONS = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])
