"""Compiling for a GPU and running on a CPU: graphs are planned for a GPU, and the emulator runs their kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from tests.support.grid_emulator import emulated
from torch_max_backend.codegen.program_writer import WrittenProgram
from torch_max_backend.compile import programs
from torch_max_backend.loops import build
from torch_max_backend.runtime import call_path
from torch_max_backend.runtime.program import ProgramSpec


def emulate_gpu(monkeypatch: pytest.MonkeyPatch, arch: str = "sm_90a") -> list[WrittenProgram]:
    """From now on programs have a GPU's kernels, which the emulator runs. The list will have all that are written."""
    written: list[WrittenProgram] = []
    write = programs.write_program

    def noted(*args: Any, **kwargs: Any) -> WrittenProgram:
        written.append(write(*args, **kwargs))
        return written[-1]

    def bound(spec: ProgramSpec, library: None) -> Callable[..., Any]:
        (found,) = (w for w in written if w.spec is spec)
        with unset_fake_temporarily():
            return emulated(found)

    for module in (build, programs):
        monkeypatch.setattr(module, "device_of", lambda region: torch.device("cuda", 0))
    monkeypatch.setattr(programs, "architecture", lambda gpu: arch)
    monkeypatch.setattr(programs, "_job", lambda *_: None)  # no kernel is compiled
    monkeypatch.setattr(programs, "write_program", noted)
    monkeypatch.setattr(call_path, "bound", bound)
    return written
