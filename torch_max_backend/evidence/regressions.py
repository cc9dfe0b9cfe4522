"""A study against an earlier one of the same machine: what became slower, what faster, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch_max_backend.base.errors import EvidenceError
from torch_max_backend.evidence.settings import SAME
from torch_max_backend.evidence.study import Study
from torch_max_backend.measurement.statistics import Interval, ratio_of_medians

THRESHOLD = 5.0
"""Per cent."""


@dataclass(frozen=True)
class Change:
    """A contender's median now over what it was, with an interval."""

    case: str
    contender: str
    ratio: Interval

    def is_regression(self, percent: float) -> bool:
        """Whether it is slower by more than ``percent``, and whether it is slower at all is beyond doubt."""
        return self.ratio.value > 1 + percent / 100 and self.ratio.low > 1

    def is_improvement(self, percent: float) -> bool:
        """Whether it was slower by more than ``percent`` of now, and is faster beyond doubt."""
        return self.ratio.value < 1 / (1 + percent / 100) and self.ratio.high < 1

    def told(self, percent: float) -> str:
        """One word."""
        return (
            "REGRESSION" if self.is_regression(percent) else "faster" if self.is_improvement(percent) else "no change"
        )


def check_threshold(percent: float) -> None:
    """Refuse a threshold that is no percentage.

    Raises:
        EvidenceError: It is negative or not finite.
    """
    if not (percent >= 0 and math.isfinite(percent)):
        raise EvidenceError(f"threshold must be a number of per cent, 0 or more, got {percent}")


def check_same(machine: Mapping[str, str], settings: Mapping[str, Any], old: Study) -> None:
    """Refuse a study that others cannot be compared with, which can be told before anything is measured.

    Args:
        machine: What ``machine.identity`` gives.
        settings: The fields of ``Settings``.

    Raises:
        EvidenceError: It is of another machine, or was made in another way.
    """
    for name, was in old.environment["machine"].items():
        if machine[name] != was:
            raise EvidenceError(
                f"the study compared with must be of this machine: its {name} is {was!r}, here {machine[name]!r}"
            )
    for name in SAME:
        if settings[name] != old.settings[name]:
            raise EvidenceError(
                f"the study compared with must have the same settings: its {name} is {old.settings[name]!r}, "
                f"here {settings[name]!r}"
            )


def changes(new: Study, old: Study) -> list[Change]:
    """Each contender's row that counts in both studies; samples of two runs are not paired.

    Raises:
        EvidenceError: They are of other machines or settings, or have no row in common.
    """
    check_same(new.environment["machine"], new.settings, old)
    found = list(_changes(new, old))
    if not found:
        names = [f"{r.case} {r.contender}" for r in old.rows]
        raise EvidenceError(f"the study compared with has no case and contender in common; it has {', '.join(names)}")
    return found


def _changes(new: Study, old: Study) -> Iterator[Change]:
    before = {(row.case, row.contender): row for row in old.rows if not row.problem}
    for row in new.rows:
        was = before.get((row.case, row.contender))
        if was is None or row.problem or not (new.samples(row) and old.samples(was)):
            continue
        s = new.settings
        ratio = ratio_of_medians(
            new.samples(row), old.samples(was), seed=s["seed"], resamples=s["resamples"], confidence=s["confidence"]
        )
        yield Change(row.case, row.contender, ratio)


def left_out(new: Study, old: Study) -> list[str]:
    """Rows of either study that are not compared, and why."""
    told = []
    for one, other, name in ((old, new, "this"), (new, old, "the earlier")):
        there = {(row.case, row.contender): row for row in other.rows}
        for row in one.rows:
            partner = there.get((row.case, row.contender))
            if partner is None:
                told.append(f"{row.case}, {row.contender}: not in {name} study")
            elif partner.problem:
                told.append(f"{row.case}, {row.contender}: does not count in {name} study ({partner.problem})")
    return told


def updates(new: Study, old: Study) -> dict[str, tuple[str, str]]:
    """Packages whose versions differ: before and now."""
    was, now = old.environment["versions"], new.environment["versions"]
    return {name: (was.get(name, ""), now[name]) for name in now if was.get(name, "") != now[name]}
