"""A program that is stopped while it compiles leaves no process, no half-written entry and nothing that blocks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.all_to_torch import patience
from torch_max_backend.compile.cache.store import FORMAT, Store
from torch_max_backend.compile.scratch_folder import PREFIX, ScratchFolder, remove_abandoned

PROGRAM = """
import sys, torch
def f(x):
    return (x.cos() + 1) * x
compiled = torch.compile(f, backend="max_backend", options={"fallback": "error", "compile": sys.argv[1]})
x = torch.linspace(-1, 1, 37)
torch.testing.assert_close(compiled(x), f(x))
"""

END = """
print("ended", flush=True)
"""

WAIT = """
from torch_max_backend import wait_for_compiles
print("waiting", flush=True)
assert wait_for_compiles(300)
"""


class Program:
    """Runs the program above, with a store and temporary files of its own, and finds all of its processes."""

    def __init__(self, folder: Path) -> None:
        self.mark, self.temporary, self.store = uuid.uuid4().hex, folder / "tmp", Store(folder / "cache")
        self.temporary.mkdir()
        self.environment = dict(
            os.environ,
            TEST_MARK=self.mark,
            TMPDIR=str(self.temporary),
            TORCH_MAX_BACKEND_CACHE_DIR=str(self.store.folder),
            TORCH_MAX_BACKEND_BEARTYPE="0",
        )
        self.environment.pop("MODULAR_MAX_CACHE_DIR", None)  # a cache of whole graphs: nothing would be compiled

    def start(self, text: str, compile: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", text, compile],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def processes(self) -> list[int]:
        """Process ids of everything that was started with this mark, directly or not."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if f"TEST_MARK={self.mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
        return found

    def wait_until(self, condition: Callable[[], object], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds} s"
            time.sleep(0.05)

    def is_compiling(self) -> bool:
        """Whether there is a module and a worker for it (whichever comes first)."""
        return any(self.temporary.glob(f"{PREFIX}*/module.mlirbc")) and len(self.processes()) >= 2


pytestmark = pytest.mark.own_processes


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path)
    yield program
    for process in program.processes():
        os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize(
    ("stop", "compile"),
    [
        pytest.param(
            stop,
            compile,
            id=f"{stop.name}-{compile}",
            marks=() if (stop, compile) == (signal.SIGTERM, "wait") else pytest.mark.full,  # each of these compiles
        )
        for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
        for compile in ("wait", "background")
    ],
)
def test_a_stopped_program(program: Program, stop: signal.Signals, compile: str) -> None:
    running = program.start(PROGRAM + WAIT, compile)
    if compile == "background":  # an interrupt before that may end up in torch
        assert running.stdout is not None and running.stdout.readline() == "waiting\n"
    program.wait_until(program.is_compiling, patience(200))
    running.send_signal(stop)
    _, errors = running.communicate(timeout=60)
    assert running.returncode != 0
    if stop is signal.SIGINT:
        assert "KeyboardInterrupt" in errors
    program.wait_until(lambda: not program.processes(), 10)
    assert program.store.records() == []
    assert not list((program.store.folder / FORMAT).glob("tmp/*"))
    if stop is signal.SIGINT:  # Python ended it in order
        assert not list(program.temporary.glob(f"{PREFIX}*"))
    if stop is signal.SIGTERM:  # as SIGKILL does
        return
    again = program.start(PROGRAM + WAIT, compile)  # nothing blocks it
    _, errors = again.communicate(timeout=400)
    assert again.returncode == 0, errors
    (record,) = program.store.records()
    assert program.store.get(record.key) is not None


@pytest.mark.full  # has a limit of 20 s, which the compiles of the ordinary run would break
def test_a_program_ends_without_its_background_compile(program: Program) -> None:
    running = program.start(PROGRAM + END, "background")
    assert running.stdout is not None and running.stdout.readline() == "ended\n"
    start = time.monotonic()
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 0, errors
    assert time.monotonic() - start < 20
    assert "failed" not in errors
    program.wait_until(lambda: not program.processes(), 10)
    assert not list(program.temporary.glob(f"{PREFIX}*"))


FORK = """
import os
from torch_max_backend.compile.worker_pool import pool_for
def g(x):
    return x.sin() * 3 - x
pool = next(iter(__import__("torch_max_backend.compile.worker_pool").compiler.pool._pools.values()))
del pool
child = os.fork()
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
compiled = torch.compile(g, backend="max_backend", options={"fallback": "error"})
torch.testing.assert_close(compiled(x), g(x))
"""


@pytest.mark.full
def test_a_forked_child_leaves_its_parents_files_alone(program: Program) -> None:
    running = program.start(PROGRAM + FORK, "wait")
    _, errors = running.communicate(timeout=400)
    assert running.returncode == 0, errors


@pytest.mark.any_runner("nothing is compiled")
def test_folders_of_ended_processes_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = ScratchFolder()
    text = (
        "from torch_max_backend.compile.scratch_folder import *\nprint(ScratchFolder().path, flush=True)\nos._exit(0)"
    )
    environment = dict(os.environ, TMPDIR=str(tmp_path))
    ended = Path(
        subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True).stdout.decode().strip()
    )
    assert ended.is_dir() and ended.parent == tmp_path
    assert remove_abandoned() == 0  # too young: its owner may not have locked it yet
    assert remove_abandoned(0.0) == 1
    assert not ended.exists()
    assert mine.path.exists()
    mine.delete()
    assert not mine.path.exists()
