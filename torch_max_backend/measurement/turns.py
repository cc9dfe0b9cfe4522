"""Contenders in turns, so that a slow moment of the machine hits all of them."""

from __future__ import annotations

import random
from collections.abc import Callable

from torch_max_backend.measurement.clocks import Call, CpuClock, CudaClock, Times

Order = Callable[[list[str], int], list[str]]
"""In which order the names come in round number ``i``."""


def rotated(names: list[str], number: int) -> list[str]:
    """Each round begins with another one."""
    turn = number % len(names)
    return names[turn:] + names[:turn]


def shuffled(seed: int) -> Order:
    """Each round has an order of its own, drawn from the seed and the round's number."""
    return lambda names, number: random.Random(f"{seed}/{number}").sample(names, len(names))


def interleave(
    calls: dict[str, Call],
    clock: CpuClock | CudaClock,
    rounds: int,
    at: Callable[[str], None] = lambda name: None,
    order: Order = rotated,
) -> tuple[dict[str, Times], dict[str, str]]:
    """Samples of every contender, in turns.

    Args:
        at: Told which contender runs next, so that a crash can be put down to it.

    Returns:
        Times by contender, and what contenders raised; these have no times.
    """
    counts: dict[str, int] = {}
    errors: dict[str, str] = {}
    times = {name: Times() for name in calls}
    started = dict.fromkeys(calls, 0)

    def attempt(name: str, what: Callable[[], None]) -> None:
        at(name)
        try:
            what()
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
            del times[name]

    def calibrate(name: str) -> None:
        counts[name] = clock.calibrate(calls[name])

    def sample(name: str) -> None:
        clock.sample(calls[name], started[name], counts[name], times[name])
        started[name] += counts[name]

    for name in calls:
        attempt(name, lambda name=name: calibrate(name))  # type: ignore[misc]
    for number in range(rounds):
        for name in order(list(calls), number):
            if name in times:
                attempt(name, lambda name=name: sample(name))  # type: ignore[misc]
    return times, errors
