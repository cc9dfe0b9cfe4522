"""Ranks on several GPUs, with NCCL: eager's losses, collectives within programs, and what goes wrong on one rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.distributed_faults import FAULTS, fact
from tests.distributed.torchrun import environment_of, torchrun
from tests.support.processes import ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.own_processes, pytest.mark.xdist_group("ranks")]
RANKS = 2


@pytest.fixture(autouse=True)
def enough_gpus() -> None:
    """A GPU for each rank."""
    if torch.cuda.device_count() < RANKS:
        pytest.skip(f"needs {RANKS} GPUs, and there are {torch.cuda.device_count()}")


@pytest.mark.parametrize("way", ["ddp", "fsdp2", "tp", "2d", "pp_1f1b"])
def test_a_rank_a_gpu(way: str, tmp_path: Path) -> None:
    """Trains as in eager."""
    done = torchrun(
        RANKS, "tests.distributed.train", "small", way, 6, tmp_path, "cuda", store=tmp_path / "store", timeout=300
    )
    assert done.status == 0, done.output[-4000:]
    facts = done.told[way]
    assert facts["graphs"] and not facts["islands"]
    assert any("all_reduce" in name for name in facts["calls"]) == (way == "tp")


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_fault_of_one_rank(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends in a restart or in an error, and never in waiting."""
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    found = fact(fault, tmp_path, "cuda", 150)
    assert found["passed"], found


def test_the_benchmark(tmp_path: Path) -> None:
    """All ways of a small model in bfloat16; times are not judged."""
    file = tmp_path / "r.json"
    command = [sys.executable, "-m", "benchmarks.distributed", "--dtype=bfloat16", "--steps=30", "--at-once=4"]
    done = subprocess.run(
        [*command, f"--save={file}", "--timeout=400"],
        cwd=ROOT,
        env={**os.environ, **environment_of(tmp_path / "store")},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    for row in json.loads(file.read_text())["rows"]:
        assert row["compiles"] and not row["twice"] and row["contenders"]["max"]["loss_units"] <= 1
        assert row["contenders"]["max"]["memory"]["peak"] > 0 and 0 <= row["contenders"]["max"]["overlap"] <= 1
