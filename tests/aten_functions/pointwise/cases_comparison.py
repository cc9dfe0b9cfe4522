"""Cases of comparisons, logic, special values, and the larger or smaller of two."""

from __future__ import annotations

import torch

from tests.aten_functions.pointwise.cases_pointwise import BF16, F16, F64, I8, U8, edges, pairs
from tests.support.cases import Case, bools, ints, randn


def comparisons(a, b):
    """All six, of tensors and numbers."""
    return a == b, a != b, a < b, a <= b, a > b, a >= b, a == 1, a != 1, a < 2, a <= 1, a > 0, a >= 1, a > 0.5, a == 0.1


def logic(a, b):
    """Logic of anything."""
    return torch.logical_and(a, b), torch.logical_or(a, b), torch.logical_xor(a, b), torch.logical_not(a)


def tests(x):
    """Tests for special values."""
    return x.isnan(), x.isinf(), x.isfinite(), x.isposinf(), x.isneginf(), x.signbit(), torch.isreal(x)


def extrema(a, b):
    """The larger and the smaller."""
    return torch.maximum(a, b), torch.minimum(a, b), torch.fmax(a, b), torch.fmin(a, b), torch.max(a, b)


def closeness(a, b):
    """isclose in its forms."""
    return torch.isclose(a, b), torch.isclose(a, b, rtol=0.1), torch.isclose(a, b, equal_nan=True)


def signs(a, b):
    """copysign of tensors and numbers."""
    return torch.copysign(a, b), torch.copysign(a, -1.0), torch.copysign(a, 2), torch.copysign(a, -0.0)


NEGATIVE_NAN = torch.tensor([-1, 0x7FC00000, 0x3F800000]).int().view(torch.float32)

CASES = [
    Case("comparisons_f32", comparisons, pairs()),
    Case("comparisons_bf16", comparisons, pairs(BF16)),
    Case("comparisons_f16", comparisons, (randn(30, dtype=F16), randn(30, dtype=F16))),
    Case("comparisons_f64", comparisons, (randn(30, dtype=F64), randn(30, dtype=F64))),
    Case("comparisons_i64", comparisons, (ints(30), ints(30))),
    Case("comparisons_u8", comparisons, (ints(30, low=0, high=256, dtype=U8), ints(30, low=0, high=256, dtype=U8))),
    Case("comparisons_i8", comparisons, (ints(30, low=-128, high=128, dtype=I8), ints(30, dtype=I8))),
    Case("comparisons_bool", comparisons, (bools(9), bools(9))),
    Case("comparisons_mixed", lambda a, b: (a < b, b == a, a > b[0], b >= 1.5), (randn(4, 5), ints(5))),
    Case("comparisons_zero_dim", lambda a, b: (a < b, b == b, a == b), (randn(4, 5), randn())),
    Case("comparisons_empty", comparisons, (torch.ones(0, 3), torch.ones(3))),
    Case("logic_f32", logic, pairs()),
    Case("logic_bool", logic, (bools(20), bools(20))),
    Case("logic_mixed", logic, (ints(20), ints(20, low=-1, high=2, dtype=torch.float32))),
    Case("tests_f32", tests, (edges(),)),
    Case("tests_bf16", tests, (edges(BF16),)),
    Case("tests_f16", tests, (edges(F16),)),
    Case("tests_f64", tests, (edges(F64),)),
    Case("tests_integers", lambda x: (x.isnan(), x.isinf(), x.isfinite(), x.signbit()), (ints(6),)),
    Case("signbit_nan", lambda x: (x.signbit(), torch.copysign(torch.ones_like(x), x)), (NEGATIVE_NAN,)),
    Case("extrema_edges", extrema, pairs()),
    Case("extrema_f16", extrema, (randn(4, 5, dtype=F16), randn(5, dtype=F16))),
    Case("extrema_i64", extrema, (ints(20), ints(20))),
    Case("extrema_bool", extrema, (bools(20), bools(20))),
    Case("extrema_mixed", lambda a, b: (torch.maximum(a, b), torch.minimum(a, b)), (randn(4, 5), ints(5))),
    Case("closeness", closeness, pairs()),
    Case("closeness_integers", closeness, (ints(20), ints(20))),
    Case("signs", signs, pairs(), exact=True),
    Case("signs_integers", signs, (ints(8), ints(8))),
    Case("nextafter", torch.nextafter, pairs(F64), exact=True),
    Case("nextafter_random", torch.nextafter, (randn(50), randn(50)), exact=True),
    Case("dynamic", lambda a, b: (a < b, torch.maximum(a, b), a.isnan(), torch.logical_and(a, b)), (
        randn(3, 4), randn(4)), dynamic=True, second=(randn(6, 9), randn(9))),
]  # fmt: skip
