"""Ranks on several GPUs, with NCCL: eager's losses, and collectives within programs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.distributed.torchrun import torchrun

pytestmark = [pytest.mark.gpu, pytest.mark.own_processes]
RANKS = 2


@pytest.mark.parametrize("way", ["ddp", "fsdp2", "tp"])
def test_a_rank_a_gpu(way: str, tmp_path: Path) -> None:
    """Trains as in eager."""
    if torch.cuda.device_count() < RANKS:
        pytest.skip(f"needs {RANKS} GPUs, and there are {torch.cuda.device_count()}")
    done = torchrun(RANKS, "tests.distributed.train", way, 6, tmp_path, "cuda", store=tmp_path / "store", timeout=300)
    assert done.status == 0, done.output[-4000:]
    facts = done.told[way]
    assert facts["graphs"] and not facts["islands"]
    assert any("all_reduce" in name for name in facts["calls"]) == (way == "tp")
