"""Compiling in worker processes: a compiler crash costs an error message, not the user's program."""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from torch_max_backend.base.errors import CompileError
from torch_max_backend.base.target import Target
from torch_max_backend.compile.scratch_folder import ScratchFolder

NICENESS_EARLY = 5
"""How much a compile that nobody waits for yet gives way: its weight is a third of the others'."""
log = logging.getLogger("torch_max_backend")

LOST_FILE = "could not lower LIT to KGEN: No such file or directory"
"""What MAX 26.7 has been seen to say of a module that it compiles when it is asked again: of the first one for a GPU
on a machine without caches, while other processes compiled. Which file it misses is not known."""
STDERR_KEPT = 6000
"""Characters of compiler output that an error message carries."""


ENDS = "nothing is compiled any more: the program ends"


class Worker:
    """One compile process, started on first use and again after a crash."""

    def __init__(self, target: Target, niceness: int = 0) -> None:
        self.target, self.niceness = target, niceness
        self.process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()  # held where the process is started, stopped or forgotten
        self._closed = False
        self.folder = ScratchFolder()
        self.log = self.folder.path / "stderr"

    def compile(self, bytecode: bytes, extensions: list[Path]) -> bytes:
        """Compile one module; once more, in a new process, if MAX says :data:`LOST_FILE`.

        Raises:
            CompileError: The compiler refused or died; the message has its diagnostics.
        """
        try:
            return self._compile(bytecode, extensions)
        except CompileError as error:
            if LOST_FILE not in str(error):
                raise
            log.warning("MAX missed a file while it compiled (%s): it is started again and asked once more", LOST_FILE)
            with self._lock:
                self._end()
            return self._compile(bytecode, extensions)

    def _compile(self, bytecode: bytes, extensions: list[Path]) -> bytes:
        folder = self.folder.path
        source, artifact = folder / "module.mlirbc", folder / "module.mef"
        source.write_bytes(bytecode)
        artifact.unlink(missing_ok=True)
        job = {
            "bytecode": str(source),
            "extensions": [str(p) for p in extensions],
            "artifact": str(artifact),
            "target": self.target.spec(),
        }
        process = self._started()
        start = self.log.stat().st_size
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = process.wait()
            with self._lock:
                self.process = None
            raise CompileError(f"the compile process died (exit status {code}).{self._diagnostics(start)}")
        answer = json.loads(line)
        if not answer["ok"]:
            raise CompileError(f"MAX could not compile a region.{self._diagnostics(start)}\n{answer['error'].strip()}")
        return artifact.read_bytes()

    def _started(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._closed:
                raise CompileError(ENDS)
            if self.process is None or self.process.poll() is not None:
                self.process = self._start()
            return self.process

    def _start(self) -> subprocess.Popen[str]:
        root = str(Path(__file__).resolve().parents[2])
        environment = dict(
            os.environ, PYTHONPATH=os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        )
        # MAX keeps artifacts of its own, by a key that leaves out the names of graphs. The store is the only
        # cache that outlives this process: what it forgets is compiled again.
        environment.setdefault("MODULAR_MAX_CACHE_DIR", str(self.folder.path / "max"))
        with open(self.log, "w") as output:
            return subprocess.Popen(
                # -P: the folder that the program happens to run in may hold another torch_max_backend.
                [
                    *(sys.executable, "-P", "-m", "torch_max_backend.compile.worker"),
                    *(str(os.getpid()), str(self.niceness)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env=environment,
            )

    def _diagnostics(self, start: int) -> str:
        text = self.log.read_text(errors="replace")[start:].strip()
        return f" Its output ends with:\n{text[-STDERR_KEPT:]}" if text else ""

    def stop(self) -> None:
        """End the process, and with it the compile that is under way."""
        with self._lock:
            if self.process is not None:
                self.process.kill()

    def close(self) -> None:
        """End the process for good and delete its files."""
        with self._lock:
            self._closed = True
            self._end()
            self.folder.delete()

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass
class _Job:
    bytecode: bytes
    extensions: list[Path]
    future: Future[tuple[bytes, float]]


class CompilePool:
    """Up to ``size`` workers for one target; jobs wait for a free one.

    Every worker has a thread that serves it as long as the program runs: Linux ends a worker when the thread that
    started it ends. The threads are no reason for the program to go on.
    """

    def __init__(self, target: Target, size: int, niceness: int = 0) -> None:
        self.workers = [Worker(target, niceness) for _ in range(size)]
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._running: dict[Future[tuple[bytes, float]], Worker] = {}
        for worker in self.workers:
            threading.Thread(target=self._serve, args=(worker,), name="max-compile", daemon=True).start()

    def submit(self, bytecode: bytes, extensions: list[Path]) -> Future[tuple[bytes, float]]:
        """Schedule a module; the future gives the artifact and the seconds it took, or a :class:`CompileError`."""
        future: Future[tuple[bytes, float]] = Future()
        self._jobs.put(_Job(bytecode, extensions, future))
        return future

    def _serve(self, worker: Worker) -> None:
        while True:
            job = self._jobs.get()
            if not job.future.set_running_or_notify_cancel():
                continue
            self._running[job.future] = worker
            start = time.perf_counter()
            try:
                artifact = worker.compile(job.bytecode, job.extensions)
            except BaseException as error:  # whatever it is, somebody waits for it
                job.future.set_exception(error)
            else:
                job.future.set_result((artifact, time.perf_counter() - start))
            finally:
                del self._running[job.future]
            del job

    def stop(self, future: Future[tuple[bytes, float]]) -> None:
        """Give up a compile, if this pool has it."""
        if not future.cancel() and (worker := self._running.get(future)):
            worker.stop()

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.close()


_pools: dict[tuple[Target, int, int], CompilePool] = {}
_lock = threading.Lock()


def pool_for(target: Target, workers: int = 0) -> CompilePool:
    """The process-wide pool of a target. ``workers=0`` means one per two cores: a compile uses a little over one."""
    return _pool(target, workers or max(1, (os.cpu_count() or 2) // 2), 0)


def pool_early(target: Target) -> CompilePool:
    """The pool for what nobody waits for yet: one worker, which gives way to those of :func:`pool_for`."""
    return _pool(target, 1, NICENESS_EARLY)


def _pool(target: Target, size: int, niceness: int) -> CompilePool:
    key = (target, size, niceness)
    with _lock:
        if _closing:
            raise CompileError(ENDS)
        if key not in _pools:
            _pools[key] = CompilePool(*key)
        return _pools[key]


def stop(future: Future[tuple[bytes, float]]) -> None:
    """Give up a compile that nobody waits for any more, whichever pool has it."""
    for pool in list(_pools.values()):
        pool.stop(future)


_closing = False


def is_closing() -> bool:
    """Whether the interpreter is exiting, so that compiles which fail have a reason."""
    return _closing


@atexit.register
def close_pools() -> None:
    """End every worker; runs when the interpreter exits."""
    global _closing
    with _lock:
        _closing = True
        for pool in _pools.values():
            pool.close()
        _pools.clear()


def _forget_after_fork() -> None:
    """A forked child must not talk to its parent's workers."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
