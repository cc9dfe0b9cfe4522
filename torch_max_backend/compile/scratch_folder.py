"""Folders for the files of one process, which do not outlast it by much.

A process that is killed cannot delete its folder. So it holds a lock inside, which the operating system frees, and
the next process that makes such a folder deletes those that nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PREFIX = "torch-max-backend-"
_NEW_S = 60.0
"""A folder younger than this may be one that is not locked yet."""


class ScratchFolder:
    """A temporary folder, locked by this process. It is deleted by :meth:`delete`, or after the process has ended."""

    def __init__(self) -> None:
        remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._owner = os.getpid()

    def delete(self) -> None:
        """Delete the folder; in a forked child, which does not own it, do nothing."""
        if self._owner == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._owner = 0


def remove_abandoned(age: float = _NEW_S) -> int:
    """Delete folders older than ``age`` seconds whose process has ended; returns how many there were."""
    removed = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime < age:
                continue
            lock = os.open(folder / "lock", os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                removed += 1
            finally:
                os.close(lock)
    return removed
