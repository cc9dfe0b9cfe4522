"""Studies: who is slower, whose results are wrong, and that nobody is measured before another."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torch_max_backend
from torch_max_backend.base.errors import EvidenceError
from torch_max_backend.evidence import measuring, peak_memory
from torch_max_backend.evidence.cases import Case, load_cases
from torch_max_backend.evidence.settings import Settings
from torch_max_backend.evidence.study import Study, study

Made = Callable[[Callable[..., Any]], Callable[..., Any]]
X = torch.linspace(-2, 2, 64)
QUICK: dict[str, Any] = {"rounds": 8, "sample_s": 1e-3, "warm_up_s": 0.1}


def with_made(monkeypatch: pytest.MonkeyPatch, made: dict[str, Made], case: Any = None, **settings: Any) -> Study:
    """A study whose contenders are made by ``made`` instead of compilers."""
    monkeypatch.setattr(measuring, "compiled", lambda name, function: made.get(name, lambda f: f)(function))
    cases = {"sine": (torch.sin, (X,))} if case is None else [case]
    return study(cases, Settings(contenders=("eager", *made), **(QUICK | settings)), at=lambda text: None)


def slow(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        time.sleep(2e-3)
        return function(*args)

    return call


@pytest.mark.any_runner("contenders that are made up")
def test_a_slow_contender_has_an_interval_below_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = with_made(monkeypatch, {"inductor": slow}, items=64)
    ratio = found.speed_up(found.row("sine", "inductor"))
    assert ratio is not None and ratio.high < 0.5
    itself = found.speed_up(found.row("sine", "eager"))
    assert itself is not None and (itself.value, itself.low, itself.high) == (1.0, 1.0, 1.0)
    median = found.spread(found.row("sine", "inductor"))
    assert median is not None and found.rate(found.row("sine", "inductor")) == 64 / median["median"]
    assert all(len(row.wall) == 8 and row.warm_up["samples"] >= 1 for row in found.rows)
    assert not found.wrong


@pytest.mark.any_runner("contenders that are made up")
def test_a_wrong_contender_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found = with_made(monkeypatch, {"inductor": lambda f: lambda x: f(x) + (x > 1.9) * 0.25})
    row = found.row("sine", "inductor")
    assert row.problem.startswith("wrong results: the largest difference 0.25") and found.wrong == [row]
    assert row.difference["largest"] == pytest.approx(0.25) and 0 < row.difference["mean"] < 0.25
    assert row.wall, "it is timed all the same"
    assert found.speed_up(row) is None
    assert "| inductor |" in str(found) and "✗" in str(found)


@pytest.mark.any_runner("contenders that are made up")
def test_a_contender_that_raises_does_not_count_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: Any) -> Any:
        raise RuntimeError("not today")

    found = with_made(monkeypatch, {"inductor": broken, "max": lambda f: f})
    assert found.row("sine", "inductor").problem == "RuntimeError: not today"
    assert not found.row("sine", "max").problem and found.row("sine", "max").wall


@pytest.mark.any_runner("contenders that are made up")
def test_what_compiles_while_it_is_timed_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = iter([1, 3])
    monkeypatch.setattr(measuring, "_graphs", lambda: next(graphs))
    found = with_made(monkeypatch, {"inductor": lambda f: f})
    assert found.row("sine", "inductor").problem == "2 graph(s) were compiled while times were taken"
    assert not found.row("sine", "eager").problem


@pytest.mark.any_runner("eager")
def test_eager_must_run() -> None:
    case = Case("broken", lambda x: x @ x, (torch.ones(3, 4),))
    with pytest.raises(EvidenceError, match="case broken does not run in eager: RuntimeError"):
        study([case], Settings(contenders=("inductor",), **QUICK), at=lambda text: None)


@pytest.mark.any_runner("contenders that are made up")
def test_cold_calls_are_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(measuring, "flush_of", lambda device: lambda: flushed.append(1))
    with_made(monkeypatch, {"inductor": lambda f: f}, cold=True)
    assert len(flushed) == 2 * 8


@pytest.mark.any_runner("contenders that are made up")
def test_random_numbers_are_those_of_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("dropout", lambda x: nn.functional.dropout(x, 0.5), (X,))
    before = torch.random.get_rng_state()
    assert not with_made(monkeypatch, {"inductor": lambda f: f}, Case("sine", torch.sin, (X,))).wrong
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not with_made(monkeypatch, {"inductor": lambda f: f}, case).wrong


@pytest.mark.sampled
def test_this_backend_and_a_patched_model_in_training(models: str) -> None:
    settings = Settings(contenders=("eager", "max", "eager+patch"), training=True, **QUICK)
    found = torch_max_backend.study(load_cases(models + "mlp", "cpu"), settings, at=lambda text: None)
    row = found.row("models_to_measure:mlp", "max")
    assert not found.wrong
    assert row.notes[0].startswith("2 graph(s)"), "forward and backward"
    assert not any("islands" in note for note in row.notes)
    assert row.first_call_s is not None and row.difference["share"] <= 1


@pytest.mark.any_runner("memory of eager")
def test_peak_memory_of_a_process(monkeypatch: pytest.MonkeyPatch, models: str) -> None:
    task = {"origin": models + "mlp", "case": "models_to_measure:mlp", "contender": "eager", "training": False}
    found = peak_memory.measured(task)
    assert found["peak"] > 10_000_000 and found["peak"] >= found["over_inputs"]
    monkeypatch.setattr(peak_memory, "STATUS", peak_memory.STATUS / "nothing")
    assert found["of"] and peak_memory.measured(task)["problem"].startswith("not available")


@pytest.mark.full
@pytest.mark.own_processes
@pytest.mark.any_runner("memory of eager")
def test_peak_memory_is_measured_in_a_process(models: str) -> None:
    (case,) = load_cases(models + "mlp", "cpu")
    assert peak_memory.in_a_process(case, "eager", training=True)["peak"] > 10_000_000


@pytest.mark.any_runner("contenders that are made up")
def test_a_case_without_a_file_has_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    found = with_made(monkeypatch, {"inductor": lambda f: f}, memory=True)
    assert found.row("sine", "eager").memory["problem"].startswith("not available: the case is not from a file")
    assert "not available" in str(found)
