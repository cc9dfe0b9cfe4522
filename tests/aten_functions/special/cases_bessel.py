"""Cases of Bessel and Airy functions, over their domains and at their special values."""

from __future__ import annotations

import torch
from torch import special as s

from tests.aten_functions.pointwise.cases_pointwise import F64, edges
from tests.support.cases import Case, bools, rand


def first_kind(x):
    """Defined everywhere."""
    return s.bessel_j0(x), s.bessel_j1(x), s.spherical_bessel_j0(x)


def second_kind(x):
    """Defined for positive arguments."""
    return s.bessel_y0(x), s.bessel_y1(x)


def modified_first_kind(x):
    """Grow like the exponential function."""
    return s.modified_bessel_i0(x), s.modified_bessel_i1(x)


def modified_second_kind(x):
    """Decay like it."""
    return (
        s.modified_bessel_k0(x), s.modified_bessel_k1(x),
        s.scaled_modified_bessel_k0(x), s.scaled_modified_bessel_k1(x),
    )  # fmt: skip


def every(x):
    """All of them."""
    return *first_kind(x), *second_kind(x), *modified_first_kind(x), *modified_second_kind(x), s.airy_ai(x)


def some(x):
    """One of each kind."""
    return s.bessel_j1(x), s.scaled_modified_bessel_k0(x), s.airy_ai(x)


def where_torch_errs(x, y):
    """Functions whose float64 values in torch have seven digits there, as scipy's show."""
    return *first_kind(x), *second_kind(x), s.airy_ai(y)


def between(start, stop, count):
    """Equally spaced points, in float64."""
    return torch.linspace(start, stop, count, dtype=F64)


# On both sides of the changes from a series to an asymptotic form, at 0.5, 2, 4, 5 and 8.
POSITIVE = torch.cat([between(0.03, 30, 151), torch.tensor([1e-3, 1e-10, 0.5, 2.0, 4.0, 5.0, 8.0, 8.0001], dtype=F64)])
BOTH = torch.cat([-POSITIVE, POSITIVE])
FAR = torch.tensor([31.0, 64.5, 87.0, 103.0, 104.0, 150.0, 700.0, 1000.0], dtype=F64)
AWAY = BOTH[((BOTH.abs() <= 5) | (BOTH.abs() > 6.5)) & ((BOTH < -2.8) | (BOTH > -2.09))]
NEAR_EDGES = edges()[edges().abs() != 1e4]  # where the phase of airy_ai has no digit left in float32

CASES = [
    Case("every", every, (torch.cat([BOTH.float(), NEAR_EDGES]),)),
    Case("every_f64", every, (torch.cat([AWAY, edges(F64), FAR, -FAR]),)),
    Case("airy_f64", s.airy_ai, (torch.cat([between(-50, -2.8, 157), between(-2.09, 104, 311)]),)),
    Case(
        "where_torch_errs",
        where_torch_errs,
        (torch.cat([between(5, 6.5, 61), between(-6.5, -5, 61)]), between(-2.8, -2.09, 61)),
        atol=3e-6,
        why="torch is off by up to 8e-7 between 5 and 6.4, and by 2.6e-6 in airy_ai between -2.7 and -2.09",
    ),
    Case("booleans", some, (bools(6),), exact=True),
    Case("zero_dim", some, (rand(),)),
    Case("empty", some, (torch.ones(0, 3),)),
    Case("dynamic", some, (rand(3, 4),), dynamic=True, second=(rand(6, 9),)),
]
