"""What samples say: their spread, and how sure the ratio of two medians is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torch_max_backend.base.errors import EvidenceError

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its confidence interval."""

    value: float
    low: float
    high: float

    def has(self, value: float) -> bool:
        """Whether a value is in the interval."""
        return self.low <= value <= self.high


def spread(values: list[float]) -> dict[str, float]:
    """Median, quartiles, least and number of some values."""
    quarter, median, three_quarters = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    return {"median": median, "q1": quarter, "q3": three_quarters, "least": min(values), "samples": len(values)}


def ratio_of_medians(
    above: Sequence[float],
    below: Sequence[float],
    *,
    paired: bool = False,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval:
    """The median of ``above`` over that of ``below``, with a percentile bootstrap interval.

    Both are drawn again with replacement, ``resamples`` times, and the interval's ends are quantiles of the ratios.

    Args:
        above: Seconds, or anything else that is positive.
        paired: The ``i``-th samples of both are of one round. Rounds are drawn then, and not samples, so that what
            slowed the machine down for a while stands in both medians or in neither.
        seed: The same seed and samples give the same interval.

    Raises:
        EvidenceError: There are no samples, one is not positive, or an argument is out of its range.
    """
    first, second = _samples("above", above), _samples("below", below)
    if paired and len(first) != len(second):
        raise EvidenceError(f"paired samples must be equally many, got {len(first)} above and {len(second)} below")
    if resamples < 1:
        raise EvidenceError(f"resamples must be at least 1, got {resamples}")
    if not 0 < confidence < 1:
        raise EvidenceError(f"confidence must lie between 0 and 1, got {confidence}")
    draws = np.random.default_rng(seed)
    rows = draws.integers(len(first), size=(resamples, len(first)))
    others = rows if paired else draws.integers(len(second), size=(resamples, len(second)))
    ratios = np.median(first[rows], axis=1) / np.median(second[others], axis=1)
    low, high = np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(np.median(first) / np.median(second)), float(low), float(high))


def _samples(name: str, values: Sequence[float]) -> np.ndarray:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not found.size:
        raise EvidenceError(f"{name} must be a list with at least one sample, got {len(values)}")
    if not (np.isfinite(found).all() and (found > 0).all()):
        wrong = next(x for x in found.tolist() if not (np.isfinite(x) and x > 0))
        raise EvidenceError(f"{name} must hold positive numbers, got {wrong}")
    return found
