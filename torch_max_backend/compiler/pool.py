"""Compiling in worker processes: a compiler crash costs an error message, not the user's program."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from max.graph import Module

from torch_max_backend.errors import CompileError

STDERR_KEPT = 6000
"""Characters of compiler output that an error message carries."""


@dataclass(frozen=True)
class Target:
    """What is compiled for: the host CPU, or GPUs by API, architecture and count."""

    api: str = ""
    arch: str = ""
    count: int = 0

    def spec(self) -> dict[str, object] | None:
        """The form that travels to a worker."""
        return {"api": self.api, "arch": self.arch, "count": self.count} if self.count else None


class Worker:
    """One compile process, started on first use and again after a crash."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.process: subprocess.Popen[str] | None = None
        self.folder = tempfile.TemporaryDirectory(prefix="torch-max-backend-")
        self.log = Path(self.folder.name) / "stderr"

    def compile(self, bytecode: bytes, extensions: list[Path]) -> bytes:
        """Compile one module.

        Raises:
            CompileError: The compiler refused or died; the message has its diagnostics.
        """
        folder = Path(self.folder.name)
        source, artifact = folder / "module.mlirbc", folder / "module.mef"
        source.write_bytes(bytecode)
        artifact.unlink(missing_ok=True)
        job = {
            "bytecode": str(source),
            "extensions": [str(p) for p in extensions],
            "artifact": str(artifact),
            "gpu": self.target.spec(),
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
            self.process = None
            raise CompileError(f"the compile process died (exit status {code}).{self._diagnostics(start)}")
        answer = json.loads(line)
        if not answer["ok"]:
            raise CompileError(f"MAX could not compile a region.{self._diagnostics(start)}\n{answer['error'].strip()}")
        return artifact.read_bytes()

    def _started(self) -> subprocess.Popen[str]:
        if self.process is None or self.process.poll() is not None:
            root = str(Path(__file__).resolve().parents[2])
            environment = dict(
                os.environ, PYTHONPATH=os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
            )
            # MAX keeps artifacts of its own, by a key that leaves out the names of graphs. The store is the only
            # cache that outlives this process: what it forgets is compiled again.
            environment.setdefault("MODULAR_MAX_CACHE_DIR", str(Path(self.folder.name) / "max"))
            with open(self.log, "w") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "torch_max_backend.compiler.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=environment,
                )
        return self.process

    def _diagnostics(self, start: int) -> str:
        text = self.log.read_text(errors="replace")[start:].strip()
        return f" Its output ends with:\n{text[-STDERR_KEPT:]}" if text else ""

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(OSError):
            self.folder.cleanup()


class CompilePool:
    """Up to ``size`` workers for one target; jobs wait for a free one."""

    def __init__(self, target: Target, size: int) -> None:
        self.size = size
        self._workers: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._all = [Worker(target) for _ in range(size)]
        for worker in self._all:
            self._workers.put(worker)
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="max-compile")

    def submit(self, module: Module, extensions: list[Path]) -> Future[tuple[bytes, float]]:
        """Schedule a module; the future gives the artifact and the seconds it took, or a :class:`CompileError`."""
        return self._threads.submit(self._run, module.mlir_module.bytecode, extensions)

    def _run(self, bytecode: bytes, extensions: list[Path]) -> tuple[bytes, float]:
        worker = self._workers.get()
        start = time.perf_counter()
        try:
            return worker.compile(bytecode, extensions), time.perf_counter() - start
        finally:
            self._workers.put(worker)

    def close(self) -> None:
        """End all workers."""
        for worker in self._all:
            worker.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


_pools: dict[tuple[Target, int], CompilePool] = {}
_lock = threading.Lock()


def pool_for(target: Target, workers: int = 0) -> CompilePool:
    """The process-wide pool of a target. ``workers=0`` means one per two cores: a compile uses a little over one."""
    size = workers or max(1, (os.cpu_count() or 2) // 2)
    with _lock:
        key = (target, size)
        if key not in _pools:
            _pools[key] = CompilePool(target, size)
        return _pools[key]


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
