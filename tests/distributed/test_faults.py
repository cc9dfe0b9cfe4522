"""What goes wrong on one rank: a clear error on every rank, or a restart, and nobody waits for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.distributed_faults import FAULTS, fact
from tests.distributed.forked import forked
from tests.support.processes import Processes

pytestmark = [pytest.mark.own_processes, pytest.mark.xdist_group("ranks")]
FAULTY = "tests.distributed.faulty"


@pytest.mark.sampled
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
def test_a_rank_without_the_package(processes: Processes, tmp_path: Path) -> None:
    """It says what torch says of a backend that it does not know, and the other one which rank is missing."""
    done = forked(processes, tmp_path, 2, FAULTY, "package", store=tmp_path / "store")
    assert done.status == 1
    for rank, words in enumerate(["RanksDifferError: Of 1 rank(s), rank 1", "InvalidBackend: Invalid backend"]):
        (line,) = [x for x in done.output.splitlines() if x.startswith(f"rank {rank} ")]
        assert words in line


@pytest.mark.full
def test_a_store_that_cannot_be_written_is_done_without(processes: Processes, tmp_path: Path) -> None:
    """Ranks say so, compile each for itself, and go on."""
    (tmp_path / "file").touch()
    done = forked(processes, tmp_path, 2, FAULTY, "none", store=tmp_path / "file" / "store")
    assert done.status == 0, done.output[-4000:]
    assert done.output.count("is right") == 2 and "going on without it" in done.output


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=[] if name == "killed" else pytest.mark.full) for name in FAULTS]
)
def test_a_group_goes_on_or_says_why(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun: ranks are killed (one while it compiles, holding a lock), do not come to a collective, differ."""
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    found = fact(fault, tmp_path, "cpu", 150)
    assert found["passed"], found
