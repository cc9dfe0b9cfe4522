"""The notebook runs from its first cell to its last, and is kept without what a run leaves in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[2] / "examples" / "quickstart.ipynb"


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    notebook = json.loads(FILE.read_text())
    assert notebook["nbformat"] == 4
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.any_runner("a text")
def test_it_is_kept_without_outputs(cells: list[dict[str, Any]]) -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


@pytest.mark.sampled
def test_every_cell_runs(
    cells: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one namespace, as in a kernel. Its own assertions hold results against eager's."""
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")  # as users have it
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"{FILE.name}, cell {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert "program(s)" in printed and "aten._fft_r2c.default: MAX has no Fourier transform" in printed
    assert "1 graph for three sizes" in printed
