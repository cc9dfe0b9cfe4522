"""What the user waits for, shown on a terminal: a line with a clock for each wait, one below the one it is part of."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SOON_S = 1.0
"""After how many seconds a wait is shown that is often shorter."""


class _Lines:
    """The lines that are on the terminal. A terminal has one such display at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.progress: Any = None
        self.tasks: dict[object, Any] = {}

    def show(self, wait: object, text: str) -> None:
        from rich.console import Console  # a quarter of a second, which a program without a terminal need not wait
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self.lock:
            if self.progress is None:
                columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
                self.progress = Progress(*columns, console=Console(stderr=True), transient=True)
                self.progress.start()
            self.tasks[wait] = self.progress.add_task(text, total=None)

    def hide(self, wait: object) -> None:
        with self.lock:
            task = self.tasks.pop(wait, None)
            if task is None:
                return
            if not self.tasks:
                self.progress.stop()
                self.progress = None
            else:
                self.progress.remove_task(task)


_lines = _Lines()


@contextmanager
def waiting(text: str, after: float = 0.0) -> Iterator[None]:
    """Show ``text`` with a spinner and the elapsed time until the block ends.

    Nothing is shown where standard error is no terminal, nor of other threads than the main one: nobody waits there.

    Args:
        after: How many seconds the block may take before anything is shown.
    """
    if not sys.stderr.isatty() or threading.current_thread() is not threading.main_thread():
        yield
        return
    wait = object()
    timer = threading.Timer(after, _lines.show, (wait, text)) if after else None
    try:
        if timer is None:
            _lines.show(wait, text)
        else:
            timer.daemon = True
            timer.start()
        yield
    finally:
        if timer is not None:
            timer.cancel()
            timer.join()  # it may be about to show the line
        _lines.hide(wait)
