"""Calls until the time of a call has settled."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

WINDOW = 5
TOLERANCE = 0.05
LIMIT_S = 10.0
SAMPLE_S = 0.002
CRITERION = f"the medians of two successive windows of {WINDOW} samples differ by at most {TOLERANCE:.0%}"


@dataclass(frozen=True)
class WarmUp:
    """How a warm-up ended. ``change`` is the relative difference of the last two windows' medians."""

    samples: int
    seconds: float
    stable: bool
    change: float


def warm_up(
    sample: Callable[[], float], limit_s: float = LIMIT_S, now: Callable[[], float] = time.perf_counter
) -> WarmUp:
    """Take samples until the medians of two successive windows differ by at most ``TOLERANCE``.

    Args:
        sample: Makes some calls, and gives the seconds of one.
        limit_s: After so many seconds it ends all the same, and is not stable.
    """
    begin, values, change = now(), [], float("inf")
    while True:
        values.append(sample())
        if len(values) >= 2 * WINDOW:
            before, after = (statistics.median(v) for v in (values[-2 * WINDOW : -WINDOW], values[-WINDOW:]))
            change = abs(after - before) / before
        seconds = now() - begin
        if change <= TOLERANCE or seconds >= limit_s:
            return WarmUp(len(values), seconds, change <= TOLERANCE, change)
