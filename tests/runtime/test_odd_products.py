"""Products whose columns are no multiple of 16 bytes, on a CPU."""

from __future__ import annotations

import pytest
import torch

from torch_max_backend.runtime.odd_products import even, mm_of_odd_columns, multiply


@pytest.mark.parametrize("columns", [1, 7, 8, 9, 16, 1001])
@pytest.mark.parametrize("has_bias", [False, True])
def test_parts_are_the_product(columns: int, has_bias: bool) -> None:
    x, weight = torch.randn(5, 24).bfloat16(), torch.randn(columns, 24).bfloat16()
    bias = torch.randn(columns).bfloat16() if has_bias else None
    found = mm_of_odd_columns(x, weight.t(), bias)
    exact = x.double() @ weight.double().t() + (bias.double() if bias is not None else 0)
    assert found.stride() == (even(columns), 1) and found.dtype is torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=2**-12)


def test_nothing_else_is_written() -> None:
    whole = torch.zeros(5, 32, dtype=torch.bfloat16)
    x, weight = torch.ones(5, 24).bfloat16(), torch.ones(11, 24).bfloat16()
    multiply(x, weight.t(), whole[:, 8:19])
    assert whole[:, 8:19].eq(24).all() and not whole[:, :8].any() and not whole[:, 19:].any()
