"""What a bug report needs, in one file: versions, machine, options, and of a model coverage, graphs and failures."""

from __future__ import annotations

import base64
import dataclasses
import inspect
import io
import json
import logging
import os
import platform
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torch_max_backend.base.digests import cpu_target, package_version
from torch_max_backend.diagnostics.coverage import Coverage, coverage_of
from torch_max_backend.diagnostics.graph_plot import svg
from torch_max_backend.diagnostics.verify.whole_function import run_once
from torch_max_backend.options import ENVIRONMENT_ONLY, PREFIX, resolve
from torch_max_backend.runtime.session import get_accelerators

PACKAGE = "torch_max_backend"
PACKAGES = ("torch-max-backend", "torch", "max", "mojo-compiler", "transformers", "timm", "torchvision", "diffusers")
FLAGS = ("TORCH_LOGS", "TORCHDYNAMO_", "TORCHINDUCTOR_", "MODULAR_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
"""Beginnings of the variables of other packages that change what happens."""


def facts() -> dict[str, dict[str, str]]:
    """Versions, machine and options, by section and name."""
    versions = {name: package_version(name) for name in PACKAGES}
    return {
        "versions": {"python": platform.python_version(), **versions, "cuda of torch": torch.version.cuda or "none"},
        "machine": {
            "system": platform.platform(),
            "cpu": cpu_target(),
            "threads of torch": str(torch.get_num_threads()),
            "gpus that MAX can use": ", ".join(f"{d.api}:{d.architecture_name}" for d in get_accelerators()) or "none",
        },
        "options": {name: repr(value) for name, value in dataclasses.asdict(resolve()).items()},
        "environment": {k: os.environ[k] for k in sorted(os.environ) if _matters(k)},
    }


def _matters(variable: str) -> bool:
    return variable.startswith(FLAGS) or variable in {PREFIX + name for name in ENVIRONMENT_ONLY}


def write_report(
    path: Path,
    make: Callable[..., Any] | None,
    device: str = "cpu",
    training: bool = False,
    with_data: bool = False,
    run: bool = False,
) -> None:
    """Write a report.

    Args:
        path: The file, ``.md`` or ``.json``.
        make: Gives a model and its arguments, as for ``coverage_of``; it is run once more for the data, and to run it.
        run: Whether the model is compiled and called, and what fails goes into the report.
        with_data: Whether the model's weights and its arguments go into the report: what ``torch.save`` writes, in
            base64.
    """
    found: Coverage | str | None = None
    if make is not None:
        try:
            found = coverage_of(make, device, training)
        except Exception:  # that it cannot be told may be what is reported
            found = traceback.format_exc()
    failures = _failures(make, device, training) if make is not None and run else None
    data = _data(make) if make is not None and with_data else ""
    write = _json if path.suffix == ".json" else _markdown
    text = write(facts(), found, failures, data)
    path.write_text(text, encoding="utf-8")


def _failures(make: Callable[..., Any], device: str, training: bool) -> list[str]:
    """What goes wrong when the model is compiled and called: the log's warnings, then the error that ends it."""
    records = _Records()
    log = logging.getLogger(PACKAGE)
    log.addHandler(records)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            run_once(make, device, training)
    except Exception:
        records.found.append(traceback.format_exc())
    finally:
        log.removeHandler(records)
    return [*(str(w.message) for w in warned if PACKAGE in f"{w.filename} {w.message}"), *records.found]


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


def _data(make: Callable[..., Any]) -> str:
    fn, *arguments = make(*(("cpu",) if inspect.signature(make).parameters else ()))
    content = {"arguments": arguments, "weights": fn.state_dict() if isinstance(fn, nn.Module) else {}}
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def _json(told: dict[str, dict[str, str]], found: Coverage | str | None, failures: list[str] | None, data: str) -> str:
    content: dict[str, Any] = dict(told)
    if isinstance(found, str):
        content["coverage"] = found
    elif found is not None:
        content["coverage"] = found.as_dict()
        content["code"] = [{"kind": g.kind, "code": g.code} for g in found.graphs]
    if failures is not None:
        content["failures"] = failures
    if data:
        content["data"] = data
    return json.dumps(content, indent=1) + "\n"


def _markdown(
    told: dict[str, dict[str, str]], found: Coverage | str | None, failures: list[str] | None, data: str
) -> str:
    lines = ["# Report of torch-max-backend"]
    for section, values in told.items():
        lines += ["", f"## {section.capitalize()}", "", "| name | value |", "|---|---|"]
        lines += [f"| {name} | `{value}` |" for name, value in values.items()]
    if found is not None:
        lines += ["", "## Coverage", "", "```text", str(found), "```"]
        if not isinstance(found, str):
            lines += ["", svg(found.graphs).rstrip()]
        for graph in () if isinstance(found, str) else found.graphs:
            lines += ["", f"## Graph: {graph.kind}", "", "```python", graph.code.strip(), "```"]
    if failures is not None:
        lines += ["", "## Failures", "", "```text", "\n".join(failures) or "It ran, and nothing was said.", "```"]
    if data:
        lines += ["", "## Data", "", "`torch.load(io.BytesIO(base64.b64decode(...)))`", "", "```text", data, "```"]
    return "\n".join(lines) + "\n"
