"""``torch-max-backend bench``: what it prints and writes, and its exit statuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from torch_max_backend.cli import app
from torch_max_backend.evidence import measuring

QUICK = ["--rounds", "5", "--sample-ms", "0.5", "--warm-up-s", "0.05"]
pytestmark = pytest.mark.any_runner("eager, or contenders that are made up")


def bench(*arguments: str, contenders: str = "eager", status: int = 0) -> str:
    result = CliRunner().invoke(app, ["bench", *arguments, "--contenders", contenders, *QUICK])
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture
def same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every contender is eager."""
    monkeypatch.setattr(measuring, "compiled", lambda name, function: function)


@pytest.mark.usefixtures("same")
def test_markdown_json_and_plot(models: str, tmp_path: Path) -> None:
    page, picture = tmp_path / "study.md", tmp_path / "study.svg"
    told = bench(
        models + "several", "--items", "12", "--unit", "token", "--markdown", str(page), "--plot", str(picture),
        contenders="eager,inductor",
    )  # fmt: skip
    assert page.read_text() in told
    assert "## models_to_measure:several[sum]" in told and "## models_to_measure:several[scaled]" in told
    assert "tokens/s" in told and "| inductor |" in told
    assert "<svg" in picture.read_text()
    lines = [json.loads(x) for x in bench(models + "mlp", "--json").splitlines() if x.startswith("{")]
    assert [line["record"] for line in lines] == ["study", "row"]
    assert lines[1]["summary"]["speed_up"] == 1.0 and lines[1]["summary"]["median"] > 0
    assert len(lines[1]["wall"]) == 5 and lines[0]["settings"]["contenders"] == ["eager"]


def took(file: Path, seconds: float) -> None:
    """Change a study into one in which all calls took so long."""
    head, *rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        row["wall"] = [seconds] * len(row["wall"])
    file.write_text("".join(json.dumps(line) + "\n" for line in [head, *rows]))


def test_exit_statuses_of_a_comparison(models: str, tmp_path: Path) -> None:
    file = tmp_path / "before.jsonl"
    bench(models + "mlp", "--save", str(file))
    took(file, 1e-9)
    compared = [models + "mlp", "--compare", str(file)]
    assert "REGRESSION" in bench(*compared)
    assert "REGRESSION" in bench(*compared, "--fail-on-regression", status=1)
    assert "REGRESSION" not in bench(*compared, "--fail-on-regression", "--threshold", "1e15")
    assert '"told": "REGRESSION"' in bench(*compared, "--json")
    took(file, 1e3)
    assert "| faster |" in bench(*compared, "--fail-on-regression")


def test_wrong_results_have_a_status_of_their_own(models: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench(models + "mlp", "--save", str(tmp_path / "before.jsonl"))

    def made(name: str, function: Any) -> Any:
        return function if name == "eager" else lambda *args: function(*args) * 1.5

    monkeypatch.setattr(measuring, "compiled", made)
    told = bench(models + "mlp", contenders="eager,max", status=3)
    assert "wrong results: the largest difference" in told
    arguments = [models + "mlp", "--compare", str(tmp_path / "before.jsonl"), "--fail-on-regression"]
    bench(*arguments, contenders="eager,max", status=3)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("nowhere", [], "has no function nowhere"),
        ("empty", [], "must give at least one case, got an empty dict"),
        ("nothing", [], "expected (model, args)"),
        ("broken", [], "does not run in eager"),
        ("eighths", [], "a result is float8_e4m3fn: give float8_e4m3fn=NUMBER"),
        ("mlp", ["--contenders", "eagre"], "did you mean 'eager'?"),
        ("mlp", ["--contenders", ","], "got none"),
        ("mlp", ["--device", "cuda:77"], "--device must be one of cpu"),
        ("mlp", ["--by", "luck"], "'luck'"),
        ("mlp", ["--tolerance", "float32"], "--tolerance must be DTYPE=NUMBER such as float32=1e-5, got 'float32'"),
        ("mlp", ["--tolerance", "floot=1"], "tolerance must be for a dtype of torch"),
        ("mlp", ["--threshold", "3"], "--threshold and --fail-on-regression need --compare FILE"),
        ("mlp", ["--fail-on-regression"], "need --compare FILE"),
        ("mlp", ["--markdown", "nowhere/study.md"], "--markdown nowhere/study.md must be a file in a folder that"),
        ("mlp", ["--plot", "nowhere/study.svg"], "--plot nowhere/study.svg must be a file in a folder that exists"),
        ("mlp", ["--compare", "nowhere.jsonl"], "--compare nowhere.jsonl: No such file"),
        ("mlp", ["--plot", "study.txt"], "--plot must end in one of .svg, .png, .pdf, got 'study.txt'"),
        ("mlp", ["--rounds", "1"], "rounds must be at least 2, got 1"),
        ("mlp", ["--save", "nowhere/study.jsonl"], "--save nowhere/study.jsonl must be a file in a folder that"),
    ],
)
def test_bad_input_has_no_answer(
    models: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["bench", models + function, "--contenders", "eager", *QUICK, *arguments])
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.replace("│", " ").split())


def test_a_file_that_is_missing() -> None:
    assert "there is no file nowhere.py" in bench("nowhere.py:mlp", status=2)
    assert CliRunner().invoke(app, ["bench"]).exit_code == 2


def test_a_study_of_another_machine(models: str, tmp_path: Path) -> None:
    file = tmp_path / "before.jsonl"
    bench(models + "mlp", "--save", str(file))
    file.write_text(file.read_text().replace('"threads": "', '"threads": "10', 1))
    told = bench(models + "mlp", "--compare", str(file), status=2)
    assert f"--compare {file}: the study compared with must be of this machine: its threads is" in told
    assert "starts" not in told, "it is refused before anything is measured"


def test_without_matplotlib_a_plot_is_refused(models: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    told = bench(models + "mlp", "--plot", str(tmp_path / "study.svg"), status=2)
    assert "--plot needs matplotlib: pip install 'torch-max-backend[plot]'" in told
    assert "starts" not in told, "it is refused before anything is measured"
