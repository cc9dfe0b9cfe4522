"""A study as Markdown: where and how, a table a case, and what a reader should know of each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch_max_backend.evidence.regressions import Change, left_out, updates
from torch_max_backend.evidence.study import Row, Study
from torch_max_backend.measurement.machine import NOT_AVAILABLE
from torch_max_backend.measurement.roofs import Roofs
from torch_max_backend.measurement.warm_up import CRITERION


def markdown(study: Study) -> str:
    """The whole study."""
    return "\n".join([*_where(study), *(line for case in study.cases for line in _case(study, case))]) + "\n"


def with_changes(study: Study, before: Study | None, found: Sequence[Change], percent: float) -> str:
    """The study, and behind it what changed since an earlier one, if there is one."""
    return str(study) if before is None else f"{study}\n{_changes(study, before, found, percent)}"


def _changes(study: Study, before: Study, found: Sequence[Change], percent: float) -> str:
    lines = ["## Compared with an earlier study", ""]
    lines += [f"- {name} was {was or 'not there'} and is {now}" for name, (was, now) in updates(study, before).items()]
    lines += [
        f"A regression is slower by more than {percent:g} %, with an interval that lies above 1.",
        "",
        _line("case", "contender", "now / before", "interval", ""),
        _line(*["---"] * 5),
    ]
    for c in found:
        interval = f"{c.ratio.low:.3f} – {c.ratio.high:.3f}"
        lines.append(_line(c.case, c.contender, f"{c.ratio.value:.3f}", interval, c.told(percent)))
    told = [f"- {text}" for text in left_out(study, before)]
    return "\n".join([*lines, *(["", "Not compared:", ""] if told else []), *told]) + "\n"


def _where(study: Study) -> Iterator[str]:
    e, s = study.environment, study.settings
    yield "# Study"
    yield ""
    yield f"{e['date']}, " + ", ".join(f"{k} {v}" for k, v in e["versions"].items()) + "."
    yield f"{e['machine']['device']} ({s['device']}), {e['machine']['threads']} threads of torch."
    yield "Limits: " + ", ".join(f"{k} {v}" for k, v in e["limits"].items()) + "."
    if e["load"] > 1:
        yield f"**Others used the machine: its load was {e['load']:g} before the start.**"
    yield ""
    what = "forward and backward" if s["training"] else "inference"
    cold = "the last-level cache emptied before each call" if s["cold"] else "caches as the calls leave them"
    yield f"{s['rounds']} rounds of {what}, contenders in an order drawn for each round (seed {s['seed']}), {cold}."
    clock = "GPU" if s["by"] == "device" else "clock"
    yield f"Times are by the {clock}: median and interquartile range of the samples."
    yield f"A speed-up is the median of {s['baseline']} over the contender's, with a {s['confidence']:.0%} interval."
    yield f"Warmed up until {CRITERION}."
    yield Roofs(**study.roofs).cited() if study.roofs else "No roofs are kept: see `torch-max-backend env --measure`."


def _case(study: Study, case: str) -> Iterator[str]:
    rows = [row for row in study.rows if row.case == case]
    items = study.settings["items"]
    heads = [
        "contender",
        "median, ms",
        "IQR, ms",
        "speed-up",
        "interval",
        *([f"{study.settings['unit']}s/s"] * bool(items)),
    ]
    heads += ["largest difference", "mean", "results", "first call, s", "peak memory, MB", "energy, J a call"]
    yield from ("", f"## {case}", "", _line(*heads), _line(*["---"] * len(heads)))
    for row in rows:
        yield _line(*_cells(study, row, bool(items)))
    notes = [f"- {row.contender}: {'; '.join(told)}" for row in rows if (told := _notes(row))]
    if notes:
        yield from ("", *notes)


def _cells(study: Study, row: Row, with_rate: bool) -> Iterator[str]:
    found, ratio, rate = study.spread(row), study.speed_up(row), study.rate(row)
    yield row.contender
    yield f"{found['median'] * 1e3:.4g}" if found else "–"
    yield f"{(found['q3'] - found['q1']) * 1e3:.2g}" if found else "–"
    yield f"{ratio.value:.3f}" if ratio else "✗" if row.problem else "–"
    yield f"{ratio.low:.3f} – {ratio.high:.3f}" if ratio else "–"
    if with_rate:
        yield f"{rate:.4g}" if rate else "–"
    d = row.difference
    yield from ((_number(d["largest"]), _number(d["mean"])) if d else ("–", "–"))
    yield "✗" if row.problem else "right"
    yield f"{row.first_call_s:.2f}" if row.first_call_s is not None else "–"
    yield f"{row.memory['peak'] / 1e6:.0f}" if "peak" in row.memory else NOT_AVAILABLE if row.memory else "not measured"
    yield f"{row.energy_j:.3g}" if row.energy_j is not None else NOT_AVAILABLE


def _notes(row: Row) -> list[str]:
    told = [row.problem] if row.problem else []
    if row.warm_up and not row.warm_up["stable"]:
        seconds = row.warm_up["seconds"]
        told.append(f"not stable after a warm-up of {seconds:.1f} s (changes by {float(row.warm_up['change']):.0%})")
    if "peak" in row.memory:
        over = row.memory["over_inputs"] / 1e6
        told.append(f"peak memory is {row.memory['of']}, {over:.0f} MB over model and inputs")
    elif row.memory:
        told.append(f"peak memory {row.memory['problem']}")
    return told + row.notes


def _number(value: Any) -> str:
    return f"{float(value):.2e}"


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
