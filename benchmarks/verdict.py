"""What a record says: speed-ups that count, suites that reach what they should, and regressions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch_max_backend.evidence.contenders import OURS

Row = dict[str, Any]


def judged(row: Row, name: str, measure: str) -> dict[str, float] | None:
    """The spread of a contender's time that counts; None where there is none or its row has a problem."""
    entry = row["contenders"].get(name, {})
    if entry.get("problem"):
        return None
    times = entry.get("times", {})
    return times.get(measure) or times.get("wall")


def best(row: Row, names: Iterable[str], measure: str) -> tuple[str, float] | None:
    """The contender with the smallest median, among those that count."""
    found = [(t["median"], n) for n in names if (t := judged(row, n, measure))]
    return (min(found)[1], min(found)[0]) if found else None


@dataclass(frozen=True)
class Verdict:
    """How a row compares: ``speedup`` is None where nothing may be claimed, and ``reason`` says why."""

    case: str
    speedup: float | None
    ours: str = ""
    against: str = ""
    reason: str = ""


def verdict(row: Row, suite: Row) -> Verdict:
    """The speed-up of this backend over the best of whom the suite compares with.

    A row of ours with a problem (a failed check, an island, an error) has no speed-up, and neither has one in which
    nobody of the others counts.
    """
    measured = [n for n in OURS if n in row["contenders"]]
    ours = best(row, measured, suite["judged_by"])
    if ours is None:
        problems = [f"{n}: {row['contenders'][n].get('problem') or 'not timed'}" for n in measured]
        return Verdict(row["case"], None, reason="; ".join(problems) or "not measured")
    others = best(row, suite["against"], suite["judged_by"])
    if others is None:
        return Verdict(row["case"], None, ours[0], reason=f"none of {', '.join(suite['against'])} counts")
    return Verdict(row["case"], others[1] / ours[1], ours[0], others[0])


@dataclass(frozen=True)
class Judgement:
    """A suite's rows taken together. A row without a speed-up is never left out: what is required is then not met."""

    rows: int
    counted: int
    geomean: float | None
    least: Verdict | None
    reached: int
    required_met: bool | None
    geomean_met: bool | None


def judge(rows: list[Row], suite: Row) -> Judgement:
    """Geometric mean, least speed-up, and whether the suite's requirements are met."""
    verdicts = [verdict(row, suite) for row in rows]
    counted = [v for v in verdicts if v.speedup is not None]
    speedups = [v.speedup for v in counted if v.speedup is not None]
    mean = geometric_mean(speedups)
    required, wanted = suite.get("required"), suite.get("geomean")
    complete = len(counted) == len(rows) and bool(rows)
    reached = sum(s >= required for s in speedups) if required is not None else len(speedups)
    return Judgement(
        rows=len(rows),
        counted=len(counted),
        geomean=mean,
        least=min(counted, key=lambda v: v.speedup or 0.0, default=None),
        reached=reached,
        required_met=None if required is None else complete and reached == len(rows),
        geomean_met=None if wanted is None else complete and mean is not None and mean >= wanted,
    )


def geometric_mean(values: list[float]) -> float | None:
    """The geometric mean; None of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


@dataclass(frozen=True)
class Change:
    """A contender's row now and in an earlier record. ``ratio`` is new over old; ``lost`` that it no longer counts."""

    suite: str
    case: str
    contender: str
    ratio: float | None
    apart: bool
    lost: str = ""

    def is_regression(self, percent: float) -> bool:
        """Whether it is slower by more than ``percent``, and by more than the quartiles' spread, or counts no more."""
        return bool(self.lost) or (self.ratio is not None and self.apart and self.ratio > 1 + percent / 100)


def compare(new: Row, old: Row) -> list[Change]:
    """Every contender's row that counted in the old record, against the new one.

    Rows of suites that the new record does not have are left out; a row that is missing in one that it has is lost.
    """
    now = {(r["suite"], r["case"]): r for r in new["rows"]}
    changes = []
    for row in old["rows"]:
        if row["suite"] not in new["suites"]:
            continue
        measure = old["suites"][row["suite"]]["judged_by"]
        there = now.get((row["suite"], row["case"]))
        for name in row["contenders"]:
            before = judged(row, name, measure)
            if before is None:
                continue
            where = row["suite"], row["case"], name
            after = judged(there, name, measure) if there else None
            if after is None:
                entry = there["contenders"].get(name) if there else None
                why = (entry.get("problem") or "not timed") if entry else "not measured"
                changes.append(Change(*where, None, False, why))
                continue
            apart = after["q1"] > before["q3"] or after["q3"] < before["q1"]
            changes.append(Change(*where, after["median"] / before["median"], apart))
    return changes
