"""Intervals against known answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from torch_max_backend.base.errors import EvidenceError
from torch_max_backend.measurement.statistics import Interval, ratio_of_medians, spread

pytestmark = pytest.mark.any_runner("arithmetic")


def samples(draws: np.random.Generator, median: float, count: int = 30, noise: float = 0.1) -> list[float]:
    return (median * np.exp(noise * draws.standard_normal(count))).tolist()


def test_samples_without_noise_have_no_interval() -> None:
    assert ratio_of_medians([3.0] * 5, [2.0] * 7) == Interval(1.5, 1.5, 1.5)


def test_the_interval_covers_the_true_ratio_as_often_as_it_says() -> None:
    """Of 300 intervals of 95 %, 285 are expected to cover, with a standard deviation of 4; of 50 %, 150 and 9."""
    draws = np.random.default_rng(0)
    pairs = [(samples(draws, 1.3), samples(draws, 1.0)) for _ in range(300)]
    for confidence, least, most in ((0.95, 270, 298), (0.5, 120, 200)):
        found = [ratio_of_medians(a, b, resamples=500, confidence=confidence) for a, b in pairs]
        assert least <= sum(interval.has(1.3) for interval in found) <= most


def test_more_samples_make_it_narrower() -> None:
    draws = np.random.default_rng(1)
    widths = [(i := ratio_of_medians(samples(draws, 1, n), samples(draws, 1, n))).high - i.low for n in (10, 1000)]
    assert widths[1] < widths[0] / 3


def test_what_slows_a_round_down_is_in_both_medians_of_paired_samples() -> None:
    draws = np.random.default_rng(2)
    slowed = np.exp(draws.standard_normal(40))
    above, below = ((slowed * np.array(samples(draws, m, 40, 0.01))).tolist() for m in (1.1, 1.0))
    paired, apart = ratio_of_medians(above, below, paired=True), ratio_of_medians(above, below)
    assert paired.low > 1 and not apart.low > 1
    assert paired.high - paired.low < (apart.high - apart.low) / 4


def test_a_seed_gives_one_interval() -> None:
    draws = np.random.default_rng(3)
    a, b = samples(draws, 1), samples(draws, 1)
    assert ratio_of_medians(a, b, seed=7) == ratio_of_medians(a, b, seed=7) != ratio_of_medians(a, b, seed=8)


@pytest.mark.parametrize(
    ("above", "below", "more", "message"),
    [
        ([], [1.0], {}, "above must be a list with at least one sample, got 0"),
        ([1.0], [0.0], {}, "below must hold positive numbers, got 0.0"),
        ([float("nan")], [1.0], {}, "above must hold positive numbers, got nan"),
        ([1.0], [1.0, 2.0], {"paired": True}, "got 1 above and 2 below"),
        ([1.0], [1.0], {"resamples": 0}, "resamples must be at least 1, got 0"),
        ([1.0], [1.0], {"confidence": 1.0}, "confidence must lie between 0 and 1, got 1.0"),
    ],
)
def test_bad_samples(above: list[float], below: list[float], more: dict[str, Any], message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        ratio_of_medians(above, below, **more)


def test_the_spread_of_one_sample() -> None:
    assert spread([2.0]) == {"median": 2.0, "q1": 2.0, "q3": 2.0, "least": 2.0, "samples": 1}
