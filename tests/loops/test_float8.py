"""Floats of 8 bits: every value, and every rounding, equal to eager's to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_max_backend
from torch_max_backend.base.dtypes import FLOAT8
from torch_max_backend.loops import float8
from torch_max_backend.loops.expr import Load, cast

OPTIONS = {"fallback": "error", "executor": "auto"}
DTYPES = sorted(FLOAT8, key=str)
SCALES = torch.float8_e8m0fnu
ALL = torch.arange(256, dtype=torch.int32).to(torch.uint8)


def compiled(function: Callable[..., Any], *inputs: torch.Tensor) -> list[torch.Tensor]:
    """What a program gives, and nothing else."""
    found = torch.compile(function, backend="max_backend", fullgraph=True, options=OPTIONS)(*inputs)
    stats = torch_max_backend.reports()[-1].stats
    assert stats.regions == stats.programs >= 1
    return list(found)


def assert_same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Floats of 8 bits are equal to the bit, others in their numbers, signs of zeros and NaNs."""
    assert found.dtype is wanted.dtype
    if wanted.dtype in FLOAT8:
        found, wanted = found.view(torch.uint8), wanted.view(torch.uint8)
    elif wanted.dtype.is_floating_point:
        zero = wanted == 0
        assert torch.equal(torch.signbit(found)[zero], torch.signbit(wanted)[zero])
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def numbers() -> dict[str, torch.Tensor]:
    """All numbers of 16 bits, and of more bits those beside them, and some of any bits."""
    short = torch.arange(1 << 16, dtype=torch.int32)
    bits = torch.randint(-(1 << 31), 1 << 31, (1 << 16,), generator=torch.Generator().manual_seed(0))
    wide = torch.cat([bits.to(torch.int32), *((short << 16) + k for k in (-1, 0, 1))]).view(torch.float32)
    return {
        "float16": short.to(torch.uint16).view(torch.float16),
        "bfloat16": short.to(torch.uint16).view(torch.bfloat16),
        "float32": wide,
        "float64": wide.double() * (1 + 1e-12),
        "int32": torch.arange(-70_000, 70_000, 17, dtype=torch.int32),
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rounding_to_8_bits(dtype: torch.dtype) -> None:
    inputs = list(numbers().values())
    for found, x in zip(compiled(lambda *xs: [y.to(dtype) for y in xs], *inputs), inputs, strict=True):
        assert_same(found, x.to(dtype))


def test_older_versions_of_torch_have_no_greatest_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """In ``float8_e4m3fn`` they make NaN of what would be rounded to a number beyond 448."""
    monkeypatch.setattr(float8, "_saturates", lambda: False)
    x = numbers()["float32"]
    (found,) = compiled(lambda x: [x.neg().to(torch.float8_e4m3fn)], x)
    wanted = torch.where(x.abs() <= 464, x.neg().to(torch.float8_e4m3fn).float(), float("nan"))
    torch.testing.assert_close(found.float(), wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_values_in_other_dtypes(dtype: torch.dtype) -> None:
    others = [
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.bool,
        *(d for d in DTYPES if d != dtype),
    ]
    x = ALL.view(dtype)
    for found, other in zip(compiled(lambda x: [x.to(to) for to in others], x), others, strict=True):
        assert_same(found, x.to(other))
    whole = x[x.float().abs() < 1 << 31]
    assert_same(compiled(lambda x: [x.to(torch.int32)], whole)[0], whole.to(torch.int32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_eager_computes_in_8_bits(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        size = [] if dtype is SCALES else [x.abs()]
        chosen = [torch.where(x == y, x, y)]
        made = [torch.full((3,), 1.5, dtype=dtype), torch.cat([x, y]), x.view(16, 16).t().clone()]
        return [x * y, x == y, x != y, x.isnan(), x.view(torch.uint8), *size, *chosen, *made]

    x, y = ALL.view(dtype), ALL[torch.randperm(256, generator=torch.Generator().manual_seed(1))].view(dtype)
    for found, wanted in zip(compiled(function, x, y), function(x, y), strict=True):
        assert_same(found, wanted)


def test_a_max_graph_has_no_floats_of_8_bits() -> None:
    x = torch.randn(8)
    with pytest.raises(Exception, match=r"MAX has no dtype for torch\.float8_e5m2"):
        torch.compile(
            lambda x: x.to(torch.float8_e5m2), backend="max_backend", options={"executor": "graph", "fallback": "error"}
        )(x)


@pytest.mark.parametrize("by", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
)
def test_what_16_bits_hold_is_not_rounded(dtype: torch.dtype, by: torch.dtype) -> None:
    """So that a weight which is read as 16 bits, and multiplied in float32, is converted once."""
    x = Load("x", (), dtype)
    assert cast(cast(x, by), torch.float32) == cast(x, torch.float32)
    every = torch.arange(256).to(torch.uint8).view(dtype)
    assert torch.equal(every.to(by).float().nan_to_num(7.0), every.float().nan_to_num(7.0))
