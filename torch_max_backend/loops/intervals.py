"""Between which numbers an expression lies, as far as indices, constants and simple arithmetic tell."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from torch_max_backend.loops.expr import Const, FromIndex, Guarded, Op, Scalar

Interval = tuple[float, float]
ANY = (-math.inf, math.inf)


def interval(x: Scalar) -> Interval:
    """The least and the greatest value of ``x``, but for what operations round; infinite where nothing is known.

    An expression with a finite interval is never not a number.
    """
    return _interval(x, {})


def _interval(x: Scalar, known: dict[Scalar, Interval]) -> Interval:
    if x not in known:
        known[x] = _computed(x, known)
    return known[x]


def _computed(x: Scalar, known: dict[Scalar, Interval]) -> Interval:
    if isinstance(x, Const):
        return (float(x.value), float(x.value)) if math.isfinite(x.value) else ANY
    if isinstance(x, FromIndex):
        low, high = x.index.bounds
        return float(low), float(high)
    if isinstance(x, Guarded):
        return _union(_interval(x.value, known), _interval(x.other, known))
    if not isinstance(x, Op) or x.name not in _RULES or x.dtype not in _WIDE:
        return ANY
    given = [_interval(y, known) for y in x.args]
    if not all(math.isfinite(end) for ends in given for end in ends):
        return ANY
    return _RULES[x.name](*given)


def _union(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), max(a[1], b[1])


def _product(a: Interval, b: Interval) -> Interval:
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def _quotient(a: Interval, b: Interval) -> Interval:
    return ANY if b[0] <= 0 <= b[1] else _product(a, (1 / b[1], 1 / b[0]))


def _converted(a: Interval) -> Interval:
    return math.floor(a[0]), math.ceil(a[1])


_WIDE = (torch.float32, torch.float64, torch.int32, torch.int64)
_RULES: dict[str, Callable[..., Interval]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "div": _quotient,
    "neg": lambda a: (-a[1], -a[0]),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "floor": lambda a: (math.floor(a[0]), math.floor(a[1])),
    "ceil": lambda a: (math.ceil(a[0]), math.ceil(a[1])),
    "cast": _converted,
    "round": _converted,
    "widen": _converted,
}
