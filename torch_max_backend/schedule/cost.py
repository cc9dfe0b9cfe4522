"""What expressions and loops cost, in units of a simple operation on one element."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch_max_backend.loops.expr import Const, FromIndex, Load, Op, Scalar, loads, variables, walk
from torch_max_backend.loops.index import Div, Index, Mod, Var, product
from torch_max_backend.loops.program import Definition, Scatter

_DEAR = {
    **dict.fromkeys(["exp", "exp2", "log", "log2", "sigmoid", "sqrt", "rsqrt", "div", "reciprocal"], 6),
    **dict.fromkeys(["expm1", "log1p", "log10", "tanh", "sin", "cos", "erf", "one_plus_erf", "atan"], 12),
    **dict.fromkeys(["tan", "asin", "acos", "sinh", "cosh", "asinh", "acosh", "atanh"], 25),
    **dict.fromkeys(["erfc", "erfinv", "atan2", "pow", "hypot"], 25),
    **dict.fromkeys(["lgamma", "digamma"], 100),
    **dict.fromkeys(["floor_div", "trunc_div", "remainder", "fmod"], 8),
}

SLOW_ON_A_GPU = dict.fromkeys(["sin", "cos", "tan"], 100)
"""What is not repeated there where it can be read: 33 million elements that computed sines and cosines of a table of
8,192 themselves took 400 microseconds on an H200, and 72 where they read them. A kernel of sines alone has the time of
reading and writing, so that is more than they cost by themselves; why is not known."""

OFTEN = 4
"""How often each element is read, at least, of what is read again and again."""


def of_expression(*roots: Scalar) -> int:
    """The cost of computing expressions once, what they share counted once."""
    total = 0
    for x in walk(*roots):
        if isinstance(x, Op):
            total += _DEAR.get(x.name, 1)
        elif isinstance(x, Load):
            total += 1
        if isinstance(x, Load | FromIndex):
            indices = x.index if isinstance(x, Load) else (x.index,)
            total += sum(4 for i in indices for a in i.atoms if isinstance(a, Div | Mod))
        elif not isinstance(x, Const | Op):
            total += 1
    return total


def of_repeated_on_a_gpu(*roots: Scalar) -> int:
    """The cost of computing expressions again for each of their readers, on a GPU."""
    slow = (x.name for x in walk(*roots) if isinstance(x, Op) and x.name in SLOW_ON_A_GPU)
    return of_expression(*roots) + sum(SLOW_ON_A_GPU[name] - _DEAR[name] for name in slow)


def count(variables: Iterable[Var]) -> int:
    """How many values variables have together; symbolic sizes count as their hints say."""
    return math.prod(v.size if isinstance(v.size, int) else max(0, v.size.typical) for v in variables)


def exact_count(variables: Iterable[Var]) -> Index:
    """The same as an index of symbolic sizes. A loop whose length depends on another one counts with its greatest."""
    sizes = (Index.of(v.size) for v in variables)
    return product(size if size.is_fixed else size.typical for size in sizes)


def most(variables: Iterable[Var]) -> float:
    """How many values variables may have together; infinitely many where a symbolic size has no bound."""
    return math.prod(max(0.0, Index.of(v.size).bounds[1]) for v in variables)


def iterations(d: Definition) -> int:
    """How often the body of a definition is computed."""
    updates = count(d.how.variables) if isinstance(d.how, Scatter) else 0
    return count((*d.variables, *d.reduced)) + updates


def reads_again(loops: Iterable[Var], *roots: Scalar) -> bool:
    """Whether all that expressions read in loops is read several times, as by a product of matrices."""
    every = {v for v in loops if v.size != 1}
    return all(count(every - variables(x)) >= OFTEN for x in loads(*roots) if x.index)
