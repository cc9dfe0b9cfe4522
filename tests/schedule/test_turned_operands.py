"""What is read many times across memory is written as it is read, once."""

from __future__ import annotations

import pytest
import torch

from tests.codegen.test_emulated_kernels import for_gpu
from tests.codegen.test_written_source import program
from tests.support.grid_programs import check_emulated
from torch_max_backend import reports
from torch_max_backend.loops.rules import pointwise, pool, reduce
from torch_max_backend.loops.rules.registry import rules
from torch_max_backend.loops.tensor import Tensor
from torch_max_backend.schedule import turned_operands as turned
from torch_max_backend.schedule.machine import CPU, GPU, Machine
from torch_max_backend.schedule.plan import passes

pytestmark = pytest.mark.any_runner("programs without a graph")


def text_of(x: torch.Tensor, y: torch.Tensor, machine: Machine) -> str:
    made = program(lambda x, y: (pointwise.add(x, y),), x, y)
    return str(dict(passes(made.program, machine))["turned_operands"])


@pytest.mark.parametrize(
    ("images", "rows", "is_turned"),
    [(16, torch.zeros(600, 600), True), (16, torch.zeros(600, 600).t(), False), (7, torch.zeros(600, 600), False)],
    ids=["across", "along", "seldom"],
)
def test_what_is_turned(images: int, rows: torch.Tensor, is_turned: bool) -> None:
    x = torch.zeros(images, 600, 600)
    assert x.numel() >= turned.LEAST
    assert ("_turned0" in text_of(x, rows.t(), GPU)) is is_turned
    assert ("_turned0" in text_of(x, rows.t(), CPU)) is is_turned


def test_small_ones_are_not() -> None:
    assert "_turned0" not in text_of(torch.zeros(16, 30, 60), torch.zeros(60, 30).t(), GPU)


@pytest.mark.parametrize(("is_last", "taps"), [(True, 3), (False, 3), (True, 1)], ids=["across", "along", "seldom"])
def test_windows_on_a_cpu(is_last: bool, taps: int) -> None:
    """Under conditions, since they go beyond the image."""
    x = torch.zeros(2, 32, 24, 24)
    x = x.to(memory_format=torch.channels_last) if is_last else x
    made = program(lambda x: (pool.im2col(x, [taps, taps], [1, 1], [taps // 2, taps // 2], [1, 1]),), x)
    assert ("_turned0" in str(dict(passes(made.program, CPU))["turned_operands"])) is (is_last and taps > 1)


@pytest.mark.parametrize(("rows", "is_turned"), [(600, True), (160, False)], ids=["often", "seldom"])
def test_a_transposed_table_on_a_cpu(rows: int, is_turned: bool) -> None:
    table, places = torch.randn(128, 42).t(), torch.randint(0, 42, (rows,))
    made = program(lambda x, i: (rules()[torch.ops.aten.embedding.default](x, i),), table, places)
    assert ("_turned0" in str(dict(passes(made.program, CPU))["turned_operands"])) is is_turned


def test_a_transposed_table_is_right() -> None:
    table, places = torch.randn(128, 42).t(), torch.randint(0, 42, (600,))
    compiled = torch.compile(embedded, backend="max_backend", options={"executor": "auto", "fallback": "error"})
    assert torch.equal(compiled(table, places), embedded(table, places))
    places[7] = 42
    with pytest.raises(IndexError):
        compiled(table, places)


def embedded(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(places, table)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_windows_of_channels_last_are_right(dtype: torch.dtype) -> None:
    x = torch.randint(-9, 10, (2, 12, 19, 18)).to(dtype).to(memory_format=torch.channels_last)
    compiled = torch.compile(unfolded, backend="max_backend", options={"executor": "auto", "fallback": "error"})
    torch.testing.assert_close(compiled(x), unfolded(x), rtol=0, atol=0)
    report = reports()[-1]
    assert report.stats.programs == 1 and not report.islands


def unfolded(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.unfold(x.float(), 3, padding=1).to(x.dtype)


def both(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return pointwise.add(x, y), reduce.sum_dims(pointwise.add(y, x), [2])


@pytest.mark.sampled
def test_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turned, "LEAST", 1)
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(-9, 10, shape, generator=generator).float() for shape in ((9, 34, 21), (21, 34)))
    made = for_gpu(both, x, y.t())
    assert "_turned0" in str(dict(passes(made.program, GPU))["turned_operands"])
    check_emulated(made)
