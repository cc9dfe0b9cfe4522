"""The other end of :mod:`benchmarks.worker`: starts such processes, gives them tasks, and survives their crashes."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Caches:
    """One folder for what torch, Triton, MAX and this package keep of compiles, so that it is known what was there."""

    folder: Path

    def environment(self, scratch: bool = False) -> dict[str, str]:
        """Variables for a process that shall use these caches.

        With ``scratch``, Inductor's choices go where nobody looks for them, while Triton's kernels are kept: they were
        made by processes that disturbed each other's measurements.
        """
        places = {
            "TORCHINDUCTOR_CACHE_DIR": "scratch" if scratch else "inductor",
            "TRITON_CACHE_DIR": "triton",
            "TORCH_MAX_BACKEND_CACHE_DIR": "max_backend",
            "MODULAR_CACHE_DIR": "max",
        }
        return {name: str(self.folder / place) for name, place in places.items()}

    def are_empty(self) -> bool:
        """Whether nothing was compiled with them yet."""
        return not self.folder.exists() or not any(self.folder.iterdir())


class WorkerFailed(Exception):
    """A task did not end well. ``at`` is the contender that was running; the message says what is known."""

    def __init__(self, message: str, at: str = "") -> None:
        super().__init__(message)
        self.at = at


@dataclass
class Worker:
    """A measuring process, started when it is first needed and again after it ended."""

    environment: dict[str, str]
    log: Path
    program: tuple[str, ...] = (sys.executable, "-m", "benchmarks.worker")
    process: subprocess.Popen[str] | None = None
    answers: int = -1
    pending: bytes = b""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def _start(self) -> subprocess.Popen[str]:
        reading, writing = os.pipe()
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.program, str(writing)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                pass_fds=[writing],
                start_new_session=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": paths, "MODULAR_TELEMETRY_ENABLED": "0", **self.environment},
            )
        os.close(writing)
        self.answers, self.pending = reading, b""
        return self.process

    def run(self, task: dict[str, Any], until: float) -> Any:
        """The result of a task.

        Args:
            until: Value of time.monotonic() at which the process is ended.

        Raises:
            WorkerFailed: The task raised, the process died, or time is over.
        """
        process = self.process
        if process is None or process.poll() is not None:
            self.stop()
            process = self._start()
        at = ""
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            self.stop()
            raise WorkerFailed(f"the process ended: {self._end_of_log()}") from None
        while True:
            line = self._line(until)
            if line is None or line == b"":
                self.stop()
                what = "took too long" if line is None else f"the process died ({_how(process)}): {self._end_of_log()}"
                raise WorkerFailed(what, at)
            message = json.loads(line)
            if "at" in message:
                at = message["at"]
            elif "error" in message:
                raise WorkerFailed(message["error"], at)
            else:
                return message["result"]

    def _line(self, until: float) -> bytes | None:
        """The next line of the answer; empty if there will be none, None if time is over."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.answers, selectors.EVENT_READ)
            while b"\n" not in self.pending:
                if not selector.select(max(0.0, until - time.monotonic())):
                    return None
                found = os.read(self.answers, 1 << 16)
                if not found:
                    return b""
                self.pending += found
        line, _, self.pending = self.pending.partition(b"\n")
        return line

    def _end_of_log(self) -> str:
        return " ".join(self.log.read_text(errors="replace")[-400:].split()) if self.log.exists() else ""

    def stop(self) -> None:
        """End the process and what it started."""
        with self._lock:
            process, self.process = self.process, None
            if process is None:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            os.close(self.answers)


def _how(process: subprocess.Popen[str]) -> str:
    code = process.wait()
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def side_by_side(
    tasks: Iterable[dict[str, Any]],
    workers: list[Worker],
    until: Callable[[], float],
    done: Callable[[dict[str, Any], Any], None],
) -> None:
    """Run tasks on several workers, each the next one that is left.

    Args:
        until: The latest end of a task that starts now; when it has passed, the rest is not begun.
        done: Told each task and its result, or the WorkerFailed that it ended with; one at a time.
    """
    waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    lock = threading.Lock()

    def serve(worker: Worker) -> None:
        while (end := until()) > time.monotonic():
            try:
                task = waiting.get_nowait()
            except queue.Empty:
                return
            result: Any
            try:
                result = worker.run(task, end)
            except WorkerFailed as error:
                result = error
            with lock:
                done(task, result)

    threads = [threading.Thread(target=serve, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # so that Ctrl-C is noticed
    finally:
        for worker in workers:
            worker.stop()
