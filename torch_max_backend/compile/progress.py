"""What is being compiled, shown while the user waits: a line with a clock on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from torch_max_backend.base.waiting import waiting

log = logging.getLogger("torch_max_backend")

FIXED_S, PER_KIND_S = 9.0, 0.5
"""What MAX 26.7 takes on two cores: for any module, and for each different op in it."""
LATEST = 9
"""How many earlier compiles count."""
REPORT_EVERY_S = 30.0

T = TypeVar("T")


def about_seconds(earlier: Iterable[Mapping[str, Any]], kinds: int, api: str) -> float:
    """How long a module with ``kinds`` different ops may take, from earlier compiles for the same API.

    The rule of thumb (a fixed cost and one for each kind) is scaled by the median of what the latest compiles took in
    proportion to it.
    """
    ratios = [
        c["seconds"] / (FIXED_S + PER_KIND_S * c["kinds"])
        for c in earlier
        if c.get("api") == api and isinstance(c.get("seconds"), int | float) and isinstance(c.get("kinds"), int)
    ]
    return (statistics.median(ratios[-LATEST:]) if ratios else 1.0) * (FIXED_S + PER_KIND_S * kinds)


def compiling(text: str, about: float = 0.0) -> AbstractContextManager[None]:
    """Show what MAX compiles, and an estimate, as :func:`waiting`."""
    return waiting(f"MAX compiles {text}" + (f", about {_round(about)} s" if about else ""))


def wait_for(future: Future[T], text: str, about: float, show: bool = True) -> T:
    """The result of a compile; until it is there, say what is compiled and how long that may take.

    Args:
        show: Whether to write on a terminal, where the user waits.
    """
    start = time.perf_counter()
    log.info("compiling %s, about %s s", text, _round(about))
    with compiling(text, about) if show else nullcontext():
        while True:
            try:
                return future.result(REPORT_EVERY_S)
            except TimeoutError:
                if future.done():
                    return future.result()
                log.info(
                    "still compiling %s after %.0f s of about %s", text, time.perf_counter() - start, _round(about)
                )


def _round(seconds: float) -> int:
    """To two digits at most: it is an estimate."""
    return max(1, round(seconds) if seconds < 20 else round(seconds / 5) * 5)
