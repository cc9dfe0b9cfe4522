"""The most frequent element: ties, NaN, and places after torch's unstable sort of long rows."""

from __future__ import annotations

import torch

from tests.support.cases import Case, bools, ints, randn, special

NAN, INF = float("nan"), float("inf")
BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64

ROWS = torch.tensor([[1.0, NAN, 3.0, 3.0, 0.0, NAN], [NAN] * 6, [0.0, -0.0, 1.0, 1.0, INF, -INF], [2.0, 2, 1, 1, 3, 0]])


def modes(x):
    return *x.mode(), *x.mode(0), *x.mode(1, keepdim=True)


def slow_sort(n: int) -> torch.Tensor:
    """A row on which the median of three is bad again and again, so that `std::sort` falls back to a heap."""
    half = n // 2
    row = torch.empty(n, dtype=torch.int64)
    for i in range(1, half + 1):
        row[i - 1] = i if i % 2 else half + i - 1
        row[half + i - 1] = 2 * i
    return row // 8 * 8


CASES = [
    Case("modes_f32", modes, (ROWS,), exact=True),
    Case("modes_f64", modes, (ROWS.to(F64),), exact=True),
    Case("modes_bf16", modes, (ROWS.to(BF16),), exact=True),
    Case("modes_f16", modes, (ROWS.to(F16),), exact=True),
    Case("modes_special", lambda x: x.mode(), (special(),), exact=True),
    Case("modes_bool", modes, (bools(5, 40),)),
    Case("modes_i64_long", modes, (ints(30, 700),)),
    Case("modes_i64_wide", modes, (ints(3, 5000, low=-900, high=900),)),
    Case("modes_i32", modes, (ints(20, 17, dtype=torch.int32),)),
    Case("modes_i16", modes, (ints(20, 33, dtype=torch.int16),)),
    Case("modes_i8", modes, (ints(20, 64, dtype=torch.int8),)),
    Case("modes_u8", modes, (ints(20, 100, low=0, dtype=torch.uint8),)),
    Case("modes_distinct", modes, (randn(4, 300),)),
    Case("modes_heap", lambda x: x.mode(), (slow_sort(4096),)),
    Case("modes_3d", lambda x: (*x.mode(1), *x.mode(0), *x.mode(-1, True)), (ints(5, 20, 30),)),
    Case("modes_0d", lambda x: (*x.mode(), *x.mode(0, True)), (torch.tensor(2.5),)),
    Case("modes_empty", lambda x: (*x.mode(1), *x.mode(-1, True)), (torch.zeros(0, 3),)),
    Case("modes_dynamic", modes, (ints(5, 40),), dynamic=True, second=(ints(20, 31),)),
]
