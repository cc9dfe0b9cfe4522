"""docs/performance.md and its plots, made from the records: ``python -m benchmarks.report --write`` or ``--check``.

A plot carries the digest of the numbers it shows, so that checking needs neither matplotlib nor equal fonts.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from benchmarks import record as records
from benchmarks.tables import names_of, problems, rate_cell, requirement, rows_of, speedup_cell, time_cell
from benchmarks.verdict import judge, judged, verdict
from torch_max_backend.evidence.contenders import OURS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "performance"

Record = dict[str, Any]

HEAD = """# Performance

Made from the records in `benchmarks/records/` by `python -m benchmarks.report --write`; the numbers are those of the
machines that the records name. To measure a model of yours, see [Benchmarking your model](benchmarking.md). To measure
these suites, from a clone (the wheel does not have them):

```sh
uv run python -m benchmarks.run --list                                            # suites and cases
uv run python -m benchmarks.run cpu-ops cpu-models cpu-training --save my.json    # small, without a GPU
uv run python -m benchmarks.run memory products attention convolution models decoding --save benchmarks/records/gpu.json
uv run python -m benchmarks.run memory --only softmax --compare benchmarks/records/gpu.json --fail-on-regression 5
uv run python -m benchmarks.report --write                                        # this page
```

## What the numbers mean

