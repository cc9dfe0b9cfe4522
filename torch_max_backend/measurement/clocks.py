"""Times of calls: on a GPU by events that never wait for the host, on the CPU by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_max_backend.measurement.statistics import spread

Call = Callable[[int], Any]
"""Does unit number ``i`` of some work: a call with one of several sets of inputs, or the next token."""
Flush = Callable[[], object]
"""Drives out of the caches what the next call reads."""

MOST_CALLS = 400
LONGEST_HEAD_START_S = 0.2


@dataclass
class Times:
    """Seconds a call: samples of what the device takes, of a loop of calls, and of the host until it has enqueued one.

    On the CPU there is only the second kind.
    """

    device: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """A summary of each kind that was measured."""
        return {name: spread(values) for name, values in vars(self).items() if values}


class CpuClock:
    """Times calls that are over when they return.

    With ``flush`` a sample is one call behind a flush, else as many as take ``sample_s``.
    """

    def __init__(self, sample_s: float, flush: Flush | None = None) -> None:
        self.sample_s, self.flush = sample_s, flush

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def calibrate(self, call: Call) -> int:
        """How many calls make a sample: by a loop as long as one, since a few cold calls take many times longer."""
        count = _calls_for(self.sample_s, self.loop(call, 0, 3))
        return 1 if self.flush else _calls_for(self.sample_s, self.loop(call, 3, count))

    def loop(self, call: Call, start: int, count: int) -> float:
        """Seconds a call of ``count`` calls, numbered from ``start``."""
        begin = time.perf_counter()
        for number in range(start, start + count):
            call(number)
        return (time.perf_counter() - begin) / count

    def sample(self, call: Call, start: int, count: int, times: Times) -> None:
        """Add one sample."""
        if self.flush:
            self.flush()
        times.wall.append(self.loop(call, start, count))


class CudaClock:
    """Times calls that return before the GPU is done.

    A sample of device time gives the host a head start: the stream spins while the calls are enqueued, and the first
    event comes after the spinning. So the time between the events is that of the kernels and the gaps between them,
    however slow the host is. Calls of very many launches fill the queue nevertheless; such suites are judged by the
    clock.
    """

    MOST_CALLS = 128
    """Calls in a sample: the queue of a stream holds about a thousand launches, and then the host has no head start."""
    HOST_CALLS = 4
    """Calls in a sample of the host's time: few, because a full queue makes the host wait."""

    def __init__(self, sample_s: float, flush: Flush | None = None) -> None:
        self.sample_s, self.flush = sample_s, flush
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.cycles_per_s = self._spin_rate()
        self.counts: dict[int, tuple[int, float]] = {}

    def _spin_rate(self) -> float:
        cycles = 20_000_000
        for _ in range(2):  # the first one wakes the clocks up
            self.synchronize()
            self.begin.record()
            torch.cuda._sleep(cycles)
            self.end.record()
            self.end.synchronize()
        return cycles / (self.begin.elapsed_time(self.end) / 1e3)

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        torch.cuda.synchronize()

    def calibrate(self, call: Call) -> int:
        """How many calls make a sample; also measures how long the host takes, for the head start."""
        self.loop(call, 0, 2)
        wall = self.loop(call, 2, 3)
        host = self.host(call, 5, self.HOST_CALLS)
        count = _calls_for(self.sample_s, wall)
        count = min(count, self.MOST_CALLS)
        device = self.device(call, 0, count, host * count)
        count = _calls_for(self.sample_s, device)
        if host > 0:
            count = max(1, min(count, self.MOST_CALLS, int(LONGEST_HEAD_START_S / host)))
        count = 1 if self.flush else count
        self.counts[id(call)] = count, host
        return count

    def loop(self, call: Call, start: int, count: int) -> float:
        """Seconds a call in a loop, until the device is done."""
        self.synchronize()
        begin = time.perf_counter()
        for number in range(start, start + count):
            call(number)
        self.synchronize()
        return (time.perf_counter() - begin) / count

    def host(self, call: Call, start: int, count: int) -> float:
        """Seconds a call until it returns, with an idle device at first."""
        self.synchronize()
        begin = time.perf_counter()
        for number in range(start, start + count):
            call(number)
        seconds = (time.perf_counter() - begin) / count
        self.synchronize()
        return seconds

    def device(self, call: Call, start: int, count: int, head_start_s: float) -> float:
        """Seconds a call between events, the host having had a head start."""
        self.synchronize()
        seconds = min(1.2 * head_start_s + 2e-4, LONGEST_HEAD_START_S)
        torch.cuda._sleep(int(seconds * self.cycles_per_s))
        self.begin.record()
        for number in range(start, start + count):
            call(number)
        self.end.record()
        self.end.synchronize()
        return self.begin.elapsed_time(self.end) / 1e3 / count

    def sample(self, call: Call, start: int, count: int, times: Times) -> None:
        """Add one sample of each kind."""
        _, host = self.counts[id(call)]
        if self.flush:
            self.flush()
        times.device.append(self.device(call, start, count, host * count))
        if self.flush:
            self.flush()
        times.wall.append(self.loop(call, start, count))
        times.host.append(self.host(call, start, min(count, self.HOST_CALLS)))


def on_device(device: str) -> AbstractContextManager[Any]:
    """Have a GPU be torch's current one inside the block, since that is the one whose end is waited for."""
    return torch.cuda.device(device) if device.startswith("cuda") else nullcontext()


def _calls_for(sample_s: float, seconds: float) -> int:
    return max(1, min(MOST_CALLS, round(sample_s / max(seconds, 1e-9))))


def clock_for(device: str, sample_s: float, flush: Flush | None = None) -> CpuClock | CudaClock:
    """The clock of a device."""
    return CudaClock(sample_s, flush) if device.startswith("cuda") else CpuClock(sample_s, flush)
