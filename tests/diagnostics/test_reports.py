"""What ``reports()`` counts: kernels, launches, library calls by name, bytes, islands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_max_backend import reports
from torch_max_backend.diagnostics.report import GraphReport
from torch_max_backend.loops import small_products

F32 = 4


def report_of(function: Callable[..., Any], *inputs: Any, **options: Any) -> GraphReport:
    chosen = {"executor": "auto", "fallback": "error", **options}
    given = torch.compile(function, backend="max_backend", options=chosen, dynamic=False)(*inputs)
    torch.testing.assert_close(given, function(*inputs))
    return reports()[-1]


def test_everything_of_a_graph_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_products, "SMALL", 0)  # products are a library's

    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = torch.relu(x @ w)
        return torch.softmax(torch.bmm(x[None], w[None])[0], -1)

    report = report_of(block, torch.randn(16, 16), torch.randn(16, 16))
    assert report.library_calls == {"ATen aten.mm.default": 2, "ATen aten.bmm.default": 1}
    assert (report.kernels, report.launches) == (2, 3)  # the two relu are one kernel
    assert report.bytes_moved == 16 * 16 * F32 * (2 + 2 + 2)
    assert report.island_ops == {}
    line = report.summary()
    assert "2 kernels, 3 launches over 0.00614 MB" in line
    assert "3 library calls: 2 x ATen aten.mm.default, 1 x ATen aten.bmm.default" in line


def test_islands_are_counted_by_op() -> None:
    def mixed(x: torch.Tensor) -> torch.Tensor:
        return ((x * 2).flip(0).sin().flip(1) + 1).cumsum(0) * 3

    executed = ["aten.flip", "aten.cumsum"]
    with pytest.warns(UserWarning, match="torch runs"):
        report = report_of(mixed, torch.randn(4, 4), fallback="eager", torch_executed_ops=executed, min_block_size=1)
    assert report.island_ops == {"aten.flip.default": 2, "aten.cumsum.default": 1}
    assert "3 island op(s): 2 x aten.flip.default, 1 x aten.cumsum.default," in report.summary()
    assert len(report.programs) == report.stats.programs > 1
    assert report.launches == sum(p.launches for p in report.programs)


ROWS = torch.randn(1000, 64)


@pytest.mark.parametrize(
    ("function", "inputs", "moved"),
    [
        pytest.param(lambda x: x.sin(), (ROWS,), 2 * 64_000 * F32, id="read and written"),
        pytest.param(lambda x, y: x * y, (ROWS, torch.randn(64)), (2 * 64_000 + 64) * F32, id="a row for all"),
        pytest.param(lambda x: x[10:30].sin(), (ROWS,), 2 * 20 * 64 * F32, id="a slice"),
        pytest.param(lambda x: x[::2].sin(), (ROWS,), 2 * 500 * 64 * F32, id="every other row"),
        pytest.param(
            lambda x, i: x[i].sin(), (ROWS, torch.tensor([5, 7, 5])), 2 * 3 * 64 * F32 + 3 * 8, id="rows of a table"
        ),
        pytest.param(lambda x: x.sum(), (ROWS[:4],), (256 + 1) * F32, id="a sum"),
        pytest.param(lambda x: x - x.mean(-1, keepdim=True), (ROWS,), 2 * 64_000 * F32, id="read twice"),
        pytest.param(lambda x: torch.nn.functional.pad(x, (1, 1)), (ROWS[:4],), (256 + 264) * F32, id="padded"),
        pytest.param(
            lambda x: torch.nn.functional.avg_pool2d(x, 3, 1, 1), (ROWS.view(10, 1, 80, 80),), 2 * 64_000 * F32,
            id="windows that overlap",
        ),
        pytest.param(lambda x: x.expand(100, 64).sin(), (ROWS[:1],), (64 + 6400) * F32, id="an expanded tensor"),
        pytest.param(lambda x: torch.relu(x).to(torch.bfloat16), (ROWS,), 64_000 * (F32 + 2), id="another dtype"),
    ],
)  # fmt: skip
def test_bytes_are_what_the_loops_reach(function: Callable[..., Any], inputs: tuple[Any, ...], moved: int) -> None:
    assert report_of(function, *inputs).bytes_moved == moved
