"""What the backend compiles while the program goes on: futures to wait for, and the lock for what must be finished.

Imports neither torch nor MAX, so that whoever only asks does not pay for them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, nullcontext

from torch_max_backend.base.waiting import waiting

_pending: set[Future[None]] = set()
taking_over = threading.Lock()
"""Held while a thread saves, loads and hands over what was compiled; the program does not end in the middle of it."""

_deferred = 0


@contextmanager
def deferring() -> Iterator[None]:
    """Note that compiles are put off inside the block."""
    global _deferred
    _deferred += 1
    try:
        yield
    finally:
        _deferred -= 1


def is_deferring() -> bool:
    """Whether compiles are being put off."""
    return _deferred > 0


def under_way() -> Future[None]:
    """A future that :func:`wait_for_compiles` waits for, to be given to :func:`over`."""
    future: Future[None] = Future()
    _pending.add(future)
    return future


def over(future: Future[None]) -> None:
    """What ``future`` stands for has ended, well or not."""
    _pending.discard(future)
    future.set_result(None)


def wait_for_compiles(timeout: float | None = None) -> bool:
    """Wait until nothing is compiled in the background any more, at most ``timeout`` seconds; whether that is so.

    A program that ends does not wait: what is not compiled by then is given up.
    """
    end = None if timeout is None else time.monotonic() + timeout
    with waiting("Waiting for compiles in the background") if _pending else nullcontext():
        while pending := list(_pending):  # what ends may have begun something else
            left = None if end is None else end - time.monotonic()
            if (left is not None and left < 0) or wait(pending, left).not_done:
                return False
    return True
