"""Products of floats of 8 bits and of packed weights on a GPU: library calls, equal to eager."""

from __future__ import annotations

import pytest
import torch

import torch_max_backend
from torch_max_backend.runtime import packed_products

pytestmark = pytest.mark.gpu

OPTIONS = {"fallback": "error", "executor": "auto"}
F8 = torch.float8_e4m3fn


def needs(major: int, minor: int = 0) -> None:
    """Skip the test on a GPU of an older compute capability."""
    if torch.cuda.get_device_capability() < (major, minor):
        pytest.skip(f"needs compute capability {major}.{minor}")


@pytest.mark.parametrize("by_row", [False, True])
def test_scaled_mm(by_row: bool) -> None:
    needs(9) if by_row else needs(8, 9)

    def function(x: torch.Tensor, y: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(x.to(F8), y.t(), scale_a=a, scale_b=b, out_dtype=torch.bfloat16) + 1

    x, y = torch.randn(32, 64, device="cuda"), torch.randn(48, 64, device="cuda").to(F8)
    a, b = (torch.ones(32, 1), torch.ones(1, 48)) if by_row else (torch.tensor(0.5), torch.tensor(2.0))
    inputs = (x, y, a.cuda(), b.cuda())
    found = torch.compile(function, backend="max_backend", options=OPTIONS)(*inputs)
    assert torch.equal(found, function(*inputs))
    assert torch_max_backend.reports()[-1].programs[0].library_calls == ("ATen aten._scaled_mm.default",)


@pytest.mark.parametrize("dtype", [F8, torch.float8_e5m2], ids=str)
def test_rounding_to_8_bits(dtype: torch.dtype) -> None:
    x = torch.arange(1 << 16, dtype=torch.int32, device="cuda").to(torch.uint16).view(torch.bfloat16)
    x = x[x.isfinite()]
    found = torch.compile(lambda x: x.to(dtype), backend="max_backend", options=OPTIONS)(x)
    assert torch.equal(found.view(torch.uint8), x.to(dtype).view(torch.uint8))


@pytest.mark.parametrize("dtype", [F8, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("count", [256, 255, 5])
def test_all_numbers_of_8_bits(count: int, dtype: torch.dtype) -> None:
    """In vectors and one by one, by the instruction for two of them where the GPU has it."""
    x = torch.arange(256, dtype=torch.int32, device="cuda").to(torch.uint8)[-count:].view(dtype)
    found = torch.compile(lambda x: x.float(), backend="max_backend", options=OPTIONS)(x)
    wanted = x.float()
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    zero = wanted == 0
    assert torch.equal(found.signbit()[zero], wanted.signbit()[zero])


@pytest.mark.parametrize("dtype", [F8, torch.int8], ids=str)
@pytest.mark.parametrize(("depth", "columns"), [(2048, 8192), (8192, 2048), (1000, 3002), (320, 96)])
def test_a_row_times_narrow_rows(depth: int, columns: int, dtype: torch.dtype) -> None:
    """Two of them at once, where there are enough; integers, of which sums are exact."""
    x = torch.randint(-8, 9, (1, depth), device="cuda").to(torch.bfloat16)
    w = torch.randint(-8, 9, (columns, depth), device="cuda").float().to(dtype)
    scale = 2.0 ** torch.randint(-3, 4, (columns, 1), device="cuda").to(torch.bfloat16)

    def function(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x @ (w.to(x.dtype) * scale).t()

    found = torch.compile(function, backend="max_backend", options=OPTIONS)(x, w, scale)
    assert torch.equal(found, (x.double() @ (w.double() * scale.double()).t()).to(x.dtype))
    assert torch_max_backend.reports()[-1].programs[0].library_calls == ()


@pytest.mark.parametrize("rows", [2, 32, 300])
def test_a_large_matrix_of_integers_is_never_unpacked_as_a_whole(rows: int) -> None:
    """Its peak is that of results and a part of the matrix, and it is no farther from float64 than eager."""
    x = torch.randn(rows, 768, device="cuda", dtype=torch.bfloat16)
    packed = torch.randint(-127, 128, (50257, 768), device="cuda").to(torch.int8)
    scale = torch.rand(50257, device="cuda").to(x.dtype)

    def function(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x @ w.to(x.dtype).t()) * scale

    compiled = torch.compile(function, backend="max_backend", options=OPTIONS)
    exact = function(x.double(), packed, scale.double())
    found, eager = ((f(x, packed, scale).double() - exact).abs().max() for f in (compiled, function))
    assert found <= 2 * eager
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = compiled(x, packed, scale)
    assert torch.cuda.max_memory_allocated() - before < 2 * result.nbytes + 2 * packed_products.PART
