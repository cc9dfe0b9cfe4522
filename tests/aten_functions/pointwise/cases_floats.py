"""Cases of frexp and angle."""

from __future__ import annotations

import torch

from tests.aten_functions.pointwise.cases_pointwise import BF16, F16, F64, edges
from tests.support.cases import Case, bools, ints, randn, special

WIDE = torch.logspace(-38, 38, 97)


def parts(x):
    """Mantissa and exponent, and each alone."""
    return *torch.frexp(x), torch.frexp(x)[0] * 2, torch.frexp(x).exponent + 1


CASES = [
    Case("frexp", parts, (torch.cat([WIDE, -WIDE, special()]),), exact=True),
    Case("frexp_f64", parts, (torch.cat([WIDE.double() ** 8, special(F64), torch.tensor([5e-324])]),), exact=True),
    Case("frexp_16_bit", lambda x, y: (*parts(x), *parts(y)), (special(F16), special(BF16)), exact=True),
    Case("frexp_subnormal_f16", parts, (torch.arange(0, 40).to(F16) * 2**-24,), exact=True),
    Case("frexp_sizes", lambda x, y: (*torch.frexp(x), *torch.frexp(y)), (randn(0, 3), randn()), exact=True),
    Case("frexp_strides", lambda x: torch.frexp(x.t()), (randn(3, 5),), exact=True),
    Case("frexp_dynamic", parts, (randn(3, 4),), dynamic=True, second=(randn(6, 9),), exact=True),
    Case("angle", torch.angle, (edges(),)),
    Case("angle_dtypes", lambda *x: tuple(v.angle() for v in x), (special(F64), edges(BF16), ints(9), bools(4))),
]
