"""A study as a picture: the samples of every contender as boxes, a panel a case."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from torch_max_backend.base.errors import EvidenceError
from torch_max_backend.evidence.study import Study

SUFFIXES = (".svg", ".png", ".pdf")


def check_plot(file: Path) -> None:
    """Refuse a plot that cannot be drawn, before anything is measured.

    Raises:
        EvidenceError: The name has another suffix, or matplotlib is not there.
    """
    if file.suffix not in SUFFIXES:
        raise EvidenceError(f"--plot must end in one of {', '.join(SUFFIXES)}, got {str(file)!r}")
    _figures()


def _figures() -> Any:
    try:
        return importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise EvidenceError(f"--plot needs matplotlib: pip install 'torch-max-backend[plot]' ({error})") from error


def draw(study: Study, file: Path) -> None:
    """Draw a study into a file."""
    figure = _figures().Figure(figsize=(8, 1 + sum(0.6 + 0.4 * len(_rows(study, c)) for c in study.cases)))
    panels = figure.subplots(len(study.cases), 1, squeeze=False)[:, 0]
    for panel, case in zip(panels, study.cases, strict=True):
        rows = _rows(study, case)
        panel.boxplot([[s * 1e3 for s in study.samples(r)] for r in rows], orientation="horizontal", widths=0.6)
        panel.set_yticks(range(1, len(rows) + 1), [_label(study, r) for r in rows])
        panel.invert_yaxis()
        panel.set_title(case, loc="left")
        panel.set_xlim(left=0)
        panel.set_xlabel("milliseconds a call")
    figure.tight_layout()
    figure.savefig(file)


def _rows(study: Study, case: str) -> list[Any]:
    return [row for row in study.rows if row.case == case and study.samples(row)]


def _label(study: Study, row: Any) -> str:
    ratio = study.speed_up(row)
    return row.contender + (f"  {ratio.value:.2f} x" if ratio else "  ✗" if row.problem else "")
