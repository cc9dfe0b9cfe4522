"""Products of packed weights and of floats of 8 bits: calls of a library, equal to eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_max_backend
from tests.loops.test_library_calls import called, integers, numbers

OPTIONS = {"fallback": "error", "executor": "auto"}
F8 = torch.float8_e4m3fn
aten = torch.ops.aten


def with_loops(function: Callable[..., torch.Tensor], inputs: list[Any]) -> list[str]:
    """The library calls of a product that loops stand before and behind."""
    return called(lambda x, *rest: function(x * 2, *rest).relu() + 1, inputs)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_weight_int8pack_mm(rows: int, dtype: torch.dtype) -> None:
    inputs = [numbers(rows, 64, dtype=dtype), integers(-127, 127, 48, 64, dtype=torch.int8), numbers(48, dtype=dtype)]
    assert with_loops(torch._weight_int8pack_mm, inputs) == ["ATen aten._weight_int8pack_mm.default"]


@pytest.mark.parametrize("group", [32, 64, 128])
def test_weight_int4pack_mm_for_cpu(group: int) -> None:
    weight = integers(0, 16, 64, 128, dtype=torch.int32)
    scales = numbers(128 // group, 64, 2, dtype=torch.bfloat16)

    def function(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        packed = torch._convert_weight_to_int4pack_for_cpu(weight, 1)
        return torch._weight_int4pack_mm_for_cpu(x, packed, group, scales)

    assert with_loops(function, [numbers(3, 128, dtype=torch.bfloat16), weight, scales]) == [
        "ATen aten._convert_weight_to_int4pack_for_cpu.default",
        "ATen aten._weight_int4pack_mm_for_cpu.default",
    ]


@pytest.mark.parametrize("rows", [1, 32])
def test_int_mm(rows: int) -> None:
    inputs = [integers(-128, 128, rows, 64, dtype=torch.int8), integers(-128, 128, 64, 32, dtype=torch.int8)]
    assert called(lambda x, y: torch._int_mm(x, y) + 1, inputs) == ["ATen aten._int_mm.default"]


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scaled_mm(by_row: bool, out_dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, y: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(x.to(F8), y.t(), scale_a=a, scale_b=b, out_dtype=out_dtype)

    a, b = (numbers(16, 1).abs(), numbers(1, 32).abs()) if by_row else (torch.tensor(0.5), torch.tensor(2.0))
    assert with_loops(function, [numbers(16, 64), numbers(32, 64).to(F8), a, b]) == ["ATen aten._scaled_mm.default"]


@pytest.mark.any_runner("torch refuses it while it is traced")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch._weight_int8pack_mm(x, torch.zeros(4, 8), torch.ones(4)),
        lambda x: torch._scaled_mm(x, x.t(), scale_a=torch.tensor(1.0), scale_b=torch.tensor(1.0)),
        lambda x: torch._int_mm(x, x.t()),
    ],
    ids=["int8pack of floats", "scaled_mm of float32", "int_mm of float32"],
)
def test_bad_input_is_torchs_own_error(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(32, 32)
    with pytest.raises((RuntimeError, ValueError)):
        function(x)
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match="when making fake tensor call"):
        torch.compile(function, backend="max_backend", options=OPTIONS)(x)


def test_a_dtype_that_a_program_lacks_is_an_island_with_its_reason() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.view(torch.float4_e2m1fn_x2).view(torch.uint8) + 1

    x = torch.arange(16, dtype=torch.uint8)
    found = torch.compile(function, backend="max_backend", options={"executor": "auto"})(x)
    assert torch.equal(found, function(x))
    (island, *_) = torch_max_backend.reports()[-1].islands
    assert "no dtype for torch.float4_e2m1fn_x2" in str(island)
