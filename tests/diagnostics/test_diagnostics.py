"""What the user is told: when torch stops compiling a function, and how long a compile may take."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torch_max_backend.base.errors import CompileError
from torch_max_backend.compile import compiler as compile_module
from torch_max_backend.compile import progress
from torch_max_backend.compile.compiler import put_off
from torch_max_backend.compile.progress import FIXED_S, PER_KIND_S, about_seconds, wait_for
from torch_max_backend.diagnostics import recompiles
from torch_max_backend.frontend.prebuild import regions_of


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "torch_max_backend")
    recompiles._told.clear()
    return caplog


def told(log: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in log.records if "and stops there" in r.getMessage()]


# -- the recompile limit -------------------------------------------------------------------------------------------
@pytest.mark.any_runner("Dynamo's limit, which no backend sees")
def test_the_recompile_limit_is_told_once_with_the_guard(log: pytest.LogCaptureFixture) -> None:
    def lengthened(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    def with_another_backend(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    ours = torch.compile(lengthened, backend="max_backend", dynamic=False)
    theirs = torch.compile(with_another_backend, backend="eager", dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2), put_off():
        for size in (3, 4):
            ours(torch.ones(size))
        assert not told(log)
        for size in (3, 4, 5, 6, 7):
            torch.testing.assert_close(ours(torch.ones(size)), torch.full((size,), 3.0))
            theirs(torch.ones(size))
    (message,) = told(log)
    assert "'lengthened'" in message and " 2 times" in message
    assert "size mismatch at index 0" in message
    assert "dynamic=True" in message


@pytest.mark.any_runner("Dynamo's limit, which no backend sees")
def test_a_torch_that_words_it_differently_is_not_understood(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = told.__code__
    monkeypatch.setattr(recompiles, "function_compiled_now", lambda: code)
    recompiles.watch()
    torch_log = logging.getLogger("torch._dynamo.convert_frame")
    torch_log.warning("torch._dynamo hit config.%s", "some_limit")
    torch_log.warning("torch._dynamo hit config.new_limit")
    torch_log.warning("something else")
    assert not told(log)
    torch_log.warning("torch._dynamo hit config.%s (%s) %s %s", "some_limit", 8, "'f'", "a guard")
    assert "'f' 8 times" in told(log)[0]


# -- how long it may take ------------------------------------------------------------------------------------------
@pytest.mark.any_runner("an estimate, and how it is shown")
def test_an_estimate_is_scaled_by_earlier_compiles() -> None:
    rule = FIXED_S + 4 * PER_KIND_S
    assert about_seconds([], 4, "") == rule
    twice = [{"seconds": 2 * (FIXED_S + PER_KIND_S), "kinds": 1, "api": ""}] * 3
    other = [{"seconds": 900.0, "kinds": 1, "api": "cuda"}, {"api": ""}, {"seconds": "long", "kinds": 1, "api": ""}]
    assert about_seconds(other + twice, 4, "") == pytest.approx(2 * rule)
    assert about_seconds([*twice, {"seconds": 500.0, "kinds": 1, "api": ""}], 4, "") == pytest.approx(2 * rule)


@pytest.mark.any_runner("an estimate, and how it is shown")
def test_elsewhere_than_on_a_terminal_there_are_log_lines(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "REPORT_EVERY_S", 0.01)
    future: Future[int] = Future()
    seen = []

    def finish(*_: Any) -> None:
        seen.append(log.messages[-1])
        if "still compiling" in log.messages[-1] and not future.done():
            future.set_result(3)

    monkeypatch.setattr(progress.log, "info", lambda *a: (logging.Logger.info(progress.log, *a), finish()))
    assert wait_for(future, "1 region(s), 5 ops", 12.3) == 3
    assert seen[0] == "compiling 1 region(s), 5 ops, about 12 s"
    assert "of about 12" in seen[1]
    assert capsys.readouterr().err == ""


@pytest.mark.any_runner("an estimate, and how it is shown")
def test_a_terminal_shows_the_estimate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    from rich.console import Console

    shown = Console(force_terminal=True, width=100, record=True)
    monkeypatch.setattr("torch_max_backend.base.waiting.sys", SimpleNamespace(stderr=Terminal()))
    monkeypatch.setattr("rich.console.Console", lambda **_: shown)
    with progress.compiling("1 region(s), 5 ops", 43.0):
        pass
    assert "MAX compiles 1 region(s), 5 ops, about 45 s" in shown.export_text()


# -- one compile for equal regions ---------------------------------------------------------------------------------
def test_equal_regions_of_a_graph_are_one_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    submitted = []

    def submit(lowered: Any, options: Any) -> Any:
        submitted.append(lowered)
        future: Future[Any] = Future()
        future.set_exception(CompileError("not compiled"))
        return future

    def twice(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = (x.sin() * 2 + 1).flip(0)
        return x

    monkeypatch.setattr(compile_module, "submit", submit)
    options = {"torch_executed_ops": ["aten.flip"], "min_block_size": 1, "cache_dir": str(tmp_path)}
    x = torch.ones(4)
    batch = regions_of(lambda: torch.compile(twice, backend="max_backend", options=options)(x), "cpu")
    torch.testing.assert_close(torch.compile(twice, backend="max_backend", options=options)(x), twice(x))
    (lowered,) = submitted
    assert len(lowered.jobs) == 1
    assert len(batch.looked_up) == 3
    assert len(batch.jobs) == 1
