"""What the user waits for, shown on a terminal: a line with a clock."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show ``text`` with a spinner and the elapsed time until the block ends.

    Nothing is shown where standard error is no terminal, nor of other threads than the main one: nobody waits there.
    """
    if not sys.stderr.isatty() or threading.current_thread() is not threading.main_thread():
        yield
        return
    from rich.console import Console  # a quarter of a second, which a program without a terminal need not wait
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(text, total=None)
        yield
