"""Compiles that begin before anybody asks for them: a backward's, while the program waits for its forward's.

AOTAutograd hands over a backward when it is first called. It is known as soon as the forward is, so a process of its
own, which gives way to the others, has it by then. A compile is found by the keys of its regions; whoever misses
them in the store waits for it here.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from dataclasses import dataclass, field

from filelock import Timeout

from torch_max_backend.compile.job import Job, Lowered, lower, save
from torch_max_backend.compile.pending import taking_over
from torch_max_backend.compile.progress import about_seconds, wait_for
from torch_max_backend.compile.worker_pool import is_closing, pool_early, stop

log = logging.getLogger("torch_max_backend")


@dataclass(frozen=True)
class _Compile:
    lowered: Lowered
    future: Future[tuple[bytes, float]]
    over: Future[None] = field(default_factory=Future)
    """Done once the store has the artifact, or will not get it."""
    begun: float = field(default_factory=time.perf_counter)

    @property
    def keys(self) -> list[str]:
        return [job.key for job in self.lowered.jobs]

    def seconds_left(self) -> float:
        """An estimate."""
        earlier = self.lowered.jobs[0].store.compiles()
        about = about_seconds(earlier, self.lowered.kinds(), self.lowered.target.api)
        return about - (time.perf_counter() - self.begun)


_lock = threading.Lock()
_under_way: dict[str, _Compile] = {}
_compiled: dict[str, float] = {}
"""Seconds that the compiler took, by key, until somebody has asked for the region."""


def begin(jobs: list[Job]) -> None:
    """Lower ``jobs`` and give them to a worker, unless another process compiles one of them.

    Raises:
        NodeRefused: A lowering declined a node.
    """
    locks = ExitStack()
    try:
        locks.enter_context(jobs[0].store.locked([job.key for job in jobs], wait=False))
    except Timeout:
        return
    try:
        lowered = lower(jobs)
        log.info("compiling %s before they are needed", lowered.describe())
        future = pool_early(lowered.target).submit(lowered.bytecode, lowered.extensions)
    except BaseException:
        locks.close()
        raise
    compile = _Compile(lowered, future)
    with _lock:
        _under_way.update(dict.fromkeys(compile.keys, compile))
    future.add_done_callback(lambda _: _finish(compile, locks))


def _finish(compile: _Compile, locks: ExitStack) -> None:
    """Save what was compiled; runs in the thread of the worker, or in one that gives the compile up."""
    saved: list[str] = []
    seconds = 0.0
    try:
        artifact, seconds = compile.future.result()
        with taking_over:
            save(artifact, compile.lowered.jobs)
        saved = [job.key for job in compile.lowered.jobs if job.store.get(job.key) is not None]
    except CancelledError:
        pass
    except Exception as error:  # nobody waits: whoever needs the regions compiles them, and is told what is wrong
        if not is_closing():
            log.info("%s did not compile early: %s", compile.lowered.describe(), error)
    finally:
        with _lock:
            for key in compile.keys:
                _under_way.pop(key, None)  # without locks there may have been two compiles of a region
            _compiled.update(dict.fromkeys(saved, seconds / len(compile.keys)))
        locks.close()
        compile.over.set_result(None)


def wait(keys: Iterable[str]) -> None:
    """Wait for those of ``keys`` that are being compiled; what no worker has begun with is given up instead."""
    with _lock:
        compiles = {id(c): c for c in map(_under_way.get, keys) if c is not None}
    for compile in compiles.values():
        if compile.future.cancel():
            continue
        try:
            wait_for(compile.over, compile.lowered.describe(), compile.seconds_left())
        except BaseException:
            stop(compile.future)
            raise


def claim(keys: Iterable[str]) -> list[float]:
    """Seconds for each of ``keys`` that was compiled here and is asked for the first time."""
    with _lock:
        return [_compiled.pop(key) for key in set(keys) if key in _compiled]


def _forget_after_fork() -> None:
    """The parent's threads save what its workers compile."""
    global _lock
    _lock = threading.Lock()
    _under_way.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
