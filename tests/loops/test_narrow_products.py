"""Products of a row with a matrix that is unpacked: one loop that reads it as it is packed, and right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torch_max_backend
from torch_max_backend.loops import small_products
from torch_max_backend.runtime import packed_products

OPTIONS = {"fallback": "error", "executor": "auto"}
Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def calls(function: Function, x: torch.Tensor, w: torch.Tensor) -> list[str]:
    """The library calls of a program that gives what eager gives."""
    found = torch.compile(function, backend="max_backend", fullgraph=True, options=OPTIONS)(x, w)
    torch.testing.assert_close(found, function(x, w))
    report = torch_max_backend.reports()[-1]
    assert report.stats.regions == report.stats.programs == 1
    return [name for program in report.programs for name in program.library_calls]


def weight(dtype: torch.dtype) -> torch.Tensor:
    least = -8 if dtype.is_signed else 0
    return torch.randint(least, 8, (48, 64), generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("packed", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_one_row_is_a_loop(dtype: torch.dtype, packed: torch.dtype) -> None:
    assert calls(lambda x, w: x @ w.to(x.dtype).t(), torch.randn(1, 64).to(dtype), weight(packed)) == []


def test_bias_and_scales_are_in_the_loop() -> None:
    scale, bias = torch.rand(48, 1), torch.randn(48)
    found = calls(lambda x, w: torch.addmm(bias, x, (w.float() * scale).t()), torch.randn(1, 64), weight(torch.int8))
    assert found == []


@pytest.mark.parametrize("groups", [2, 4])
def test_groups_share_a_scale_and_a_zero(groups: int) -> None:
    scale, zero = torch.rand(48, groups, 1), torch.randint(-3, 3, (48, groups, 1), dtype=torch.int8)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        parts = (w.view(48, groups, -1).float() - zero.float()) * scale
        return x @ parts.view(48, -1).t()

    assert calls(function, torch.randn(1, 64), weight(torch.int8)) == []


def test_nibbles_are_unpacked_in_the_loop() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        parts = torch.stack([w & 15, w >> 4], dim=-1).view(48, -1)
        return x @ (parts.float() - 8).t()

    assert calls(function, torch.randn(1, 128), weight(torch.uint8)) == []


@pytest.mark.parametrize(
    ("rows", "packed"), [(2, torch.int8), (1, torch.float32)], ids=["several rows", "a matrix of floats"]
)
def test_otherwise_a_library_is_better(rows: int, packed: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_products, "SMALL", 0)
    assert calls(lambda x, w: x @ (w.float() * 2).t(), torch.randn(rows, 64), weight(packed)) == [
        "ATen aten.mm.default"
    ]


def test_a_symbolic_number_of_rows_is_for_a_library() -> None:
    x = torch.randn(3, 64)
    torch._dynamo.mark_dynamic(x, 0)
    assert calls(lambda x, w: x @ w.float().t(), x, weight(torch.int8)) == ["ATen aten.mm.default"]


def matrix(rows: int, columns: int) -> torch.Tensor:
    return torch.randint(-127, 128, (rows, columns), generator=torch.Generator().manual_seed(0)).to(torch.int8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("features", "columns"), [(64, 128), (67, 200), (130, 1025)])
def test_several_features_at_once(features: int, columns: int, dtype: torch.dtype) -> None:
    """Whatever is left of fours of features, and of vectors of columns; with a bias and what is added in place."""
    torch.manual_seed(0)
    scale, bias = torch.rand(features), torch.randn(features).to(dtype)
    packed, x = matrix(features, columns), torch.randn(1, columns).to(dtype)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y.add_(((x @ packed.to(dtype).t()) * scale.to(dtype) + bias) * 0.5)

    compiled = torch.compile(function, backend="max_backend", fullgraph=True, options=OPTIONS)
    found, wanted = torch.zeros(1, features, dtype=dtype), torch.zeros(1, features, dtype=torch.float64)
    for _ in range(2):
        compiled(x, found)
        wanted += ((x.double() @ packed.double().t()) * scale.to(dtype).double() + bias.double()) * 0.5
    report = torch_max_backend.reports()[-1]
    assert [name for program in report.programs for name in program.library_calls] == []
    step = torch.finfo(dtype).eps * float(wanted.abs().max())
    assert float((found.double() - wanted).abs().max()) <= 2 * step  # of the sum, and of the sum before


def integers(columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 256, (1, columns)).to(torch.uint8), matrix(48, columns)


def test_a_product_of_integers_is_for_a_library() -> None:
    x = torch.randint(-128, 128, (1, 128)).to(torch.int8)
    assert calls(lambda x, w: torch._int_mm(x, w.t()), x, matrix(48, 128)) == ["ATen aten._int_mm.default"]


@pytest.mark.parametrize("columns", [128, 201])
def test_a_product_of_integers_and_the_sums_of_their_matrix_are_one_loop(columns: int) -> None:
    """It reads the matrix once; exact, also where no library takes the number of columns."""
    x, w = integers(columns)
    shifted = (x.int() - 128).to(torch.int8)
    wanted = shifted.long() @ w.long().t()

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch._int_mm(x, w.t()) - 128 * w.sum(dim=1, dtype=torch.int32)

    found = torch.compile(function, backend="max_backend", fullgraph=True, options=OPTIONS)(x, w)
    assert torch.equal(found.long(), wanted)
    (program,) = torch_max_backend.reports()[-1].programs
    assert (program.library_calls, program.kernels) == ((), 1)


PACKED = "ATen aten._weight_int8pack_mm.default"


def test_rows_that_lie_otherwise_are_copied_for_it() -> None:
    """It refuses those that have no neighbours in memory."""
    x, w = torch.randn(16, 64).to(torch.bfloat16), weight(torch.int8)[:32]
    run = torch.compile(lambda x, w: x @ w.to(x.dtype).t(), backend="max_backend", options=OPTIONS)
    torch.testing.assert_close(run(x.t().contiguous().t(), w), x @ w.to(x.dtype).t(), rtol=2e-2, atol=2e-2)
    assert torch_max_backend.reports()[-1].programs[0].library_calls == (PACKED,)


REST = "ATen torch_max_backend.mm_of_packed.default"
UNPACKED = "ATen aten.mm.default"


@pytest.mark.parametrize(
    ("rows", "columns", "features", "call"),
    [(2, 64, 64, PACKED), (33, 64, 64, PACKED), (300, 64, 64, UNPACKED), (200, 72, 64, UNPACKED), (33, 64, 81, REST)],
)
def test_some_rows_read_the_matrix_as_it_is_packed(rows: int, columns: int, features: int, call: str) -> None:
    """torch's kernel does, for sides that it takes, or for most of one; right within the roundings of the result."""
    x, scale = torch.randn(rows, columns).to(torch.bfloat16), torch.rand(features).to(torch.bfloat16)
    packed = matrix(features, columns)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w.to(x.dtype).t()) * scale

    found = torch.compile(function, backend="max_backend", fullgraph=True, options=OPTIONS)(x, packed)
    torch.testing.assert_close(found, function(x, packed))
    (program,) = torch_max_backend.reports()[-1].programs
    assert program.library_calls == (call,)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("part", [1, 4096, 2**20], ids=["8 at a time", "64 at a time", "two parts"])
def test_a_product_in_parts_is_the_product(dtype: torch.dtype, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a GPU, here with small numbers, which are exact in any order; rows begin at whole vectors."""
    monkeypatch.setattr(packed_products, "PART", part)
    x, packed = torch.randint(-3, 4, (5, 32)).float(), torch.randint(0, 9, (147, 32)).to(dtype)
    found = packed_products._in_parts(x, packed)
    assert torch.equal(found, x @ packed.float().t())
    assert found.stride() == (152, 1)
