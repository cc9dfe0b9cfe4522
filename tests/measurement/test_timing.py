"""Turns, warm-ups and cold caches, with calls and clocks that are made up."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_max_backend.measurement import caches
from torch_max_backend.measurement.clocks import CpuClock, CudaClock
from torch_max_backend.measurement.turns import interleave, rotated, shuffled
from torch_max_backend.measurement.warm_up import WINDOW, warm_up

pytestmark = pytest.mark.any_runner("calls that are made up")
NAMES = ["a", "b", "c"]


def called(seed: int, rounds: int) -> list[str]:
    """In which order contenders are called, without the calls that calibrate."""
    log: list[str] = []
    calls = {name: lambda number, name=name: log.append(name) for name in NAMES}

    class Clock(CpuClock):
        def calibrate(self, call) -> int:  # type: ignore[no-untyped-def]
            return 1

    interleave(calls, Clock(0.0), rounds, order=shuffled(seed))
    return log


def test_each_round_has_an_order_of_its_own() -> None:
    log = called(seed=0, rounds=60)
    rounds = [tuple(log[i : i + 3]) for i in range(0, len(log), 3)]
    assert all(sorted(r) == NAMES for r in rounds)
    assert set(rounds) == set(itertools.permutations(NAMES)), "60 rounds have all six orders"
    assert max(Counter(r[0] for r in rounds).values()) < 40, "nobody is always the first"


def test_the_order_is_the_seed_s() -> None:
    assert called(3, 10) == called(3, 10) != called(4, 10)


def test_rotated_begins_with_another_one() -> None:
    assert [rotated(NAMES, i)[0] for i in range(4)] == ["a", "b", "c", "a"]


def timer(step: float) -> Iterator[float]:
    return itertools.count(0.0, step)


def test_a_warm_up_lasts_until_times_have_settled() -> None:
    falling = [10.0 * 0.8**i for i in range(20)]
    values = iter([*falling, *[0.1] * 100])
    found = warm_up(lambda: next(values), limit_s=1e9)
    assert found.stable and found.change <= 0.05
    assert len(falling) + WINDOW <= found.samples <= len(falling) + 2 * WINDOW


def test_a_warm_up_that_does_not_settle_says_so() -> None:
    values, now = (2.0**i for i in range(1000)), timer(0.5)
    found = warm_up(lambda: next(values), limit_s=10.0, now=lambda: next(now))
    assert not found.stable and found.change > 1
    assert found.seconds == 10.0 and found.samples == 20


def test_a_cold_sample_is_one_call_behind_a_flush() -> None:
    log: list[str] = []
    clock = CpuClock(0.01, flush=lambda: log.append("flush"))
    times, errors = interleave({"x": lambda number: log.append("call")}, clock, 3)
    assert not errors and len(times["x"].wall) == 3
    assert log[-6:] == ["flush", "call"] * 3
    assert log.count("flush") == 3


def test_the_largest_cache_is_found(tmp_path: Path) -> None:
    for index, size in enumerate(["48K", "2048K", "3M", "what"]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert caches.processor_cache(tmp_path) == 3 << 20
    assert caches.processor_cache(tmp_path / "nowhere") == caches.UNKNOWN


def test_a_flush_goes_through_twice_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "last_level_cache", lambda device: 1 << 10)
    buffer = caches.flush_of("cpu")()
    assert buffer.numel() * buffer.element_size() == 2 << 10
    assert buffer.eq(1).all(), "it is written"


# -- a GPU that is simulated ------------------------------------------------------------------------------------------
class SimulatedGpu:
    """A host that takes its time to enqueue, and a device that works in order."""

    def __init__(self, host_s: float, kernel_s: float) -> None:
        self.host_s, self.kernel_s, self.host, self.device = host_s, kernel_s, 0.0, 0.0

    def enqueue(self, seconds: float, cost: float = 0.0) -> float:
        self.host += cost
        self.device = max(self.device, self.host) + seconds
        return self.device

    def synchronize(self) -> None:
        self.host = max(self.host, self.device)

    def call(self, number: int) -> None:
        self.enqueue(self.kernel_s, self.host_s)

    def event(self, **_: Any) -> Any:
        gpu = self

        class Event:
            def record(self) -> None:
                self.at = gpu.enqueue(0.0)

            def synchronize(self) -> None:
                gpu.host = max(gpu.host, self.at)

            def elapsed_time(self, other: Any) -> float:
                return (other.at - self.at) * 1e3

        return Event()


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize(("host_s", "kernel_s"), [(50e-6, 5e-6), (50e-6, 5e-3), (1e-3, 1e-4)])
def test_device_time_does_not_depend_on_the_host(
    host_s: float, kernel_s: float, cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor on a flush of the cache, which takes longer than the call."""
    gpu = SimulatedGpu(host_s, kernel_s)
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.synchronize)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: gpu.enqueue(cycles / 2e9))
    monkeypatch.setattr(time, "perf_counter", lambda: gpu.host)
    flushed: list[float] = []
    clock = CudaClock(0.005, (lambda: flushed.append(gpu.enqueue(1e-2))) if cold else None)
    times, errors = interleave({"x": gpu.call}, clock, 3)
    found = times["x"].as_json()
    assert not errors
    assert found["device"]["median"] == pytest.approx(kernel_s, rel=1e-6)
    assert found["host"]["median"] == pytest.approx(host_s, rel=1e-6)
    wall = host_s + kernel_s if cold else max(host_s, kernel_s)
    assert found["wall"]["median"] == pytest.approx(wall, rel=0.25)
    assert len(flushed) == 2 * 3 * cold
