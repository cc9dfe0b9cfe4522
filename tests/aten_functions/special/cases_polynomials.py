"""Cases of orthogonal polynomials: recurrences, closed forms, ends of the interval, and degrees that are none."""

from __future__ import annotations

import torch
from torch import special as s

from tests.aten_functions.pointwise.cases_pointwise import F32, F64, inf, nan, pairs
from tests.support.cases import Case, bools, ints, rand, randn

CHEBYSHEV = ("t", "u", "v", "w")
NAMES = (
    *(f"chebyshev_polynomial_{kind}" for kind in CHEBYSHEV),
    *(f"shifted_chebyshev_polynomial_{kind}" for kind in CHEBYSHEV),
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
)  # fmt: skip


def chebyshev(x, n):
    """The four kinds on [-1, 1] and on [0, 1]."""
    return tuple(getattr(s, name)(x, n) for name in NAMES[:8])


def others(x, n):
    """Hermite, Laguerre and Legendre polynomials."""
    return tuple(getattr(s, name)(x, n) for name in NAMES[8:])


def every(x, n):
    """All of them."""
    return *chebyshev(x, n), *others(x, n)


def some(x, n):
    """One of each kind of kernel."""
    return s.chebyshev_polynomial_t(x, n), s.shifted_chebyshev_polynomial_w(x, n), s.hermite_polynomial_he(x, n)


def by_numbers(x):
    """A number as the degree or as the point."""
    n = x.abs().mul(3).floor()
    return *some(x, 3), *some(x, 2.7), *some(0.3, n)


def every_number(x):
    """Every overload that takes a number as the degree or as the point."""
    n = x.abs().mul(3).floor()
    every_one = [getattr(s, name) for name in NAMES]
    return *(f(x, 4) for f in every_one), *(f(0.3, n) for f in every_one)


def grid(points, degrees, dtype=F32):
    """Every pair of a point and a degree."""
    x, n = torch.tensor(points, dtype=dtype), torch.tensor(degrees, dtype=dtype)
    return x.repeat_interleave(len(n)), n.repeat(len(x))


def joined(*pairs_of_inputs):
    """Several pairs of points and degrees as one."""
    return tuple(torch.cat(parts) for parts in zip(*pairs_of_inputs, strict=True))


# On both sides of the degrees where torch changes to closed forms.
LOW = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
INSIDE = [-0.93, -0.5, -0.21, 0.0, 0.1, 0.35, 0.5, 0.77, 0.9]
OUTSIDE = [-7.5, -1.25, -1.0, 1.0, 1.5, 2.0, 12.0]
NO_DEGREE = grid([-1.0, 0.3, 0.0, 1.0, 2.0, nan, inf, -inf], [-1.0, -0.5, -3.0, nan, inf, -inf, 1e19, 2.9])
OVERFLOW = grid([-3.0, 2.0, 30.0], [24, 25, 33, 60, 67, 68, 69, 70, 127, 128, 129, 200])
USUAL = grid(INSIDE + OUTSIDE, LOW)
# The rounding error of the angle times the degree is in the closed forms: float32 has five digits at degree 33.
HIGH = grid(INSIDE, [20, 33])
HIGHER = grid([*INSIDE, 0.999999, -0.999999, 5.5], [11, 40, 511, 512, 513, 1001, 100000], F64)
ENDS = grid([1 - 2**-24, 2**-24 - 1, 2**-25, 1e-20], LOW)
ENDS_F64 = grid([1 - 2**-53, 2**-53 - 1, 2**-54, 1e-40], [*LOW, 21], F64)

CASES = [
    Case("every", every, joined(USUAL, pairs(), NO_DEGREE, OVERFLOW, HIGH, ENDS)),
    Case("every_f64", every, joined(grid(INSIDE + OUTSIDE, LOW, F64), pairs(F64), HIGHER, ENDS_F64)),
    Case("high", others, grid([*INSIDE, 3.5], [40, 128, 129, 300])),
    Case("numbers", by_numbers, (rand(9, low=-1.2, high=1.2),)),
    Case(
        "every_number",
        every_number,
        (torch.cat([rand(9, low=-1.2, high=1.2)(torch.Generator()), torch.tensor([0.0, 1.0, -1.0, nan])]),),
    ),
    Case("integers", some, (ints(5, 1, low=-3, high=4), ints(7, low=-2, high=9))),
    Case("mixed", some, (bools(4, 1), rand(3, low=0, high=6, dtype=F64))),
    Case("broadcast", some, (randn(3, 1, 2), ints(4, 1, low=0, high=5))),
    Case("zero_dim", some, (rand(), torch.tensor(4))),
    Case("empty", some, (torch.ones(0, 3), torch.ones(3))),
    Case("dynamic", some, (rand(3, 4), ints(4, low=0, high=9)), dynamic=True, second=(rand(6, 9), ints(9, low=0))),
]
