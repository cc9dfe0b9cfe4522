"""Studies as JSON lines: the first has where and how, each other one a row with all its samples."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_max_backend.base.errors import EvidenceError
from torch_max_backend.evidence.regressions import Change
from torch_max_backend.evidence.study import Row, Study

VERSION = 1
SUMMARY = "summary"
"""What follows from a row's samples: for readers of a file, and not read again."""


def to_lines(study: Study) -> str:
    """The study as JSON lines."""
    head = {
        "record": "study",
        "version": VERSION,
        "environment": study.environment,
        "settings": study.settings,
        "roofs": study.roofs,
    }
    rows = [{"record": "row", **dataclasses.asdict(row), SUMMARY: study.summary(row)} for row in study.rows]
    return "".join(json.dumps(_plain(line)) + "\n" for line in [head, *rows])


def changes_to_lines(changed: Sequence[Change], percent: float) -> str:
    """Changes since an earlier study as JSON lines."""
    lines = [{"record": "change", **dataclasses.asdict(c), "told": c.told(percent)} for c in changed]
    return "".join(json.dumps(_plain(line)) + "\n" for line in lines)


def check_folder(file: Path) -> None:
    """Refuse a file that cannot be written, before anything is measured.

    Raises:
        EvidenceError: Its folder is not there, or is not ours to write into.
    """
    if not file.parent.is_dir() or file.is_dir():
        raise EvidenceError(f"{file} must be a file in a folder that exists")
    if not os.access(file.parent, os.W_OK):
        raise EvidenceError(f"{file} must be in a folder that can be written into")


def save(study: Study, file: Path) -> None:
    """Write a study; a reader never sees half of one.

    Raises:
        EvidenceError: The file cannot be written.
    """
    check_folder(file)
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    temporary.write_text(to_lines(study), encoding="utf-8")
    temporary.replace(file)


def load(file: Path) -> Study:
    """A study from a file.

    Raises:
        EvidenceError: There is no such file, or it holds no study of this version.
    """
    try:
        head, *rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        if head["record"] != "study" or head["version"] != VERSION:
            raise EvidenceError(f"{file} must be a study of version {VERSION}, got version {head['version']}")
        fields = [{k: v for k, v in row.items() if k not in ("record", SUMMARY)} for row in rows]
        return Study(head["environment"], head["settings"], head["roofs"], [Row(**f) for f in fields])
    except OSError as error:
        raise EvidenceError(f"{file}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, EvidenceError):
            raise
        raise EvidenceError(f"{file} is no study that `bench --save` wrote: {error}") from error


def _plain(value: Any) -> Any:
    """Numbers that JSON has: others are texts."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
