"""Records as text: cells that the console and the documentation share, and the console's tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.verdict import Change, Judgement, judge, judged, verdict
from torch_max_backend.evidence.contenders import OURS, SETTINGS

Record = dict[str, Any]


def rows_of(record: Record, suite: str) -> list[Record]:
    """The rows of a suite that were timed, or tried."""
    return [
        r
        for r in record["rows"]
        if r["suite"] == suite and any("times" in e or e.get("problem") for e in r["contenders"].values())
    ]


def names_of(rows: list[Record]) -> list[str]:
    """Contenders of some rows."""
    return [name for name in SETTINGS if any(name in row["contenders"] for row in rows)]


def milliseconds(seconds: float) -> str:
    """Three digits that count."""
    ms = seconds * 1e3
    return f"{ms:.3f}" if ms < 10 else f"{ms:.2f}" if ms < 100 else f"{ms:.0f}"


def time_cell(row: Record, name: str, measure: str) -> str:
    """Median milliseconds and half the distance of the quartiles, or why there is no number."""
    entry = row["contenders"].get(name)
    if entry is None:
        return "–"
    times = judged(row, name, measure)
    if times is None:
        return "✗" if entry.get("problem") else "–"
    return f"{milliseconds(times['median'])} ±{50 * (times['q3'] - times['q1']) / times['median']:.0f}%"


def speedup_cell(row: Record, suite: Record) -> str:
    """The speed-up, if there may be one."""
    found = verdict(row, suite)
    return "–" if found.speedup is None else f"{found.speedup:.2f}"


def rate_cell(row: Record, name: str, suite: Record, device: Record) -> str:
    """For a contender: arithmetic a second where it is stated, else bytes a second as a part of what a copy reaches."""
    times = judged(row, name, suite["judged_by"])
    if times is None:
        return "–"
    if row.get("flops"):
        rate = row["flops"] / times["median"]
        return f"{rate / 1e12:.0f} TFLOP/s" if rate > 1e12 else f"{rate / 1e9:.0f} GFLOP/s"
    if row.get("bytes"):
        copy = device.get("copy_bytes_per_s")
        return f"{row['bytes'] / times['median'] / copy:.2f} of copy" if copy else "–"
    return f"{row.get('units', 1) / times['median']:.0f} {row.get('unit', 'call')}s/s"


def problems(rows: list[Record]) -> list[tuple[str, str, str]]:
    """Case, contender and problem of every row that has one."""
    return [
        (row["case"], name, entry["problem"])
        for row in rows
        for name, entry in row["contenders"].items()
        if entry.get("problem")
    ]


def requirement(suite: Record, found: Judgement) -> str:
    """What a suite should reach and whether it does."""

    def word(met: bool | None) -> str:
        return "reached" if met else "not reached"

    parts = []
    if suite["required"] is not None:
        parts.append(
            f"every case ≥ {suite['required']:g}: {word(found.required_met)} ({found.reached} of {found.rows})"
        )
    if suite["geomean"] is not None:
        parts.append(f"geometric mean ≥ {suite['geomean']:g}: {word(found.geomean_met)}")
    return "; ".join(parts)


def print_suite(console: Console, record: Record, name: str, brief: bool) -> None:
    """A table of a suite's rows, or with ``brief`` only what does not count."""
    rows = rows_of(record, name)
    if not rows:
        return
    suite = record["suites"][name]
    device = record["devices"].get(suite["device"], {})
    contenders = names_of(rows)
    if not brief:
        table = Table("case", title=f"{name}, {suite['judged_by']} ms", title_justify="left")
        for contender in contenders:
            table.add_column(contender, justify="right")
        table.add_column("speed-up", justify="right")
        mine = [c for c in contenders if c in OURS] or contenders[:1]
        table.add_column(f"rate ({mine[0]})", justify="right")
        for row in rows:
            times = [time_cell(row, c, suite["judged_by"]) for c in contenders]
            cells = (*times, speedup_cell(row, suite), rate_cell(row, mine[0], suite, device))
            table.add_row(escape(row["case"]), *cells)
        console.print(table)
    for case, contender, problem in problems(rows):
        console.print(f"✗ {case} {contender}: {problem[:200]}", soft_wrap=True, markup=False)


def print_summary(console: Console, record: Record, names: list[str]) -> None:
    """A line per suite."""
    for name in names:
        rows = rows_of(record, name)
        if not rows:
            continue
        suite = record["suites"][name]
        found = judge(rows, suite)
        mean = "–" if found.geomean is None else f"{found.geomean:.3f}"
        least = f", least {found.least.speedup:.3f} ({found.least.case})" if found.least else ""
        text = f"{name}: speed-up {mean} (geometric mean of {found.counted} of {found.rows} cases){least}"
        console.print(" ".join((text, requirement(suite, found))), soft_wrap=True, markup=False)


def print_changes(console: Console, changes: list[Change], percent: float | None) -> bool:
    """A table of changes; returns whether one of this backend's is a regression by more than ``percent``."""
    limit = 0.0 if percent is None else percent
    table = Table("suite", "case", "contender", "new / old", "")
    for change in changes:
        ratio = "–" if change.ratio is None else f"{change.ratio:.3f}"
        note = change.lost or ("" if change.apart else "within the spread")
        if change.is_regression(limit):
            note = note or "slower"
        table.add_row(change.suite, escape(change.case), change.contender, ratio, escape(note[:80]))
    console.print(table)
    found = [c for c in changes if c.contender in OURS and c.is_regression(limit)]
    if percent is not None:
        console.print(f"{len(found)} regression(s) of more than {percent:g} %")
    return percent is not None and bool(found)
