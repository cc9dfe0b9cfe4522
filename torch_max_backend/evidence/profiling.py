"""``profile``: a command under ``ncu`` or ``compute-sanitizer``, or in this process under torch's profiler."""

from __future__ import annotations

import enum
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_max_backend.base.errors import EvidenceError
from torch_max_backend.diagnostics.kernel_times import kernel_times
from torch_max_backend.evidence import ncu
from torch_max_backend.evidence.cases import load_cases
from torch_max_backend.evidence.contenders import compiled
from torch_max_backend.measurement.roofs import kept
from torch_max_backend.options import PREFIX

SANITIZER = "compute-sanitizer"
CALLS = 10
WARM_UP_CALLS = 3
ROWS = 20
"""Rows of torch's own table."""


class Tool(enum.StrEnum):
    """What profiles."""

    auto = "auto"
    ncu = "ncu"
    builtin = "builtin"


@dataclass(frozen=True)
class Profile:
    """What a profile found: which tool made it and why, what is to be printed, and the command's exit status."""

    tool: str
    told: Any
    status: int


def is_target(command: Sequence[str]) -> bool:
    """Whether a command is ``path/to/file.py:function`` or ``module:function``, and no program."""
    return len(command) == 1 and ":" in command[0] and command[0].rpartition(":")[2].isidentifier()


def profile(command: Sequence[str], tool: Tool = Tool.auto, device: str = "cpu", calls: int = CALLS) -> Profile:
    """Profile a command: under ``ncu`` where it is, else by the built-in profiler.

    Args:
        command: A program with its arguments, or a function that gives models.
        device, calls: For such a function.

    Raises:
        EvidenceError: The tool is not there, or cannot run the command.
    """
    if not command:
        raise EvidenceError("COMMAND must be a program with its arguments, or path/to/file.py:function; got none")
    if calls < 1:
        raise EvidenceError(f"calls must be at least 1, got {calls}")
    found = shutil.which("ncu")
    if tool is Tool.ncu and found is None:
        raise EvidenceError("--tool ncu: ncu (NVIDIA Nsight Compute) is not on PATH; --tool builtin needs nothing")
    if found is not None and tool is not Tool.builtin:
        return _by_ncu(found, _program(command, device, calls))
    why = "as asked for" if tool is Tool.builtin else "ncu is not on PATH"
    told, status = _builtin(command, device, calls)
    return Profile(f"the built-in profiler ({why})", told, status)


def sanitize(command: Sequence[str], device: str = "cpu", calls: int = CALLS) -> Profile:
    """Run a command under ``compute-sanitizer``, whose report goes to the terminal.

    Raises:
        EvidenceError: It is not on PATH. The built-in profiler cannot look for wrong accesses in its place.
    """
    if not command:
        raise EvidenceError("COMMAND must be a program with its arguments, or path/to/file.py:function; got none")
    found = shutil.which(SANITIZER)
    if found is None:
        raise EvidenceError(
            f"--sanitize: {SANITIZER} (of NVIDIA's CUDA toolkit) is not on PATH, and nothing here can take its place. "
            "Indices out of range are found without it: see the option check_indices"
        )
    arguments = [found, "--error-exitcode", "1", *_program(command, device, calls)]
    done = subprocess.run(arguments)
    return Profile(SANITIZER, "", done.returncode)


def _program(command: Sequence[str], device: str, calls: int) -> list[str]:
    """The command as other tools run it: a function is called by a process of this package."""
    if not is_target(command):
        return list(command)
    return [sys.executable, "-m", __name__, command[0], device, str(calls)]


def _by_ncu(found: str, program: list[str]) -> Profile:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        done = subprocess.run(ncu.command(found, log, program))
        text = log.read_text() if log.exists() else ""
    return Profile("ncu", ncu.table(ncu.parsed(text)), done.returncode)


# -- the built-in profiler -----------------------------------------------------------------------------------------
def _builtin(command: Sequence[str], device: str, calls: int) -> tuple[Any, int]:
    if is_target(command):
        run = _calling(command[0], device, calls)
    elif Path(command[0]).name.startswith("python") and len(command) > 1:
        run = _running(list(command[1:]))
    else:
        raise EvidenceError(
            f"the built-in profiler runs `python file.py`, `python -m module` or path/to/file.py:function, got "
            f"{' '.join(command)!r}"
        )
    with profiled_options():
        found, status = run()
    return _table(found), status


def _calling(target: str, device: str, calls: int) -> Callable[[], tuple[Any, int]]:
    """Profiles settled calls of what a user's function gives."""

    def run() -> tuple[Any, int]:
        with torch.no_grad():
            ready = [case.caller(compiled("max", case.function), (), False) for case in load_cases(target, device)]
            for call in ready:
                for number in range(WARM_UP_CALLS):
                    call(number)
            with torch_profiler() as found:
                for call in ready:
                    for number in range(calls):
                        call(number)
        return found, 0

    return run


def _running(arguments: list[str]) -> Callable[[], tuple[Any, int]]:
    """Profiles a Python program in this process, from its first line to its end."""
    as_module = arguments[0] == "-m"
    if (as_module and len(arguments) < 2) or (not as_module and not Path(arguments[0]).is_file()):
        raise EvidenceError(f"COMMAND: there is no file {arguments[0]!r} for Python to run")

    def run() -> tuple[Any, int]:
        before, path, status = sys.argv, list(sys.path), 0
        sys.argv = arguments[1:] if as_module else arguments
        sys.path.insert(0, "" if as_module else str(Path(arguments[0]).resolve().parent))
        try:
            with torch_profiler() as found:
                try:
                    if as_module:
                        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
                    else:
                        runpy.run_path(arguments[0], run_name="__main__")
                except SystemExit as end:
                    status = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            sys.argv, sys.path[:] = before, path
        return found, status

    return run


def torch_profiler() -> Any:
    """torch's profiler, of the GPU as well where there is one."""
    kinds = torch.profiler.ProfilerActivity
    return torch.profiler.profile(activities=[kinds.CPU] + [kinds.CUDA] * torch.cuda.is_available())


@contextmanager
def profiled_options() -> Iterator[None]:
    """Have what is compiled in the block record its kernels."""
    name = f"{PREFIX}PROFILE"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _table(found: Any) -> Any:
    """Kernels of this backend; where there are none, torch's own table."""
    roofs = kept("cpu")
    try:
        times = kernel_times(found)
    except ValueError as error:
        own = found.key_averages().table(sort_by="self_cpu_time_total", row_limit=ROWS)
        return f"No kernel of this backend ran ({error}). What torch ran:\n{own}"
    return f"{times}\n{roofs.cited()}" if roofs else str(times)


def main(target: str, device: str, calls: str) -> None:
    """What runs in the process of another tool: the calls of a user's function."""
    with torch.no_grad():
        for case in load_cases(target, device):
            call = case.caller(compiled("max", case.function), (), False)
            for number in range(int(calls)):
                call(number)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(*sys.argv[1:])
