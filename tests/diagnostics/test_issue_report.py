"""``torch-max-backend report``: one file, and nothing in it that was not asked for."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from torch_max_backend.base.errors import CompileError
from torch_max_backend.cli import app
from torch_max_backend.compile.compiler import compile_regions

MODEL = """
import torch

def make():
    return torch.nn.Linear(4, 2), (torch.full((1, 4), 0.123),)

def broken():
    raise RuntimeError("not today")

def with_islands():
    return (lambda x: torch.fft.rfft(x * 2).abs() + 1), (torch.ones(4, 8),)

def raises_when_called():
    def index(x, i):
        return x.sin()[i]
    return index, (torch.ones(4), torch.tensor([9]))
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


@pytest.mark.parametrize("ending", ["json", "md"])
def test_it_runs_the_model_if_asked_to_and_tells_what_fails(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")  # as for who reports

    def failures(function: str) -> str:
        text = report(tmp_path / f"report.{ending}", model.replace(":make", f":{function}"), "--run")
        return "\n".join(json.loads(text)["failures"]) if ending == "json" else text.partition("## Failures")[2]

    assert failures("make").strip() in ("", "```text\nIt ran, and nothing was said.\n```")
    assert "MAX has no Fourier transform" in failures("with_islands")
    raised = failures("raises_when_called")
    assert "index 9 is out of bounds for dimension 0 with size 4" in raised and "Traceback" in raised
    assert "RuntimeError: not today" in failures("broken")


def test_a_compiler_that_fails_is_told(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch runs the graph then, and the program goes on."""

    def fails(regions: list[Any], *rest: Any) -> Any:
        if regions:
            raise CompileError("MAX does not like this region")
        return compile_regions(regions, *rest)

    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "graph")
    monkeypatch.setattr("torch_max_backend.frontend.pipeline.compile_regions", fails)
    text = report(tmp_path / "report.md", model, "--run")
    assert "MAX does not like this region" in text.partition("## Failures")[2]


@pytest.mark.any_runner("data")
def test_data_are_written_if_asked_for(tmp_path: Path, model: str) -> None:
    found = json.loads(report(tmp_path / "report.json", model, "--with-data"))
    data = torch.load(io.BytesIO(base64.b64decode(found["data"])))
    assert set(data["weights"]) == {"weight", "bias"}
    assert torch.equal(data["arguments"][0][0], torch.full((1, 4), 0.123))
    assert "## Data" in report(tmp_path / "report.md", model, "--with-data")


@pytest.mark.any_runner("usage")
@pytest.mark.parametrize("arguments", [["-o", "report.txt"], ["--with-data"], ["--run"]])
def test_wrong_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["report", *arguments]).exit_code == 2
