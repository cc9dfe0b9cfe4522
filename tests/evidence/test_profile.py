"""``torch-max-backend profile``: by tools that are made up, and by the built-in profiler."""

from __future__ import annotations

import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from torch_max_backend import reports
from torch_max_backend.base.errors import EvidenceError
from torch_max_backend.cli import app
from torch_max_backend.diagnostics import kernel_times
from torch_max_backend.evidence import ncu, profiling
from torch_max_backend.loops import small_products

made_up = pytest.mark.any_runner("tools that are made up")
LONG, SHORT = (f"smsp__average_warps_issue_stalled_{s}_scoreboard_per_issue_active.ratio" for s in ("long", "short"))
HEAD = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream"'

RAW = f"""==PROF== Connected to process 7
what the program prints
{HEAD},"{ncu.DURATION}","{ncu.DRAM}","{ncu.SM}","{ncu.TENSOR}","{LONG}","{SHORT}"
"","","","","","","","nsecond","%","%","%","inst","inst"
"0","7","python","127.0.0.1","kernel0(float *, int)","1","7","1,000","90.0","10.0","0","8.5","0.5"
"1","7","python","127.0.0.1","gemm","1","7","8,000","20.0","70.0","65.5","1.0","2.5"
"2","7","python","127.0.0.1","kernel0(float *, int)","1","7","3,000","50.0","30.0","0","4.5","n/a"
==PROF== Disconnected
"""
LONG_FORM = f"""{HEAD},"Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","python","127.0.0.1","gemm","1","7","Command line profiler metrics","{ncu.DRAM}","%","20.00"
"0","7","python","127.0.0.1","gemm","1","7","Command line profiler metrics","{ncu.DURATION}","usecond","8.00"
"0","7","python","127.0.0.1","gemm","1","7","Command line profiler metrics","sm__unknown","%","1"
"""


@pytest.fixture(autouse=True)
def _no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_times, "copy_speed", lambda: (1e9, "a test"))


def printed(kernels: list[ncu.Kernel]) -> list[str]:
    console = Console(width=200)
    with console.capture() as told:
        console.print(ncu.table(kernels))
    return told.get().splitlines()


# -- ncu -----------------------------------------------------------------------------------------------------------
@made_up
def test_metrics_are_found_by_name() -> None:
    gemm, kernel0 = ncu.parsed(RAW)
    assert (gemm.name, gemm.launches, gemm.seconds) == ("gemm", 1, pytest.approx(8e-6))
    assert (kernel0.name, kernel0.launches, kernel0.seconds) == ("kernel0(float *, int)", 2, pytest.approx(4e-6))
    assert kernel0.mean(ncu.DRAM) == pytest.approx((90 * 1 + 50 * 3) / 4), "weighted by durations"
    assert gemm.mean(ncu.TENSOR) == 65.5
    assert gemm.stalls() == [("short scoreboard", 2.5), ("long scoreboard", 1.0)]
    assert kernel0.stalls() == [("long scoreboard", pytest.approx(5.5)), ("short scoreboard", 0.5)]
    lines = printed([gemm, kernel0])
    (row,) = [line for line in lines if "gemm" in line]
    assert [cell.strip() for cell in row.strip("│ ").split("│")] == [
        "gemm", "1", "8.0", "20.0 %", "70.0 %", "65.5 %", "short scoreboard 2.50, long scoreboard 1.00",
    ]  # fmt: skip


@made_up
def test_a_line_a_metric_is_read_as_well() -> None:
    (gemm,) = ncu.parsed(LONG_FORM)
    assert gemm.seconds == pytest.approx(8e-6) and gemm.mean(ncu.DRAM) == 20.0
    assert gemm.mean(ncu.SM) is None and "–" in printed([gemm])[-2]


