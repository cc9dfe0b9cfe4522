"""Every example of a library gives eager's results, and runs where the table of the documentation says."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from torch_max_backend.diagnostics import report

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "libraries"
ROW = re.compile(r"^\| [^|]+ \| \[`(\w+)\.py`\]\([^)]*\) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """A row of the table: the file, and the ops that PyTorch runs in it."""

    name: str
    islands: frozenset[str]


def rows() -> list[Example]:
    """The table of docs/libraries.md; islands are the ops that stand in its last column."""
    text = (ROOT / "docs/libraries.md").read_text()
    return [Example(name, frozenset(re.findall(r"`(aten\.[\w.]+)`", ran))) for name, ran in ROW.findall(text)]


NEEDS = {
    "accelerate_training": "accelerate",
    "diffusers_models": "diffusers",
    "geometric_graphs": "torch_geometric",
    "lightning_training": "pytorch_lightning",
    "peft_lora": "peft",
    "sentence_embeddings": "sentence_transformers",
    "tensordict_modules": "torchrl",
    "torchaudio_models": "torchaudio",
    "transformers_trainer": "accelerate",
}
"""Packages that the development environment lacks, by example."""

HEAVY = {
    "diffusers_models",
    "dynamo_switches",
    "function_transforms",
    "geometric_graphs",
    "lightning_training",
    "peft_lora",
    "regional_compilation",
    "sentence_embeddings",
    "timm_training",
    "torchaudio_models",
    "torchvision_models",
    "transformers_generate",
    "transformers_quantised_cache",
    "transformers_trainer",
}
"""Those that take more than ten seconds on two cores."""


def _case(example: Example) -> object:
    marks = [pytest.mark.full if example.name in HEAVY else pytest.mark.sampled]
    package = NEEDS.get(example.name)
    if package is not None:
        there = importlib.util.find_spec(package) is not None
        marks.append(pytest.mark.skipif(not there, reason=f"{package} is not installed"))
    return pytest.param(example, id=example.name, marks=marks)


@pytest.mark.parametrize("example", [_case(e) for e in rows() if e.name != "cache_artifacts"])
def test_example(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: libraries take seconds to import."""
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")  # as for who runs it
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    report.clear()
    spec = importlib.util.spec_from_file_location(f"example_{example.name}", EXAMPLES / f"{example.name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    module.main()
    told = capsys.readouterr().out
    graphs = report.reports()
    assert sum(g.max_nodes for g in graphs), "nothing was compiled"
    assert {op for g in graphs for op in g.island_ops} == example.islands, told
    assert all(len(g.programs) == g.stats.regions for g in graphs), told


@pytest.mark.full
@pytest.mark.own_processes
def test_cache_artifacts(tmp_path: Path) -> None:
    """The example that starts processes of its own."""
    own = {**os.environ, "TORCH_MAX_BACKEND_EXECUTOR": "auto", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(EXAMPLES / "cache_artifacts.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=own, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("0 island op(s)") == 4


@pytest.mark.any_runner("texts")
def test_every_example_has_a_row() -> None:
    files = {p.stem for p in EXAMPLES.glob("*.py")} - {"what_ran"}
    assert sorted(e.name for e in rows()) == sorted(files)


@pytest.mark.any_runner("texts")
@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_examples_import_nothing_of_the_package(file: Path) -> None:
    imports = re.findall(r"^\s*(?:from|import) +torch_max_backend.*$", file.read_text(), re.MULTILINE)
    assert len(imports) == (file.stem == "what_ran"), imports


@pytest.mark.full
@pytest.mark.own_processes
def test_an_example_is_a_script(tmp_path: Path) -> None:
    own = {**os.environ, "TORCH_MAX_BACKEND_EXECUTOR": "auto"}
    command = [sys.executable, str(EXAMPLES / "tensor_subclasses.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=own, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the same, with gradients" in done.stdout and "0 island op(s)" in done.stdout
