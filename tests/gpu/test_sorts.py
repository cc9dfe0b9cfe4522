"""Sorts by generated kernels on a GPU, against eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.codegen.test_sorted_rows import DTYPES, numbers, sorting, wanting_values
from tests.gpu.test_grid_programs import agrees, compiled
from tests.support.grid_programs import moved, on_gpu
from torch_max_backend import reports
from torch_max_backend.loops.rules import rank, sort

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

ROWS = [
    ((4096, 32), torch.float32, -1, False),
    ((131072, 7), torch.int64, -1, True),
    ((64, 1024, 32), torch.float32, 1, False),
    ((1000, 200), torch.bfloat16, -1, True),
    ((20000, 129), torch.float16, -1, False),
    ((300_001, 3), torch.bool, 1, True),
    ((257, 4096), torch.float32, -1, False),
    ((100, 2048, 3), torch.float64, 1, True),
    ((2, 4001), torch.int32, 1, False),
    ((1, 2), torch.uint8, 1, False),
    ((5, 1), torch.float32, 1, False),
    ((0, 5), torch.int8, 1, False),
    ((5, 0), torch.int16, 1, False),
    ((70_000, 64), torch.int16, 1, False),
    ((33, 1000), torch.bfloat16, 0, False),
]


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_rows(tmp_path: Path, rows: tuple[tuple[int, ...], torch.dtype, int, bool]) -> None:
    """To the bit but for those of NaN, also of inputs that do not begin where vectors do."""
    shape, dtype, dim, descending = rows
    x = numbers(*shape, dtype=dtype)
    (run,) = on_gpu([sorting(x, dim, descending).written()], tmp_path)
    wanted = x.sort(dim=dim, descending=descending, stable=True)
    for shift in (0, 1):
        values, places = (y.cpu() for y in run(moved(x, shift)))
        assert torch.equal(places, wanted.indices)
        torch.testing.assert_close(values, wanted.values, rtol=0, atol=0, equal_nan=True)
        if dtype.is_floating_point:
            assert torch.equal(values.signbit() & ~values.isnan(), wanted.values.signbit() & ~wanted.values.isnan())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_only_values(tmp_path: Path, dtype: torch.dtype) -> None:
    x = numbers(2000, 100, dtype=dtype)
    made = [wanting_values(lambda x: sort.sort(x, 1, True), x), wanting_values(lambda x: sort.sort(x, 0), x)]
    wanted = [x.sort(dim=1, descending=True).values, x.sort(dim=0).values]
    if dtype is not torch.bool:
        made += [wanting_values(lambda x: rank.kthvalue(x, 50), x), wanting_values(lambda x: rank.topk(x, 9), x)]
        wanted += [x.kthvalue(50).values, x.topk(9).values]
    for run, want in zip(on_gpu([m.written() for m in made], tmp_path), wanted, strict=True):
        torch.testing.assert_close(run(x.cuda())[0].cpu(), want, rtol=0, atol=0, equal_nan=True)


def test_compiled_functions() -> None:
    """Without NaN that have a sign: eager has some of them before all numbers on a GPU, and behind them on a CPU."""
    for x in (numbers(500, 130), numbers(130, 500).t(), numbers(500, 130)[:, ::2], numbers(8, 60, 11)):
        x.masked_fill_(x.isnan(), float("nan"))
        agrees(lambda x: torch.sort(x, stable=True), x)
        agrees(lambda x: torch.sort(x, 1, True), x)
        agrees(lambda x: (lambda v, i: (v * 2, i + 1))(*(x * 2 + 1).sort(stable=True, dim=0)), x)
        agrees(lambda x: (x.argsort(dim=-1, stable=True), x.median(-1).values, x.topk(7, 0).values), x.nan_to_num(3.0))
    agrees(lambda x: x.copy_(x.sort(1).values), numbers(500, 130).nan_to_num(3.0))


def test_no_library_is_called() -> None:
    compiled(lambda x: torch.sort(x))(torch.randn(400, 300, device="cuda"))
    assert [c for r in reports() for p in r.programs for c in p.library_calls] == []


def test_a_graph_records_a_sort() -> None:
    run, x = compiled(lambda x: torch.sort(x, -1)), torch.randn(300, 1000, device="cuda")
    run(x)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        found = run(x)
    x.copy_(torch.randn(300, 1000))
    graph.replay()
    torch.testing.assert_close(tuple(found), tuple(torch.sort(x, -1)), rtol=0, atol=0)