- **Contenders** are eager (products are cuBLAS's, convolutions cuDNN's, attention torch's own), Inductor in its modes,
  and this backend, `max`, in its modes. All contenders of a case are measured in one process, in turns, and each round
  begins with another one.
- **Times** are medians of samples of many calls, with half the interquartile range in per cent. `device` is what
  the GPU takes when it never waits for the host: the stream is kept busy until all calls of a sample are enqueued.
  `wall` is a loop of calls by the clock. Records have both, and the host's time for enqueueing a call. Inputs of op
  suites take turns, so that together they are three times as large as the L2 cache.
- **Speed-up** is the best time of whom a suite compares with over the best time of this backend. A contender counts
  only if its answer passes: it may differ from exact values (float64, or float32 for models in 16 bits) by twice as
  much as eager in norm and four times as much in one element, or by the last digits (`benchmarks/checking.py`). A row
  in which torch ran an op in place of MAX (an island) counts for nothing, and so does one that compiled again while it
  was timed. Such rows are shown as ✗, and a suite's requirement then counts as not reached.
- **Rate** is arithmetic a second, or bytes a second as a part of what a copy on the device reaches, each input read
  once and each output written once.
- **Compile** is the first call in the phase that compiles, as many side by side as the record says. Inductor's
  contenders share Triton's cache.
- **Memory** is device memory beyond weights and inputs: what the first calls took from the driver and keep (pools of
  captured graphs, code, MAX's own pool), and torch's peak in one more call. Where a suite measures all its cases in one
  process, as op suites do, pools may have been there already, and it is a lower bound.
"""


def page(found: dict[str, Record]) -> str:
    """The page for some records, by name."""
    parts = [HEAD]
    if not found:
        parts.append("There are no records yet.\n")
    for name, record in found.items():
        parts.append(f"## {name}\n\n{_where(record)}\n")
        for suite in record["suites"]:
            if rows_of(record, suite):
                parts.append(_suite(name, record, suite))
    return "\n".join(parts)


def _where(record: Record) -> str:
    environment = record["environment"]
    packages = ", ".join(f"{k} {v}" for k, v in environment["packages"].items() if v)
    lines = [f"{environment['date']}, {packages}, Python {environment['python']}, {environment['cpus']} processors."]
    if environment["load"] > 1:
        lines.append(
            f"**Others used the machine (load {environment['load']:g} before the start): these times say little, and "
            "what uses several processors loses most.**"
        )
    for device, facts in record["devices"].items():
        details = [f"{facts[k]} {k}" for k in ("threads",) if k in facts]
        details += [f"{k} {facts[k]}" for k in ("driver", "cuda", "cudnn") if facts.get(k)]
        if "copy_bytes_per_s" in facts:
            details.append(f"copies at {facts['copy_bytes_per_s'] / 1e9:.0f} GB/s")
        lines.append(f"`{device}`: {facts.get('name', 'unknown')}, {', '.join(details)}.")
    compiling = record["compiling"]
    if compiling:
        lines.append(f"Compiled {compiling['side_by_side']} side by side, caches {compiling['caches']}.")
    commands = "\n".join(record["commands"])
    return " ".join(lines) + f"\n\n```text\n{commands}\n```"


def _suite(record_name: str, record: Record, name: str) -> str:
    suite, rows = record["suites"][name], rows_of(record, name)
    device = record["devices"].get(suite["device"], {})
    found = judge(rows, suite)
    lines = [f"### {record_name}: {name}", "", f"{suite['about']} ({suite['dtype']}).", ""]
    mean = "none" if found.geomean is None else f"{found.geomean:.2f}"
    least = f", least {found.least.speedup:.2f} ({found.least.case})" if found.least else ""
    lines.append(f"Speed-up: geometric mean {mean} of {found.counted} of {found.rows} cases{least}.")
    if wanted := requirement(suite, found):
        lines.append(f"Required: {wanted}.")
    if found.counted:
        lines += ["", f"![speed-up](performance/{_plot_name(record_name, name)})"]
    names = names_of(rows)
    mine = [n for n in names if n in OURS] or names[:1]
    rates = [f"rate of {n}" for n in mine]
    lines += [
        "",
        _line("case", *(f"{n}, ms" for n in names), "speed-up", *rates),
        _line(*["---"] * (2 + len(names + mine))),
    ]
    for row in rows:
        times = [time_cell(row, n, suite["judged_by"]) for n in names]
        lines.append(
            _line(row["case"], *times, speedup_cell(row, suite), *(rate_cell(row, n, suite, device) for n in mine))
        )
    lines += ["", *_details(rows, names), *_problems(rows)]
    return "\n".join(lines)


def _details(rows: list[Record], names: list[str]) -> Iterator[str]:
    """Differences to exact values, compile seconds, host's time and memory."""
    # GitHub ignores the attribute; without it mkdocs would not see the table.
    yield '<details markdown="1">'
    yield "<summary>Largest and mean difference to exact values, compile seconds, host time, memory</summary>"
    yield ""
    yield _line("case", "contender", "max", "mean", "relative", "compile, s", "host, µs a call", "memory, MB")
    yield _line(*["---"] * 8)
    for row in rows:
        for name in names:
            entry = row["contenders"].get(name)
            if entry is None:
                continue
            d, host, memory = entry.get("difference"), entry.get("times", {}).get("host"), entry.get("memory")
            yield _line(
                row["case"],
                name,
                *((f"{float(d[k]):.1e}" for k in ("max", "mean", "relative")) if d else ("–",) * 3),
                f"{entry['compile_s']:.1f}" if "compile_s" in entry else "–",
                f"{host['median'] * 1e6:.0f}" if host else "–",
                f"{memory['peak'] / 1e6:.0f}" if memory else "–",
            )
    yield ""
    yield "</details>"
    yield ""


def _problems(rows: list[Record]) -> Iterator[str]:
    found = problems(rows)
    if found:
        yield "Not counted:"
        yield ""
        yield from (f"- {case}, {name}: {problem[:200]}" for case, name, problem in found)
        yield ""


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# -- plots ---------------------------------------------------------------------------------------------------------
def _plot_name(record_name: str, suite: str) -> str:
    return f"{record_name}-{suite}.svg"


def plots(found: dict[str, Record]) -> dict[str, dict[str, Any]]:
    """The numbers of every plot, by file name: for each case the time of a contender over the time compared with."""
    wanted = {}
    for name, record in found.items():
        for title, suite in record["suites"].items():
            rows = rows_of(record, title)
            series: dict[str, list[float | None]] = {n: [] for n in names_of(rows)}
            cases = []
            for row in rows:
                best = verdict(row, suite)
                if best.speedup is None:
                    continue
                cases.append(row["case"])
                against = judged(row, best.against, suite["judged_by"])
                for contender, values in series.items():
                    times = judged(row, contender, suite["judged_by"])
                    values.append(round(against["median"] / times["median"], 4) if times and against else None)
            if cases:
                wanted[_plot_name(name, title)] = {
                    "title": f"{title}: speed over the best of {', '.join(suite['against'])}",
                    "cases": cases,
                    "series": series,
                    "required": suite["required"],
                }
    return wanted


def digest(plot: dict[str, Any]) -> str:
    """What identifies a plot's numbers."""
    return hashlib.sha256(json.dumps(plot, sort_keys=True).encode()).hexdigest()[:16]


def draw(plot: dict[str, Any], file: Path) -> None:
    """Points for every contender, a case a line; 1 is the best of whom the suite compares with."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": "performance", "svg.fonttype": "none"}
    from matplotlib import pyplot

    cases = plot["cases"]
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.19 * len(cases)), layout="constrained")
    for number, (name, values) in enumerate(plot["series"].items()):
        pairs = [(v, i) for i, v in enumerate(values) if v is not None]
        marker = "D" if name in OURS else "o"
        axes.plot(*zip(*pairs, strict=True), marker, ms=5, label=name, color=f"C{number}") if pairs else None
    axes.axvline(1, color="0.6", lw=0.8)
    if plot["required"] is not None:
        axes.axvline(plot["required"], color="C3", lw=0.8, ls=":", label="required")
    axes.set_yticks(range(len(cases)), cases, fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(axis="y", lw=0.3)
    axes.set_title(plot["title"], fontsize=9)
    axes.legend(fontsize=7)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None, "Description": f"digest {digest(plot)}"})
    pyplot.close(figure)


# -- the command ---------------------------------------------------------------------------------------------------
def load_records(folder: Path = records.FOLDER) -> dict[str, Record]:
    """All records of a folder by file name."""
    return {file.stem: records.load(file) for file in sorted(folder.glob("*.json"))}


def stale_files(found: dict[str, Record], where: Path = PAGE, folder: Path = PLOTS) -> list[Path]:
    """The page and plots that are not what the records say, and plots of records that are gone."""
    wanted = plots(found)
    stale = [] if where.exists() and where.read_text(encoding="utf-8") == page(found) else [where]
    for name, plot in wanted.items():
        file = folder / name
        if not file.exists() or f"digest {digest(plot)}" not in file.read_text(encoding="utf-8"):
            stale.append(file)
    return stale + [file for file in sorted(folder.glob("*.svg")) if file.name not in wanted]


def write(found: dict[str, Record], where: Path = PAGE, folder: Path = PLOTS) -> None:
    """Bring the page and its plots up to date."""
    wanted = plots(found)
    for file in stale_files(found, where, folder):
        if file == where:
            where.write_text(page(found), encoding="utf-8")
        elif file.name in wanted:
            draw(wanted[file.name], file)
        else:
            file.unlink()


def main(
    write_files: bool = typer.Option(False, "--write", help="Bring page and plots up to date."),
    check: bool = typer.Option(False, "--check", help="Fail if one of them is out of date."),
) -> None:
    """Write docs/performance.md and its plots from the records, or check that they are up to date."""
    if write_files == check:
        raise typer.BadParameter("give one of --write and --check")
    found = load_records()
    if write_files:
        write(found)
        return
    stale = stale_files(found)
    for file in stale:
        print(f"{file.relative_to(ROOT)} is out of date; bring it up to date with --write", file=sys.stderr)
    if stale:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
