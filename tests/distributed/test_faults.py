"""What goes wrong on one rank: a clear error on every rank, or a restart, and nobody waits for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.forked import forked
from tests.distributed.torchrun import compiles, torchrun
from tests.support.processes import Processes

pytestmark = [pytest.mark.own_processes, pytest.mark.xdist_group("ranks"), pytest.mark.sampled]
FAULTY = "tests.distributed.faulty"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("graph", "all_reduce([5], sum) of f32"),
        pytest.param("version", "torch-max-backend 0.0", marks=pytest.mark.full),
    ],
)
def test_every_rank_says_how_they_differ(processes: Processes, tmp_path: Path, fault: str, words: str) -> None:
    """Instead of hanging, or of adding up what does not belong together."""
    done = forked(processes, tmp_path, 2, FAULTY, fault, store=tmp_path / "store")
    assert done.status == 1
    for rank in range(2):
        (line,) = [x for x in done.output.splitlines() if x.startswith(f"rank {rank} ")]
        assert "RanksDifferError: Ranks" in line and words in line


@pytest.mark.full
def test_a_store_that_cannot_be_written_is_done_without(processes: Processes, tmp_path: Path) -> None:
    """Ranks say so, compile each for itself, and go on."""
    (tmp_path / "file").touch()
    done = forked(processes, tmp_path, 2, FAULTY, "none", store=tmp_path / "file" / "store")
    assert done.status == 0, done.output[-4000:]
    assert done.output.count("is right") == 2 and "going on without it" in done.output


@pytest.mark.full
def test_ranks_that_are_killed_start_again(tmp_path: Path) -> None:
    """Under torchrun's elastic agent: one dies while it compiles, holding a lock, and later one within a step."""
    store = tmp_path / "store"
    flags, fresh = ("--max-restarts=3",), {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = torchrun(2, "tests.distributed.elastic", tmp_path, store=store, timeout=120, flags=flags, **fresh)
    assert done.status == 0, done.output[-4000:]
    assert done.told["restarts"] == 2 and done.told["steps"] == [0, 1, 2, 3, 4, 5]
    killed = [line for line in done.output.splitlines() if line.startswith("killed")]
    assert len(killed) == 2 and "compiles" in killed[0] and "step" in killed[1]
    assert compiles(store)
