"""Compiles that begin before anybody asks: a backward's, while the program waits for its forward's."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_max_backend import reports
from torch_max_backend.base.errors import CompileError, UnsupportedOpError
from torch_max_backend.compile import speculative_backward, worker_pool
from torch_max_backend.compile.compiler import put_off
from torch_max_backend.compile.job import Job
from torch_max_backend.diagnostics import report

pytestmark = pytest.mark.sampled


class Pool:
    """Stands in for the compile pool: its compiles end when a test says so."""

    def __init__(self) -> None:
        self.futures = list[Future[Any]]()

    def submit(self, bytecode: bytes, extensions: list[Path]) -> Future[Any]:
        self.futures.append(Future())
        return self.futures[-1]

    def stop(self, future: Future[Any]) -> None:
        pass


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[Future[Any]]:
    """The compiles that began early."""
    stand_in = Pool()
    monkeypatch.setattr(speculative_backward, "pool_early", lambda target: stand_in)
    return stand_in.futures


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    torch._dynamo.reset()
    function = torch.compile(lambda x: x.sin() + 1, backend="max_backend", options={"cache_dir": str(tmp_path)})
    with put_off() as batch, torch.no_grad():
        function(torch.ones(3))
    return list(batch.jobs.values())


def test_who_misses_a_region_waits_for_it(compiles: list[Future[Any]], jobs: list[Job]) -> None:
    (job,) = jobs
    speculative_backward.begin(jobs)
    (compile,) = compiles
    compile.set_running_or_notify_cancel()
    speculative_backward.begin(jobs)  # as another process would: the region is locked
    assert len(compiles) == 1
    compile.set_result((b"artifact", 3.0))
    speculative_backward.wait([job.key, "another key"])
    entry = job.store.get(job.key)
    assert entry is not None and entry.blob.read_bytes() == b"artifact"
    assert speculative_backward.claim([job.key, "another key"]) == [3.0]
    assert speculative_backward.claim([job.key]) == []  # the second time it comes from the store
    speculative_backward.begin(jobs)  # nothing is locked any more
    assert len(compiles) == 2
    speculative_backward.wait([job.key])


@pytest.mark.parametrize("begun", [True, False])
def test_what_fails_or_has_not_begun_is_left_to_who_needs_it(
    compiles: list[Future[Any]], jobs: list[Job], begun: bool
) -> None:
    (job,) = jobs
    speculative_backward.begin(jobs)
    (compile,) = compiles
    if begun:
        compile.set_running_or_notify_cancel()
        compile.set_exception(CompileError("out of memory"))
    speculative_backward.wait([job.key])
    assert compile.cancelled() is not begun
    assert job.store.get(job.key) is None and speculative_backward.claim([job.key]) == []
    with job.store.locked([job.key], wait=False):
        pass


def test_an_artifact_that_cannot_be_saved_counts_for_nothing(
    compiles: list[Future[Any]], jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        speculative_backward, "save", lambda *saved: None
    )  # as a store without room does, after a warning
    speculative_backward.begin(jobs)
    compiles[0].set_running_or_notify_cancel()
    compiles[0].set_result((b"artifact", 3.0))
    speculative_backward.wait([jobs[0].key])
    assert speculative_backward.claim([jobs[0].key]) == []


def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return ((x @ weight).tanh() * x).square().mean()


def gradients(function: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 5), torch.randn(5, 5, requires_grad=True)
    value = function(x, weight)
    value.backward()
    assert weight.grad is not None
    return [value.detach(), weight.grad]


@pytest.mark.full
def test_a_backward_compiles_beside_its_forward(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun, submit = list[int](), worker_pool.CompilePool.submit

    def counted(self: worker_pool.CompilePool, *job: Any) -> Future[Any]:
        begun.append(self.workers[0].niceness)
        return submit(self, *job)

    monkeypatch.setattr(worker_pool.CompilePool, "submit", counted)
    report.clear()
    function = torch.compile(loss, backend="max_backend", options={"fallback": "error", "cache_dir": str(tmp_path)})
    torch.testing.assert_close(gradients(function), gradients(loss))
    assert begun == [0, worker_pool.NICENESS_EARLY]  # and none for the backward, when it was called
    for stats in (r.stats for r in reports()):
        assert (stats.regions, stats.hits) == (1, 0) and stats.compile_s > 1


@pytest.mark.filterwarnings("ignore:max_backend. torch runs")  # the compiler fails, so that nothing takes time
@pytest.mark.parametrize(("workers", "dynamic", "early_ones"), [(0, False, 1), (1, False, 0), (0, True, 0)])
def test_one_worker_or_symbolic_sizes_leave_a_backward_for_later(
    compiles: list[Future[Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    workers: int,
    dynamic: bool,
    early_ones: int,
) -> None:
    asked = list[Future[Any]]()

    def submit(self: worker_pool.CompilePool, *job: Any) -> Future[Any]:
        future: Future[Any] = Future()
        asked.append(future)
        future.set_exception(CompileError("none today"))
        return future

    monkeypatch.setattr(worker_pool.CompilePool, "submit", submit)
    options = {"cache_dir": str(tmp_path), "compile_workers": workers}
    function = torch.compile(loss, backend="max_backend", options=options, dynamic=dynamic)
    torch.testing.assert_close(gradients(function), gradients(loss))
    assert len(compiles) == early_ones
    assert len(asked) == 2  # forward and backward, when they were called


class Unknown(torch.autograd.Function):
    """Its backward has an op that no lowering knows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(gradient).real.sum() * gradient


def test_a_backward_that_is_refused_is_refused_when_it_is_called(compiles: list[Future[Any]], tmp_path: Path) -> None:
    options = {"fallback": "error", "cache_dir": str(tmp_path)}
    function = torch.compile(lambda x: Unknown.apply(x.sin()).sum(), backend="max_backend", options=options)
    value = function(torch.randn(3, 3, requires_grad=True))
    assert not compiles
    with pytest.raises(UnsupportedOpError, match="eigvals"):
        value.backward()
