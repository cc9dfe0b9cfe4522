"""Cases of special functions, over their domains and at their special values."""

from __future__ import annotations

import torch
from torch import special as s

from tests.aten_functions.pointwise.cases_pointwise import BF16, F16, F64, edges, pairs
from tests.support.cases import Case, ints, rand, randn


def circular(x):
    """Circular functions and their inverses."""
    return x.tan(), x.acos(), x.asin(), x.atan(), torch.sinc(x), torch.deg2rad(x), torch.rad2deg(x)


def hyperbolic(x):
    """Hyperbolic functions and their inverses."""
    return x.sinh(), x.cosh(), x.asinh(), x.acosh(), x.atanh()


def exponential(x):
    """Logarithms and exponentials."""
    return x.expm1(), x.exp2(), x.log2(), x.log10(), x.log1p()


def error(x):
    """The error function and its kin."""
    return x.erf(), x.erfc(), x.erfinv(), s.erfcx(x), s.ndtr(x), s.ndtri(x), s.log_ndtr(x)


def gamma(x):
    """The gamma function and its logarithmic derivatives."""
    return x.lgamma(), x.digamma(), torch.polygamma(0, x), torch.polygamma(1, x)


def bessel(x):
    """Modified Bessel functions."""
    return torch.i0(x), s.i0e(x), s.i1(x), s.i1e(x)


def everything(x):
    """One of each kind."""
    return x.expm1(), x.log2(), x.atan(), x.asinh(), x.erfc(), x.erfinv(), x.lgamma()


def binary(a, b):
    """Functions of two."""
    return torch.atan2(a, b), torch.hypot(a, b), torch.logaddexp(a, b), torch.logaddexp2(a, b), torch.atan2(a, b[1])


UNIT = torch.cat([torch.linspace(-1, 1, 81), torch.tensor([1e-3, -1e-5, 1e-20, 0.99999, -0.9999999, 1.5])])
WIDE = torch.cat([torch.linspace(-20, 20, 201), torch.tensor([1e-3, -1e-5, 1e-20, 88.9, -88.9, 1e3, 1e12, -1e12])])
PROBABILITY = torch.cat([torch.linspace(0, 1, 41), torch.tensor([1e-30, 1e-10, 1e-4, 0.9999, 0.99999994])])
POSITIVE = torch.cat([torch.linspace(0.01, 20, 97), torch.tensor([1e-3, 1e-10, 1e-20, 1e3, 1e12, 1.0, 2.0])])
NEGATIVE = torch.tensor([-0.5, -1.5, -2.25, -3.9, -7.125, -0.01, -1.0, -2.0, 0.0, -0.0, -20.3])

CASES = [
    Case("circular_unit", circular, (UNIT,)),
    Case("circular_wide", lambda x: (x.tan(), x.atan(), torch.sinc(x)), (WIDE[:205],)),
    Case("circular_edges", circular, (edges(),)),
    Case("circular_f64", circular, (UNIT.double(),)),
    Case("circular_bf16", circular, (rand(40, low=-1, high=1, dtype=BF16),)),
    Case("hyperbolic_wide", hyperbolic, (WIDE,)),
    Case("hyperbolic_unit", hyperbolic, (UNIT,)),
    Case("hyperbolic_edges", hyperbolic, (edges(),)),
    Case("hyperbolic_f64", hyperbolic, (torch.cat([UNIT, WIDE]).double(),)),
    Case("exponential_wide", exponential, (WIDE,)),
    Case("exponential_edges", exponential, (edges(),)),
    Case("exponential_f64", exponential, (torch.cat([UNIT, WIDE]).double(),)),
    Case("exponential_f16", exponential, (rand(40, low=0.1, high=4, dtype=F16),)),
    Case(
        "exact_logarithms",
        lambda x: (x.exp2(), x.exp2().log2(), x.abs().mul(0).add(10).pow(x).log10()),
        (torch.arange(0.0, 11.0),),
        exact=True,
    ),
    Case("error_unit", error, (UNIT,)),
    Case("error_wide", lambda x: (x.erf(), x.erfc(), s.ndtr(x), s.log_ndtr(x)), (WIDE,)),
    Case("erfcx", lambda x: s.erfcx(x), (torch.linspace(-9, 40, 99),)),
    Case("error_edges", lambda x: (x.erf(), x.erfc(), x.erfinv(), s.ndtri(x), s.erfcx(x)), (edges(),)),
    Case("error_f64", error, (torch.linspace(-0.99, 0.99, 67, dtype=F64),)),
    Case("ndtri", s.ndtri, (PROBABILITY,)),
    Case("ndtri_f64", s.ndtri, (PROBABILITY.double(),)),
    Case("gamma_positive", gamma, (POSITIVE,)),
    Case("gamma_negative", lambda x: (x.lgamma(), x.digamma()), (NEGATIVE,)),
    Case("trigamma_negative", lambda x: torch.polygamma(1, x), (torch.tensor([-0.5, -1.4, -3.9, 0.25]).double(),)),
    Case("gamma_edges", lambda x: (x.lgamma(), x.digamma()), (edges(),)),
    Case("gamma_f64", gamma, (torch.linspace(0.05, 30, 67, dtype=F64),)),
    Case("mvlgamma", lambda x: torch.mvlgamma(x, 3), (POSITIVE[:90] + 1.5,)),
    Case("bessel", bessel, (torch.linspace(-30, 30, 121),)),
    Case("bessel_edges", bessel, (edges(),)),
    Case("bessel_f64", bessel, (torch.linspace(-30, 30, 121, dtype=F64),)),
    Case("binary_edges", binary, pairs()),
    Case("binary_f32", binary, (randn(5, 7, scale=3), randn(5, 7, scale=3))),
    Case("binary_f64", binary, (randn(5, 7, scale=3, dtype=F64), randn(5, 7, scale=3, dtype=F64))),
    Case("binary_bf16", binary, (randn(5, 7, dtype=BF16), randn(5, 7, dtype=BF16))),
    Case("ldexp", lambda x, n: (torch.ldexp(x, n), torch.ldexp(x, n.float())), (randn(40), ints(40))),
    Case("integers", everything, (ints(9, low=1, high=5),)),
    Case("zero_dim", everything, (rand(),)),
    Case("empty", everything, (torch.ones(0, 3),)),
    Case("logit", lambda x: (s.logit(x), s.logit(x, 0.1), s.entr(x), s.expit(x)), (PROBABILITY[1:40],)),
    Case("dynamic", everything, (rand(3, 4),), dynamic=True, second=(rand(6, 9),)),
]
