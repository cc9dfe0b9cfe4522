"""Programs of public ops that the store has: nothing is traced for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.support.processes import Processes
from torch_max_backend import reports
from torch_max_backend.ops import eager_call
from torch_max_backend.ops.declaration import declaration_of
from torch_max_backend.ops.eager_call import EagerCall
from torch_max_backend.ops.kept_programs import kept_program


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(eager_call, "kept_program", kept_program)
    monkeypatch.setenv("TORCH_MAX_BACKEND_CACHE_DIR", str(tmp_path))
    return tmp_path


def swiglu() -> EagerCall:
    """The op's kernel as a new process has it."""
    return EagerCall(declaration_of("swiglu"))


def test_what_is_kept_is_not_traced(store: Path) -> None:
    x = torch.randn(40, 64)
    wanted = swiglu()(x, x)
    known = len(reports())
    assert torch.equal(swiglu()(x, x), wanted)
    assert len(reports()) == known
    sliced = torch.randn(50, 96)[:, :64]  # has a guard
    assert torch.equal(swiglu()(sliced, sliced), swiglu()(sliced, sliced))
    assert len(reports()) == known + 1


def test_damaged_programs_are_traced_again(store: Path) -> None:
    x = torch.randn(40, 64)
    swiglu()(x, x)
    known = len(reports())
    for key in store.rglob("*.json"):
        if '"public op"' in key.read_text():
            key.write_text("{}")
    torch.testing.assert_close(swiglu()(x, x), F.silu(x) * x)
    assert len(reports()) == known + 1


CALL = """
import json
import sys

import torch

from torch_max_backend import ops

x = torch.randn(40, 64)
torch.testing.assert_close(ops.rms_norm(x), torch.nn.functional.rms_norm(x, (64,), eps=1e-6))
print(json.dumps({"traced": "torch_max_backend.frontend.pipeline" in sys.modules}))
"""


@pytest.mark.full
@pytest.mark.xdist_group("processes")
@pytest.mark.own_processes
def test_another_process_traces_nothing(tmp_path: Path, processes: Processes) -> None:
    folder = str(tmp_path / "store")
    told = [processes.run(CALL, tmp_path, TORCH_MAX_BACKEND_CACHE_DIR=folder).told for _ in range(2)]
    assert told == [{"traced": True}, {"traced": False}]
