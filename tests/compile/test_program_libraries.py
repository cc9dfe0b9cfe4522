"""Libraries of programs that are begun with before anybody asks for them, and backwards that are planned so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_max_backend import reports
from torch_max_backend.base.errors import CompileError
from torch_max_backend.compile import program_libraries, programs
from torch_max_backend.compile.cache.store import Store
from torch_max_backend.compile.program_libraries import LibraryJob, begin
from torch_max_backend.compile.stats import CompileStats
from torch_max_backend.diagnostics import report

pytestmark = pytest.mark.any_runner("programs without a graph")

LONGEST = 30
"""Seconds until something that hangs is taken for that."""


def job(folder: Path, name: str, build: Callable[[], bytes]) -> LibraryJob:
    return LibraryJob({"source": name}, "library", build, Store(folder), kernels=2)


def test_libraries_are_compiled_side_by_side(tmp_path: Path) -> None:
    meeting = threading.Barrier(3, timeout=LONGEST)

    def build() -> bytes:
        meeting.wait()
        return b"kernels"

    jobs = [job(tmp_path, f"s{k}", build) for k in range(3)]
    assert begin(jobs, at_once=3)
    stats = CompileStats()
    for j in jobs:
        path, _ = j.done(stats)
        assert path.read_bytes() == b"kernels"
    assert stats.compile_s > 0 and stats.hits == 0
    assert not begin(jobs, at_once=3)  # the store has them
    jobs[0].done(stats)
    assert stats.hits == 1


def test_no_more_than_asked_for_are_compiled_at_once(tmp_path: Path) -> None:
    lock, here, most = threading.Lock(), 0, 0

    def build() -> bytes:
        nonlocal here, most
        with lock:
            here += 1
            most = max(most, here)
        threading.Event().wait(0.01)
        with lock:
            here -= 1
        return b"kernels"

    jobs = [job(tmp_path, f"s{k}", build) for k in range(8)]
    begin(jobs, at_once=2)
    for j in jobs:
        j.done(CompileStats())
    assert most <= 2


def test_who_asks_for_a_library_is_told_what_is_wrong_with_it(tmp_path: Path) -> None:
    def build() -> bytes:
        raise CompileError("no such function")

    broken = job(tmp_path, "s", build)
    begin([broken], at_once=1)
    with pytest.raises(CompileError, match="no such function"):
        broken.done(CompileStats())
    assert not program_libraries._begun


def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return ((x @ weight).tanh() * x).square().mean()


def step(function: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(5, 5, generator=generator), torch.randn(5, 5, generator=generator).requires_grad_()
    value = function(x, weight)
    value.backward()
    assert weight.grad is not None
    return [value.detach(), weight.grad]


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every program that is planned."""
    found: list[Any] = []
    plan = programs.schedule

    def noted(program: Any, machine: Any) -> Any:
        found.append(program)
        return plan(program, machine)

    monkeypatch.setattr(programs, "schedule", noted)
    return found


@pytest.mark.parametrize("workers", [0, 1])
def test_a_backward_is_planned_once_while_its_forward_is_compiled(
    planned: list[Any], tmp_path: Path, workers: int
) -> None:
    options = {"fallback": "error", "executor": "program", "cache_dir": str(tmp_path), "compile_workers": workers}
    report.clear()
    torch._dynamo.reset()
    function = torch.compile(loss, backend="max_backend", options=options)
    before = list[int]()

    def forward(*args: torch.Tensor) -> torch.Tensor:
        value = function(*args)
        before.append(len(planned))
        return value

    torch.testing.assert_close(step(forward), step(loss))
    assert before == [1 if workers == 1 else 2]
    assert len(planned) == 2
    assert [(r.stats.programs, r.stats.hits) for r in reports()] == [(1, 0), (1, 0)]
    assert all(r.stats.compile_s > 0 for r in reports())
    assert not programs._ahead and not program_libraries._begun


def test_a_backward_is_planned_again_under_other_settings(
    planned: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"fallback": "error", "executor": "program", "cache_dir": str(tmp_path)}
    torch._dynamo.reset()
    function = torch.compile(lambda x: x.sin() * 2, backend="max_backend", options=options)
    x = torch.randn(6, 5, requires_grad=True)
    value = function(x)
    assert len(planned) == 2 and len(programs._ahead) == 1
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    value.backward(torch.ones(6, 5))
    assert x.grad is not None
    torch.testing.assert_close(x.grad, x.detach().cos() * 2)
    assert len(planned) == 3
    programs._ahead.clear()


def test_a_warm_forward_leaves_its_backward_alone(planned: list[Any], tmp_path: Path) -> None:
    options = {"fallback": "error", "executor": "program", "cache_dir": str(tmp_path)}
    for expected in (2, 4):
        torch._dynamo.reset()
        torch.testing.assert_close(step(torch.compile(loss, backend="max_backend", options=options)), step(loss))
        assert len(planned) == expected