@made_up
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ncu gave no table with the columns ID and Kernel Name; the last it said is: nothing"),
        ("==ERROR== ERR_NVGPUCTRPERM\n", "the last it said is: ==ERROR== ERR_NVGPUCTRPERM"),
        (
            f'{HEAD},"other"\n"","","","","","","","%"\n"0","7","p","h","gemm","1","7","3"\n',
            "ncu measured none of gpu__",
        ),
        (RAW.replace('"nsecond"', '"fortnight"'), "ncu gives durations in 'fortnight'"),
    ],
)
def test_what_is_no_table(text: str, message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        ncu.parsed(text)


def tool(folder: Path, name: str, code: str) -> None:
    """A program on PATH in place of NVIDIA's."""
    file = folder / name
    file.write_text(f"#!{sys.executable}\nimport pathlib, subprocess, sys\n{code}\n")
    file.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of PATH."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def profile(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["profile", *arguments])
    assert result.exit_code == status, result.output
    return result.output


@made_up
def test_a_command_under_ncu(path: Path, tmp_path: Path) -> None:
    (tmp_path / "ncu.csv").write_text(RAW)
    code = f"""
at = sys.argv.index("--log-file")
assert "--csv" in sys.argv and sys.argv[sys.argv.index("--metrics") + 1].startswith("{ncu.DURATION},")
pathlib.Path(sys.argv[at + 1]).write_text(pathlib.Path({str(tmp_path / "ncu.csv")!r}).read_text())
sys.exit(subprocess.run(sys.argv[at + 2:]).returncode)
"""
    tool(path, "ncu", code)
    told = profile(sys.executable, "-c", "import sys; sys.exit(5)", status=5)
    assert "profiled by ncu" in told and "gemm" in told
    assert "profiled by the built-in profiler (as asked for)" in profile("--tool", "builtin", "python", "-m", "this")


@made_up
def test_a_command_under_the_sanitizer(path: Path) -> None:
    assert "compute-sanitizer (of NVIDIA's CUDA toolkit) is not on PATH" in profile("--sanitize", "x", status=2)
    tool(path, "compute-sanitizer", 'sys.exit(int(sys.argv[1:] == ["--error-exitcode", "1", "program", "--sanitize"]))')
    assert "profiled by compute-sanitizer" in profile("--sanitize", "program", "--sanitize", status=1)


@made_up
@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tool", "ncu", "x"], "ncu (NVIDIA Nsight Compute) is not on PATH"),
        (["./program", "--fast"], "the built-in profiler runs `python file.py`, `python -m module` or"),
        (["python", "nowhere.py"], "there is no file 'nowhere.py'"),
        (["python", "-m"], "there is no file '-m'"),
        (["nowhere.py:make"], "there is no file nowhere.py"),
        (["--calls", "0", "x.py:make"], "calls must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_profiled(arguments: list[str], message: str) -> None:
    assert message in profile(*arguments, status=2)


def test_another_tool_runs_a_function_in_a_process_of_this_package(
    models: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is this one here: what it is given is called, and compiled by this backend."""
    given: list[list[str]] = []
    with monkeypatch.context() as patch:  # a kernel may have to be compiled below
        patch.setattr(shutil, "which", lambda name: f"/{name}")
        patch.setattr(subprocess, "run", lambda command: given.append(command) or types.SimpleNamespace(returncode=0))
        profiling.sanitize([models + "mlp"], "cpu", calls=2)
    (command,) = given
    assert command[:5] == ["/compute-sanitizer", "--error-exitcode", "1", sys.executable, "-m"]
    assert command[5] == profiling.__name__
    before = len(reports())
    profiling.main(*command[6:])
    (report,) = reports()[before:]
    assert report.launches and not report.islands


# -- the built-in profiler -----------------------------------------------------------------------------------------
@pytest.mark.usefixtures("path")
def test_the_kernels_of_a_model(models: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_products, "SMALL", 0)  # products are a library's
    told = profile("--calls", "4", models + "mlp")
    assert "profiled by the built-in profiler (ncu is not on PATH)" in told
    assert "ATen aten.addmm.default" in told and "gelu" in told and "a copy moves 1 GB/s (a test)" in told
    (row,) = [line for line in told.splitlines() if "aten.addmm" in line]
    assert row.split("│")[2].strip() == "8", "two products in each of four calls"


@pytest.mark.usefixtures("path")
def test_the_kernels_of_a_program(tmp_path: Path) -> None:
    code = """
import sys
import torch
from beside import SIZE
compiled = torch.compile(lambda x: torch.softmax(x + 1, -1), backend="max_backend")
with torch.no_grad():
    compiled(torch.randn(8, SIZE))
sys.exit(int(sys.argv[1]))
"""
    (tmp_path / "beside.py").write_text("SIZE = 32\n")
    (tmp_path / "program.py").write_text(code)
    before = list(sys.argv), list(sys.path)
    told = profile("python", str(tmp_path / "program.py"), "3", status=3)
    assert "kernel0 add,softmax" in told
    assert (sys.argv, sys.path) == before


@pytest.mark.any_runner("a program without this backend")
@pytest.mark.usefixtures("path")
def test_a_program_without_kernels_of_ours(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import torch\ntorch.ones(3).sin()\n")
    told = profile("python3", str(tmp_path / "program.py"))
    assert "No kernel of this backend ran" in told and "aten::sin" in told
