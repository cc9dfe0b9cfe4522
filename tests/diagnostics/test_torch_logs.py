"""``TORCH_LOGS`` and ``torch._logging.set_logs`` know the package's log and artifacts."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from torch_max_backend.base import torch_logs
from torch_max_backend.base.torch_logs import ARTIFACTS, COMPONENT, KERNELS, LOOPS, SCHEDULE, TORCH_LOGGER, short
from torch_max_backend.diagnostics import logs
from torch_max_backend.frontend.warm_start import reason_against
from torch_max_backend.options import Options, resolve

pytestmark = pytest.mark.sampled

ROOT = Path(__file__).resolve().parents[2]
BEFORE_AUTOLOAD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)
Logs = Callable[..., None]

settings = pytest.mark.any_runner("levels and handlers")


# -- the environment variable --------------------------------------------------------------------------------------
PROGRAM = """
import sys
import torch

early = sorted(name for name in sys.modules if name.split(".")[0] in ("max", "torch_max_backend"))

def gated(x):
    return torch.softmax(x, -1) * 2

with torch.no_grad():
    torch.compile(gated, backend="max_backend", options={"executor": "auto"})(torch.randn(4, 8))
print(early)
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the program in a process of its own, where the package's entry points are those of ``pyproject.toml``."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = tmp_path / "torch_max_backend-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-max-backend\nVersion: 0.1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    (tmp_path / "program.py").write_text(PROGRAM)

    def call(**environment: str) -> subprocess.CompletedProcess[str]:
        own = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
        del own["TORCH_MAX_BACKEND_BEARTYPE"]  # a value of it makes the package import its options
        own |= {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch"), **environment}
        command = [sys.executable, str(tmp_path / "program.py")]
        return subprocess.run(command, env=own, capture_output=True, text=True, check=False)

    return call


@pytest.mark.any_runner("a process of its own")
@pytest.mark.own_processes
@pytest.mark.skipif(BEFORE_AUTOLOAD, reason="this torch reads TORCH_LOGS before it loads entry points")
def test_the_variable_is_enough(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    for _ in range(2):  # the second process has the graph in AOTAutograd's cache, and prints the same
        done = run(TORCH_LOGS=f"{COMPONENT},{','.join(ARTIFACTS)}")
        assert done.returncode == 0, done.stderr
        loops, schedule, kernels = (
            [line for line in done.stderr.splitlines() if f"[__{name}]" in line] for name in (LOOPS, SCHEDULE, KERNELS)
        )
        assert any("maximum over" in line for line in loops)
        assert any("kernel over" in line for line in schedule)
        assert any("def kernel0(" in line for line in kernels)
        assert any("# aten._softmax.default at" in line and "in gated: return" in line for line in kernels)
        assert any("def run(x0" in line for line in kernels)
        assert "graph 0/0 of" in done.stderr


@pytest.mark.any_runner("a process of its own")
@pytest.mark.own_processes
def test_without_it_nothing_is_printed_and_torch_imports_little(
    run: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    own = ["", ".base", ".base.cache_artifacts", ".base.torch_logs"]
    assert done.stdout.strip() == str([f"torch_max_backend{name}" for name in own])
    assert "max_backend" not in done.stderr


# -- set_logs ------------------------------------------------------------------------------------------------------
@pytest.fixture
def set_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Logs]:
    """Torch's own function for the names given, undone at the end."""
    monkeypatch.delenv("TORCH_LOGS", raising=False)
    torch_logs.register()

    def call(**names: int | bool) -> None:
        torch._logging.set_logs(modules=names)

    yield call
    torch._logging.set_logs()
    logs.configure(Options())


def compile_softmax() -> None:
    options = {"executor": "auto", "fallback": "error"}
    torch.compile(lambda x: torch.softmax(x, -1), backend="max_backend", options=options)(torch.randn(4, 8))


def test_artifacts_are_printed_where_they_are_asked_for(set_logs: Logs, capsys: pytest.CaptureFixture[str]) -> None:
    names = [LOOPS, SCHEDULE, KERNELS, *map(short, (LOOPS, SCHEDULE, KERNELS))]
    for name in names:
        torch._dynamo.reset()
        set_logs(**{name: True})
        compile_softmax()
        printed = capsys.readouterr().err
        assert {f"[__{other}]" in printed for other in names if other != name} == {False}
        assert f"[__{name}]" in printed
    torch._dynamo.reset()
    set_logs()
    compile_softmax()
    assert "max_backend" not in capsys.readouterr().err


def test_a_backward_is_printed_once(set_logs: Logs, capsys: pytest.CaptureFixture[str]) -> None:
    set_logs(max_backend_loops=True)
    options = {"executor": "auto", "fallback": "error"}
    x = torch.randn(4, 8, requires_grad=True)
    torch.compile(lambda x: torch.softmax(x, -1).sin(), backend="max_backend", options=options)(x).sum().backward()
    assert capsys.readouterr().err.count("loops of region 0") == 2


def test_the_log_has_no_artifacts(set_logs: Logs, capsys: pytest.CaptureFixture[str]) -> None:
    set_logs(**{COMPONENT: logging.DEBUG})
    compile_softmax()
    printed = capsys.readouterr().err
    assert "nodes: 1 program(s)" in printed
    assert "[__max_backend" not in printed


@settings
def test_what_is_kept_has_nothing_to_print(set_logs: Logs) -> None:
    assert reason_against(resolve()) == ""
    set_logs(**{COMPONENT: logging.DEBUG})
    assert reason_against(resolve()) == ""
    set_logs(max_backend_kernels=True)
    assert "logged" in reason_against(resolve())


# -- the package's own logger --------------------------------------------------------------------------------------
@settings
def test_the_logger_is_the_application_s(set_logs: Logs, caplog: pytest.LogCaptureFixture) -> None:
    """Torch's level is taken over while it is asked for; handlers of the application get every record."""
    logger = logging.getLogger("torch_max_backend")
    logs.configure(Options())
    before = logger.level
    set_logs(**{COMPONENT: logging.INFO})
    logs.configure(Options())
    assert logger.level == logging.INFO
    logger.info("to both")
    assert "to both" in caplog.text
    set_logs(**{COMPONENT: logging.ERROR})
    logs.configure(Options())
    logger.warning("to nobody")
    assert "to nobody" not in caplog.text
    set_logs()
    logs.configure(Options())
    assert logger.level == before
    assert logging.getLogger(TORCH_LOGGER) is not logger


@settings
def test_verbose_keeps_its_level(
    set_logs: Logs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("torch_max_backend")
    monkeypatch.setattr(logs, "_handler", None)
    handlers, level = list(logger.handlers), logger.level
    try:
        set_logs(**{COMPONENT: logging.ERROR})
        logs.configure(Options(verbose=True))
        set_logs()
        logs.configure(Options(verbose=True))
        logger.info("said aloud")
        assert capsys.readouterr().err.count("said aloud") == 1
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(level)
