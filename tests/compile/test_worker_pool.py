"""What a compile process does when MAX fails: once more for what passes, at once for everything else."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from torch_max_backend.base.errors import CompileError
from torch_max_backend.base.target import Target
from torch_max_backend.compile.worker_pool import LOST_FILE, Worker


@pytest.fixture
def worker() -> Worker:
    return Worker(Target())


def fail(worker: Worker, monkeypatch: pytest.MonkeyPatch, *messages: str) -> list[int | None]:
    """Have compiles fail with these messages, then succeed; the processes that were asked."""
    left, asked = list(messages), list[int | None]()

    def compile_(bytecode: bytes, extensions: list[Path]) -> bytes:
        asked.append(worker._started().pid)
        if left:
            raise CompileError(left.pop(0))
        return bytecode

    monkeypatch.setattr(worker, "_compile", compile_)
    return asked


def test_a_missed_file_is_asked_for_once_more(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = fail(worker, monkeypatch, f"error: {LOST_FILE}")
    with caplog.at_level(logging.WARNING, "torch_max_backend"):
        assert worker.compile(b"module", []) == b"module"
    assert len(set(asked)) == 2, "by a new process"
    assert LOST_FILE in caplog.text
    worker.close()


@pytest.mark.parametrize("messages", [("error: no such op",), (LOST_FILE, LOST_FILE)], ids=["another", "twice"])
def test_other_failures_are_raised(worker: Worker, monkeypatch: pytest.MonkeyPatch, messages: tuple[str, ...]) -> None:
    asked = fail(worker, monkeypatch, *messages)
    with pytest.raises(CompileError, match=messages[-1]):
        worker.compile(b"module", [])
    assert len(asked) == len(messages)
    worker.close()
