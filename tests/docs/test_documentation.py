"""What the documentation says holds: its Python runs, its Mojo compiles, its paths exist, its tables are current."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import typer
from mojo.run import subprocess_run_mojo

from tests.support.harness import STRICT
from torch_max_backend import compile_together
from torch_max_backend.array import page
from torch_max_backend.aten_functions.registry import aten_functions, missing_names
from torch_max_backend.cli import app
from torch_max_backend.diagnostics.docs import with_options
from torch_max_backend.ops.page import with_tables
from torch_max_backend.options import resolve

ROOT = Path(__file__).resolve().parents[2]
SKILLS = sorted(ROOT.glob(".claude/skills/*/SKILL.md"))
AS_PROGRAMS = "docs/why-is-this-slow.md"
DEBUGGING = "docs/debugging.md"
BENCHMARKING = "docs/benchmarking.md"
WITH_CODE = ["README.md", "CONTRIBUTING.md", "docs/public-ops.md", *(str(p.relative_to(ROOT)) for p in SKILLS)]
PAGES = sorted(
    {*WITH_CODE, "CHANGELOG.md", "SECURITY.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))}
)
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MADE_LATER = {"uv.lock", ".venv"}
"""Paths that a page may name although a fresh clone does not have them."""

group = pytest.mark.xdist_group("documentation")


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return [code for kind, code in FENCE.findall((ROOT / page).read_text()) if kind == language]


# -- Python --------------------------------------------------------------------------------------------------------
def run_python(page: str, folder: Path) -> None:
    """Execute the Python blocks of a page one after the other, as one module."""
    name = "documentation_" + re.sub(r"\W+", "_", page).strip("_").lower()
    module = sys.modules[name] = types.ModuleType(name)  # what is pickled is found there by name
    for i, code in enumerate(blocks(page, "python")):
        file = folder / f"{name}_{i}.py"  # a real file, so that tracebacks and source digests find it
        file.write_text(code)
        torch._dynamo.reset()
        exec(compile(code, str(file), "exec"), module.__dict__)


@contextlib.contextmanager
def own_registry() -> Iterator[None]:
    """Lowerings registered inside the block are forgotten after it."""
    kept = aten_functions.lowerings.copy()
    try:
        yield
    finally:
        aten_functions.lowerings = kept


@functools.cache
def compile_all(folder: Path) -> None:
    """Compile the graphs of all pages together, once; what fails here fails again in the page's own test."""
    with own_registry(), compile_together(resolve(STRICT)):  # graphs are lowered once more when the block ends
        for page in WITH_CODE:
            with contextlib.suppress(Exception):
                run_python(page, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("documentation")


@group
@pytest.mark.parametrize(
    "page",
    [
        *WITH_CODE,
        *("docs/admission.md", "docs/control-flow.md", "docs/patching.md", "docs/quantisation.md"),
        pytest.param("docs/training.md", marks=pytest.mark.full),
    ],
)
def test_python_runs(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")  # as for who copies it
    assert blocks(page, "python"), "a page without an example needs no place in WITH_CODE"
    compile_all(folder)
    with own_registry():
        run_python(page, folder)


def test_the_page_on_speed_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    run_python(AS_PROGRAMS, folder)
    told = capsys.readouterr().out
    assert "4 x ATen aten.addmm.default" in told
    assert "with_a_branch 2 graph(s)" in told
    assert "without_a_branch 1 graph(s)" in told
    assert re.search(r"kernel1 gelu +│ +20 │", told)
    assert "TorchDynamo Cache Lookup" in told


def test_the_page_on_debugging_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    try:
        run_python(DEBUGGING, folder)
    finally:
        torch._logging.set_logs()
    told, (shown,) = capsys.readouterr().out, [b for b in blocks(DEBUGGING, "text") if "graph(s)" in b]
    assert [line.rstrip() for line in told.splitlines()] == shown.splitlines()


def test_the_page_on_benchmarking_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    run_python(BENCHMARKING, folder)
    told = capsys.readouterr().out
    assert "## block" in told and "- max: 1 graph(s), 3 kernel launches" in told
    assert "| max |" in told and "islands" not in told


@pytest.mark.any_runner("usage")
@pytest.mark.parametrize("command", [line for block in blocks(BENCHMARKING, "sh") for line in block.splitlines()])
def test_its_options_exist(command: str) -> None:
    program, name, *arguments = shlex.split(command)
    assert program == "torch-max-backend"
    typer.main.get_command(app).commands[name].make_context(name, arguments)  # type: ignore[attr-defined]


@pytest.mark.any_runner("texts")
def test_the_page_on_patching_shows_what_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first block prints the table before it compiles."""
    code = blocks("docs/patching.md", "python")[0].split("compiled = ")[0]
    exec(compile(code, str(folder / "patching.py"), "exec"), {"__name__": __name__})
    assert capsys.readouterr().out == blocks("docs/patching.md", "text")[0]


@pytest.mark.full
@pytest.mark.any_runner("commands")
@pytest.mark.parametrize("command", [line for block in blocks(AS_PROGRAMS, "sh") for line in block.splitlines()])
def test_its_commands_run(command: str, tmp_path: Path) -> None:
    """Where the package is installed, since its names are entry points."""
    (tmp_path / "slow.py").write_text("\n".join(blocks(AS_PROGRAMS, "python")))
    scripts = str(Path(sys.executable).parent)
    own = {**os.environ, "TORCH_MAX_BACKEND_EXECUTOR": "auto", "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(command, shell=True, cwd=tmp_path, env=own, check=True)


# -- Mojo ----------------------------------------------------------------------------------------------------------
@pytest.mark.any_runner("Mojo's compiler")
@group
@pytest.mark.parametrize("page", [p for p in WITH_CODE if blocks(p, "mojo")])
def test_mojo_compiles(page: str, tmp_path: Path) -> None:
    package = tmp_path / "example_kernels"
    package.mkdir()
    (package / "__init__.mojo").touch()
    for i, code in enumerate(blocks(page, "mojo")):
        (package / f"block_{i}.mojo").write_text(code)
    arguments = ["precompile", str(package), "-o", str(tmp_path / "example_kernels.mojoc")]
    done = subprocess_run_mojo(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.any_runner("Mojo's compiler")
def test_mojo_blocks_that_are_wrong_do_not_pass(tmp_path: Path) -> None:
    package = tmp_path / "broken"
    package.mkdir()
    (package / "__init__.mojo").write_text("from nowhere import nothing\n")
    arguments = ["precompile", str(package), "-o", str(tmp_path / "broken.mojoc")]
    assert subprocess_run_mojo(arguments, capture_output=True, text=True).returncode != 0


# -- paths ---------------------------------------------------------------------------------------------------------
PATH = re.compile(r"\.?[\w<>*-][\w<>*.-]*(/[\w<>*.-]+)*/?")
SUFFIXES = (".py", ".md", ".toml", ".yaml", ".mojo", ".sh", ".lock", ".txt")


def looks_like_path(text: str) -> bool:
    """Whether a quoted text names a file or folder of this repository: by its suffix, or by its first component."""
    if not PATH.fullmatch(text):
        return False
    first = text.split("/")[0]
    return text.endswith(SUFFIXES) or ("/" in text and any((base / first).exists() for base in bases(ROOT)))


def bases(folder: Path) -> list[Path]:
    """Where a quoted path may start."""
    return [ROOT, ROOT / "torch_max_backend", folder]


def exists(path: str, folder: Path) -> bool:
    """Whether the path exists; a part in angle brackets stands for any text."""
    pattern = re.sub(r"<[^>]*>", "*", path).rstrip("/")
    return pattern in MADE_LATER or any(True for base in bases(folder) for _ in base.glob(pattern))


LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def quoted_paths(text: str) -> Iterator[str]:
    """Paths in backticks and the targets of relative links, outside fenced blocks."""
    prose = FENCE.sub("", text)
    for quoted in re.findall(r"`([^`\n]+)`", LINK.sub("", prose)):
        if looks_like_path(quoted):
            yield quoted
    for _, target in LINK.findall(prose):
        if "://" not in target and not target.startswith(("#", "mailto:")):
            yield target.split("#")[0]


@pytest.mark.any_runner("texts")
@pytest.mark.parametrize("page", PAGES)
def test_named_paths_exist(page: str) -> None:
    file = ROOT / page
    missing = [p for p in quoted_paths(file.read_text()) if not exists(p, file.parent)]
    assert not missing


@pytest.mark.any_runner("texts")
def test_missing_paths_are_noticed() -> None:
    text = (
        "See `tests/nothing.py`, `tests/<name>.py`, `a/b`, `aten.add`, [here](nowhere.md) and ![x](https://y.z/w.md)."
    )
    found = list(quoted_paths(text))
    assert found == ["tests/nothing.py", "tests/<name>.py", "nowhere.md"]
    assert [exists(p, ROOT) for p in found] == [False, True, False]


# -- the rest ------------------------------------------------------------------------------------------------------
@pytest.mark.any_runner("texts")
def test_options_table_is_current() -> None:
    text = (ROOT / "README.md").read_text()
    assert with_options(text) == text, "run: python -m torch_max_backend.diagnostics.docs --write"


@pytest.mark.any_runner("texts")
def test_tables_of_public_ops_are_current() -> None:
    text = (ROOT / "docs/public-ops.md").read_text()
    assert with_tables(text) == text, "run: python -m torch_max_backend.ops.page --write"


@pytest.mark.any_runner("texts")
def test_the_table_of_functions_of_arrays_is_current() -> None:
    text = (ROOT / "docs/arrays.md").read_text()
    assert page.with_tables(text) == text, "run: python -m torch_max_backend.array.page --write"


@pytest.mark.any_runner("texts")
def test_the_two_commands_come_first() -> None:
    first = blocks("README.md", "sh")[0]
    assert first.splitlines() == ["uv run torch-max-backend demo", "uv run pytest"]


@pytest.mark.any_runner("texts")
@pytest.mark.parametrize("skill", SKILLS, ids=lambda p: p.parent.name)
def test_skills_have_front_matter(skill: Path) -> None:
    head = re.match(r"---\nname: (.+)\ndescription: (.+)\n---\n", skill.read_text())
    assert head, "expected front matter with name and description"
    assert head[1] == skill.parent.name


@pytest.mark.any_runner("signatures")
def test_lowerings_use_the_names_of_the_schema() -> None:
    wrong = [
        f"{low.overload}: {missing_names(low.overload, low.function)}"
        for low in aten_functions
        if low.is_own and missing_names(low.overload, low.function)
    ]
    assert not wrong
