"""Numbers of which torch's kernels for GPUs make something else than those for CPUs: a program has the device's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.emulated_gpu import emulate_gpu
from torch_max_backend.loops.libraries import library_of
from torch_max_backend.loops.rules.registry import aten

pytestmark = pytest.mark.any_runner("programs without a graph")
NAN = float("nan")


def slope(x: torch.Tensor) -> torch.Tensor:
    return aten.hardswish_backward(torch.full_like(x, 3), x)


def differing(x: torch.Tensor) -> torch.Tensor:
    return torch.cdist(x[None], x[None] + 1, 0.0)


def hard_slope(x: torch.Tensor) -> torch.Tensor:
    return aten.hardtanh_backward(torch.full_like(x, 3), x, -1, 1)


def elu_slope(x: torch.Tensor) -> torch.Tensor:
    return aten.elu_backward(torch.full_like(x, 3), 1.2, 2.0, 0.9, False, x)


def elu_slope_by_its_result(x: torch.Tensor) -> torch.Tensor:
    return aten.elu_backward(torch.full_like(x, 3), 1.2, 2.0, 0.9, True, x)


def shrunk_slope(x: torch.Tensor) -> torch.Tensor:
    return aten.softshrink_backward(torch.full_like(x, 3), x, 0.5)


def hard_shrunk_slope(x: torch.Tensor) -> torch.Tensor:
    return aten.hardshrink_backward(torch.full_like(x, 3), x, 0.5)


@pytest.mark.parametrize(
    ("function", "on_gpu", "on_cpu"),
    [
        (slope, [3.0] * 64, NAN),
        (differing, [[64.0]], NAN),
        (hard_slope, [3.0] * 64, 0.0),
        (elu_slope, [6.0] * 64, NAN),
        (elu_slope_by_its_result, [6.0] * 64, NAN),
        (shrunk_slope, [3.0] * 64, 0.0),
        (hard_shrunk_slope, [3.0] * 64, 0.0),
    ],
)
def test_nan(function: Any, on_gpu: list[Any], on_cpu: float, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.full((64,), NAN)
    compiled = torch.compile(function, backend="max_backend", options={"executor": "auto", "fallback": "error"})
    wanted = torch.full_like(compiled(x), on_cpu)
    torch.testing.assert_close(compiled(x), wanted, rtol=0, atol=0, equal_nan=True)
    torch._dynamo.reset()
    written = emulate_gpu(monkeypatch)
    assert compiled(x).tolist() == on_gpu
    assert written


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_division_by_a_number(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiplies by its reciprocal, as ATen's kernels for GPUs do with numbers alone; 49 times that is less than 1."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x / 49, torch.div(x, 49, rounding_mode="trunc"), torch.div(x, 49, rounding_mode="floor"), x / y

    x = torch.arange(0, 4900, 7).to(dtype)
    y = torch.full_like(x, 49)
    written = emulate_gpu(monkeypatch)
    options = {"executor": "auto", "fallback": "error"}
    found = torch.compile(function, backend="max_backend", options=options)(x, y)
    exact = function(x, y)
    wide = torch.float32 if dtype in (torch.bfloat16, torch.int64) else dtype
    product = x.to(wide) * (torch.ones((), dtype=wide) / torch.full((), 49, dtype=wide))
    assert torch.equal(found[0], product.to(exact[0].dtype))
    if dtype.is_floating_point:
        assert torch.equal(found[1], product.trunc().to(dtype))
    assert torch.equal(found[2], exact[2])
    assert torch.equal(found[3], exact[3])
    if dtype is torch.float32:
        assert not torch.equal(found[0], exact[0])
    assert written


def test_grid_samplers_of_a_gpu_are_calls() -> None:
    """ATen has ops of its own for cuDNN's."""
    assert library_of(aten.cudnn_grid_sampler.default) == library_of(aten.cudnn_grid_sampler_backward.default) == "ATen"
