"""Cases of incomplete gamma functions, zeta and polygamma, over their domains and at their special values."""

from __future__ import annotations

import torch
from torch import special as s

from tests.aten_functions.pointwise.cases_pointwise import BF16, F32, F64, edges, inf, nan, pairs
from tests.support.cases import Case, ints, rand


def incomplete(a, x):
    """The lower and the upper function."""
    return torch.igamma(a, x), torch.igammac(a, x)


def zetas(x, q):
    """Tensors and numbers."""
    return s.zeta(x, q), s.zeta(2.5, q), s.zeta(3, q), s.zeta(x, 1), s.zeta(x, 0.25)


def polygammas(x):
    """Derivatives of low and high order."""
    return tuple(torch.polygamma(n, x) for n in (0, 1, 2, 3, 4, 5, 10))


def every(a, b):
    """One of each kind."""
    return *incomplete(a, b), s.zeta(a + 1, b), torch.polygamma(3, b)


def around(start, stop, dtype=F32):
    """Shapes a between two powers of ten, each with x far below it, near it, and far above it."""
    a = torch.logspace(start, stop, 29, dtype=F64)
    ratio = torch.tensor([1e-3, 0.1, 0.5, 0.8, 0.9, 0.97, 0.999, 1.0, 1.001, 1.02, 1.1, 1.3, 2.0, 7.0], dtype=F64)
    return a.repeat_interleave(len(ratio)).to(dtype), (a[:, None] * ratio).flatten().to(dtype)


def grid(left, right, dtype=F32):
    """Every pair."""
    x, y = torch.tensor(left, dtype=dtype), torch.tensor(right, dtype=dtype)
    return x.repeat_interleave(len(y)), y.repeat(len(x))


def joined(*pairs_of_inputs):
    """Several pairs of inputs as one."""
    return tuple(torch.cat(parts) for parts in zip(*pairs_of_inputs, strict=True))


EXTREMES = grid([1e-30, 1e-5, 1.0, 1e5, 1e30], [1e-30, 1e-5, 1.0, 1e5, 1e30], F64)
EXPONENTS = [1.0, 1.0001, 1.5, 2.0, 3.0, 4.5, 10.0, 25.0, 0.5, -1.0]
OFFSETS = [0.01, 0.5, 1.0, 2.25, 8.5, 9.0, 40.0, 1e4, -0.5, -2.25, -30.75, -3.0, 0.0]
AWAY = torch.tensor([0.02, 0.3, 1.0, 1.5, 4.0, 9.5, 33.0, -0.5, -1.25, -7.75])

CASES = [
    Case("every", every, (rand(5, 7, low=0.1, high=9), rand(5, 7, low=0.1, high=9))),
    Case("incomplete", incomplete, joined(around(-3, 4), pairs())),
    Case("incomplete_f64", incomplete, joined(around(-3, 7, F64), pairs(F64), EXTREMES)),
    Case("incomplete_broadcast", incomplete, (rand(3, 1, 2, low=0.5, high=4), rand(4, 1, low=0, high=9))),
    Case("incomplete_16_bit", incomplete, (rand(40, low=0.1, high=4, dtype=BF16), rand(40, high=6, dtype=BF16))),
    Case("zeta", zetas, joined(grid(EXPONENTS, OFFSETS), pairs())),
    Case("zeta_f64", zetas, joined(grid(EXPONENTS, OFFSETS, F64), pairs(F64))),
    Case("zeta_integers", zetas, (ints(4, 1, low=-1, high=9), ints(5, low=-2, high=9))),
    Case("polygamma", polygammas, (AWAY,)),
    Case("polygamma_f64", polygammas, (AWAY.double(),)),
    Case("polygamma_edges", lambda x: tuple(torch.polygamma(n, x) for n in (2, 3, 6)), (edges(),)),
    Case(
        "polygamma_overflow",
        lambda x: tuple(torch.polygamma(n, x) for n in (33, 34, 35, 36, 170, 171, 200)),
        (torch.tensor([0.5, 1.0, 3.0, 20.0, 1e6, -1.5, inf, nan]),),
    ),
    Case("polygamma_integers", lambda x: torch.polygamma(2, x), (ints(9, low=-2, high=9),)),
    Case("zero_dim", every, (rand(), rand())),
    Case("zero_dim_promotes", every, (rand(4, low=1, high=3), torch.tensor(2.3, dtype=F64))),
    Case("empty", every, (torch.ones(0, 3), torch.ones(3))),
    Case("dynamic", every, (rand(3, 4), rand(4)), dynamic=True, second=(rand(6, 9), rand(9))),
]
