"""``torch-max-backend report``: one file, and nothing in it that was not asked for."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from torch_max_backend.cli import app

MODEL = """
import torch

def make():
    return torch.nn.Linear(4, 2), (torch.full((1, 4), 0.123),)

def broken():
    raise RuntimeError("not today")
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(MODEL)
    return f"{tmp_path / 'model.py'}:make"


def report(file: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["report", *arguments, "-o", str(file)])
    assert result.exit_code == 0, result.output
    assert str(file) in result.output.replace("\n", "")
    return file.read_text()


@pytest.mark.any_runner("facts of the machine")
def test_versions_machine_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_MAX_BACKEND_MIN_BLOCK_SIZE", "7")
    monkeypatch.setenv("HF_TOKEN", "secret")
    found = json.loads(report(tmp_path / "report.json"))
    assert set(found) == {"versions", "machine", "options", "environment"}
    assert found["versions"]["max"].startswith("26.")
    assert found["options"]["min_block_size"] == "7"
    assert "HF_TOKEN" not in found["environment"]
    assert "| min_block_size | `7` |" in report(tmp_path / "report.md")


def test_a_model_with_its_coverage_and_graph(tmp_path: Path, model: str) -> None:
    found = json.loads(report(tmp_path / "report.json", model))
    assert found["coverage"]["islands"] == 0
    assert "aten.addmm.default" in found["code"][0]["code"]
    assert "data" not in found
    text = report(tmp_path / "report.md", model)
    assert "torch.ops.aten.addmm.default" in text and "## Data" not in text
    assert "0.123" not in text.replace("torch.full((1, 4), 0.123)", "")


@pytest.mark.any_runner("errors")
def test_what_raises_is_reported(tmp_path: Path, model: str) -> None:
    text = report(tmp_path / "report.md", model.replace(":make", ":broken"))
    assert "RuntimeError: not today" in text and "## Versions" in text


@pytest.mark.any_runner("data")
def test_data_are_written_if_asked_for(tmp_path: Path, model: str) -> None:
    found = json.loads(report(tmp_path / "report.json", model, "--with-data"))
    data = torch.load(io.BytesIO(base64.b64decode(found["data"])))
    assert set(data["weights"]) == {"weight", "bias"}
    assert torch.equal(data["arguments"][0][0], torch.full((1, 4), 0.123))
    assert "## Data" in report(tmp_path / "report.md", model, "--with-data")


@pytest.mark.any_runner("usage")
@pytest.mark.parametrize("arguments", [["-o", "report.txt"], ["--with-data"]])
def test_wrong_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["report", *arguments]).exit_code == 2
