"""What is shown of a wait: on a terminal alone, and where somebody waits."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from torch_max_backend import wait_for_compiles
from torch_max_backend.base import waiting as waiting_module
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


def test_a_wait_inside_of_another_has_a_line_of_its_own(shown: _Terminal) -> None:
    """A terminal has one display at a time; what ends takes its line along."""
    with waiting("The whole"):
        with waiting("A [part]"):
            progress = waiting_module._lines.progress
            assert [task.description for task in progress.tasks] == ["The whole", "A [part]"]
        assert [task.description for task in progress.tasks] == ["The whole"]
        assert waiting_module._lines.progress is progress
    assert waiting_module._lines.progress is None
    assert "A [part]" in shown.getvalue(), "brackets are no markup"


def test_a_wait_that_is_mostly_short_is_shown_when_it_is_long(shown: _Terminal) -> None:
    with waiting("Soon over", after=60):
        pass
    assert shown.getvalue() == ""
    with waiting("Not over", after=0.05):
        until = time.perf_counter() + 10
        while "Not over" not in shown.getvalue() and time.perf_counter() < until:
            time.sleep(0.01)
    assert "Not over" in shown.getvalue()


def test_a_wait_that_an_error_ends_leaves_nothing(shown: _Terminal) -> None:
    with pytest.raises(ZeroDivisionError), waiting("The whole"), waiting("A part", after=60):
        raise ZeroDivisionError
    assert waiting_module._lines.progress is None and not waiting_module._lines.tasks


def test_a_long_trace_is_shown(shown: _Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch.compile does before anything is compiled."""
    texts: list[str] = []

    @contextmanager
    def noted(text: str, after: float = 0.0) -> Iterator[None]:
        texts.append(f"{text}, after {after} s")
        yield

    monkeypatch.setattr("torch_max_backend.backend.waiting", noted)
    torch.compile(lambda x: x.sin() + 1, backend="max_backend", options={"cache": False})(torch.ones(3))
    assert texts[0] == "PyTorch traces a function, after 1.0 s"
    assert texts[1].startswith("Lowering a graph of ") and texts[1].endswith("nodes, after 1.0 s")


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
