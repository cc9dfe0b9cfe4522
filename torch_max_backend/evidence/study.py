"""A study: contenders measured in turns on one machine, their results held against eager's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_max_backend.base.errors import EvidenceError
from torch_max_backend.diagnostics.coverage import model_and_arguments
from torch_max_backend.evidence.cases import Case
from torch_max_backend.evidence.settings import Settings
from torch_max_backend.measurement import roofs
from torch_max_backend.measurement.machine import environment
from torch_max_backend.measurement.statistics import Interval, ratio_of_medians, spread


@dataclass
class Row:
    """What was found out about one contender in one case.

    Attributes:
        wall, device, host: Seconds a call: of a loop of calls, of the GPU, and of the host until it has enqueued one.
        warm_up: The fields of a ``WarmUp``.
        difference: The fields of a ``Difference`` to eager.
        memory: ``peak`` and ``over_inputs`` in bytes, and ``of``, which memory that is; or ``problem``.
        energy_j: Joules a call; None where the device does not tell.
        notes: What a reader should know: islands, graphs, patches.
        problem: Empty, or why the row does not count: wrong results, an error.
    """

    case: str
    contender: str
    first_call_s: float | None = None
    wall: list[float] = field(default_factory=list)
    device: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    warm_up: dict[str, Any] = field(default_factory=dict)
    difference: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    energy_j: float | None = None
    notes: list[str] = field(default_factory=list)
    problem: str = ""


@dataclass
class Study:
    """All rows of a study, and how and where they were measured. ``str()`` is Markdown.

    ``roofs`` are those that ``env --measure`` has kept of the device, empty if it has not.
    """

    environment: dict[str, Any]
    settings: dict[str, Any]
    roofs: dict[str, Any]
    rows: list[Row]

    @property
    def cases(self) -> list[str]:
        """The names of the cases, in order."""
        return list(dict.fromkeys(row.case for row in self.rows))

    @property
    def wrong(self) -> list[Row]:
        """Rows that do not count."""
        return [row for row in self.rows if row.problem]

    def row(self, case: str, contender: str) -> Row:
        """The row of a contender.

        Raises:
            EvidenceError: There is none.
        """
        for row in self.rows:
            if (row.case, row.contender) == (case, contender):
                return row
        raise EvidenceError(f"the study has no row of case {case!r} and contender {contender!r}")

    def samples(self, row: Row) -> list[float]:
        """The seconds by which a row is judged; empty if it could not be timed."""
        return row.device if self.settings["by"] == "device" else row.wall

    def spread(self, row: Row) -> dict[str, float] | None:
        """Median, quartiles, least and number of a row's samples."""
        return spread(self.samples(row)) if self.samples(row) else None

    def speed_up(self, row: Row) -> Interval | None:
        """The baseline's median over the row's, with an interval; None where either of them does not count."""
        baseline = self.row(row.case, self.settings["baseline"])
        if row.problem or baseline.problem or not (self.samples(row) and self.samples(baseline)):
            return None
        return ratio_of_medians(
            self.samples(baseline),
            self.samples(row),
            paired=True,
            seed=self.settings["seed"],
            resamples=self.settings["resamples"],
            confidence=self.settings["confidence"],
        )

    def rate(self, row: Row) -> float | None:
        """Items a second, where it was said how many a call delivers."""
        found = self.spread(row)
        return (
            self.settings["items"] / found["median"] if found and self.settings["items"] and not row.problem else None
        )

    def summary(self, row: Row) -> dict[str, Any]:
        """What follows from a row's samples, as JSON has it."""
        ratio = self.speed_up(row)
        return {
            **(self.spread(row) or {}),
            "speed_up": ratio.value if ratio else None,
            "interval": [ratio.low, ratio.high] if ratio else None,
            "rate": self.rate(row),
        }

    def __str__(self) -> str:
        from torch_max_backend.evidence.markdown import markdown

        return markdown(self)


def study(
    cases: Mapping[str, Any] | Sequence[Case],
    settings: Settings | None = None,
    at: Callable[[str], None] = lambda text: None,
) -> Study:
    """Measure contenders on cases: in turns, in an order that is drawn for each round, after a warm-up.

    This forgets what was compiled in the process before.

    Args:
        cases: ``(model, args)`` or ``(model, args, kwargs)`` by name, on the device of the settings.
        at: Told what is being done.

    Raises:
        EvidenceError: There is no case, eager itself does not run one, or there is no tolerance for a result's dtype.
        CoverageError: A case is something else.
    """
    from torch_max_backend.evidence.measuring import measure_case

    settings = settings or Settings()
    given = [Case(n, *model_and_arguments(m)) for n, m in cases.items()] if isinstance(cases, Mapping) else list(cases)
    if not given:
        raise EvidenceError("cases must hold at least one case, got none")
    names = [case.name for case in given]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise EvidenceError(f"cases must have names of their own, got {twice!r} twice")
    where = environment(settings.device)  # before anything runs: it has the load
    kept = roofs.kept(settings.device)
    rows = [row for case in given for row in measure_case(case, settings, at)]
    told = dataclasses.asdict(settings) | {"baseline": settings.compared_with, "contenders": list(settings.contenders)}
    return Study(where, told, dataclasses.asdict(kept) if kept else {}, rows)
