"""What is shown of a wait: on a terminal alone, and where somebody waits."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from torch_max_backend import wait_for_compiles
from torch_max_backend.base.waiting import waiting
from torch_max_backend.compile import pending
from torch_max_backend.compile.cache.store import Store
from torch_max_backend.compile.program_libraries import LibraryJob
from torch_max_backend.compile.stats import CompileStats

pytestmark = pytest.mark.any_runner("no op is run")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> _Terminal:
    """Standard error, as the module sees it: pytest puts its own in place before each test."""
    monkeypatch.setenv("TERM", "xterm")
    terminal = _Terminal()
    monkeypatch.setattr("torch_max_backend.base.waiting.sys", SimpleNamespace(stderr=terminal))
    monkeypatch.setattr("rich.console.Console", lambda stderr: Console(file=terminal))
    return terminal


def later(action: Callable[[], None]) -> None:
    threading.Timer(0.3, action).start()


def test_a_wait_is_shown_on_a_terminal(shown: _Terminal) -> None:
    with waiting("Something takes long"):
        pass
    assert "Something takes long" in shown.getvalue()


def test_nothing_is_shown_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("Something takes long"):
        pass
    assert capsys.readouterr().err == ""


def test_nothing_is_shown_of_another_thread(shown: _Terminal) -> None:
    def work() -> None:
        with waiting("Something takes long"):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert shown.getvalue() == ""


def job(store: Store, build: Callable[[], bytes]) -> LibraryJob:
    return LibraryJob({"source": "s"}, "library", build, store, kernels=3)


def test_kernels_that_are_compiled_are_shown_and_loaded_ones_not(shown: _Terminal, tmp_path: Path) -> None:
    store = Store(tmp_path)
    job(store, lambda: b"code").done(CompileStats())
    assert "Mojo compiles 3 kernel(s)" in shown.getvalue()
    shown.truncate(0)
    job(store, lambda: b"code").done(CompileStats())
    assert "Mojo" not in shown.getvalue()


def test_another_process_that_is_waited_for_is_shown(shown: _Terminal, tmp_path: Path) -> None:
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with Store(tmp_path).locked(["abcd"]):
            held.set()
            free.wait()

    threading.Thread(target=hold).start()
    held.wait()
    later(free.set)
    with Store(tmp_path).locked(["abcd"]):
        assert "Waiting for another process" in shown.getvalue()


def test_compiles_in_the_background_are_shown_where_they_are_waited_for(shown: _Terminal) -> None:
    done = pending.under_way()
    later(lambda: pending.over(done))
    begin = time.perf_counter()
    assert wait_for_compiles()
    assert time.perf_counter() - begin > 0.2
    assert "Waiting for compiles in the background" in shown.getvalue()
