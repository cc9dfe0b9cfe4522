"""Records: what was measured, with what, and where, as JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.suites import Suite
from torch_max_backend.measurement.machine import cpu_name

VERSION = 1
FOLDER = Path(__file__).with_name("records")
PACKAGES = ("torch", "max", "mojo-compiler", "triton", "transformers", "timm", "torch-max-backend")
SAME = ("packages", "cpu", "cpus", "python")
"""What must be equal for two runs to share a record."""

Record = dict[str, Any]


class RecordError(Exception):
    """A file is no record, or does not fit; the message says why."""


def environment() -> Record:
    """Versions and machine. Facts about a device are added by the process that uses it."""
    return {
        "packages": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "system": platform.system(),
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),  # before anything of ours runs
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""  # run from a source tree, or not there


def _commit() -> str:
    """The commit that is measured, with a plus if files were changed; empty outside of a repository."""
    where = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", where, *arguments], capture_output=True, text=True).stdout.strip()

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if commit and git("status", "--porcelain", "--untracked-files=no") else "")
    except OSError:
        return ""


def new(command: str) -> Record:
    """An empty record."""
    return {
        "version": VERSION,
        "commands": [command],
        "environment": environment(),
        "devices": {},
        "compiling": {},
        "suites": {},
        "rows": [],
    }


def row_for(record: Record, suite: Suite, case: str, what: str, parameters: Record) -> Record:
    """The row of a case, which is added if it is not there."""
    record["suites"][suite.name] = json.loads(json.dumps(suite.facts()))
    for row in record["rows"]:
        if row["suite"] == suite.name and row["case"] == case:
            return row
    row = {"suite": suite.name, "case": case, "what": what, "parameters": parameters, "contenders": {}}
    record["rows"].append(row)
    return row


def is_complete(record: Record, suite: str, case: str, contenders: list[str]) -> bool:
    """Whether a case has times or problems for all these contenders."""
    rows = [r for r in record["rows"] if r["suite"] == suite and r["case"] == case]
    found = rows[0]["contenders"] if rows else {}
    return all("times" in found.get(name, {}) or found.get(name, {}).get("problem") for name in contenders)


def load(file: Path) -> Record:
    """A record from a file.

    Raises:
        RecordError: It is none, or one of another version.
    """
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{file}: {error}") from error
    if not isinstance(record, dict) or record.get("version") != VERSION:
        raise RecordError(f"{file} is no record of version {VERSION}")
    return record


def resume(file: Path, command: str) -> Record:
    """The record in a file, to be continued; a new one if there is no file.

    Raises:
        RecordError: It was made with other versions or on another machine.
    """
    fresh = new(command)
    if not file.exists():
        return fresh
    record = load(file)
    for key in SAME:
        if record["environment"][key] != fresh["environment"][key]:
            raise RecordError(f"{file} was made with another environment: {key} was {record['environment'][key]}")
    record["commands"].append(command)
    record["environment"] = fresh["environment"]
    return record


def save(record: Record, file: Path) -> None:
    """Write a record; a reader never sees half of one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(rounded(record), indent=1) + "\n", encoding="utf-8")
    temporary.replace(file)


def rounded(value: Any) -> Any:
    """Numbers with six digits, and none that JSON does not have."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if value - value == 0 else str(value)
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v) for v in value]
    return value
