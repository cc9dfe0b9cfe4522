"""Ranks of a thousand, of which each is alone in a group of torch's: what they compile, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.torchrun import environment_of
from tests.support.processes import Processes

pytestmark = [pytest.mark.own_processes, pytest.mark.sampled]
PROGRAM = "from tests.distributed.fake import main\nmain({rank}, {way!r})"


def told(processes: Processes, folder: Path, way: str, rank: int) -> dict[str, Any]:
    """What a rank tells that shares a store with those before it."""
    own = environment_of(folder / "store") | {"TORCHINDUCTOR_CACHE_DIR": str(folder / f"torch{rank}")}
    done = processes.run(PROGRAM.format(rank=rank, way=way), folder, **own)
    assert done.told, done.errors
    return done.told


@pytest.mark.parametrize("way", ["fsdp2", "2d"])
def test_the_first_rank_compiles_for_all(way: str, processes: Processes, tmp_path: Path) -> None:
    """Nothing of a key differs between ranks."""
    first, last = (told(processes, tmp_path, way, rank) for rank in (0, 999))
    assert first["compiled"] == first["libraries"] == last["libraries"] and not last["compiled"]
    assert any("all_reduce" in name for name in first["calls"]) == (way == "2d")


def test_what_knows_its_rank_is_compiled_for_each_part(processes: Processes, tmp_path: Path) -> None:
    """Where a part of the words begins is a number in a graph: a forward for each of four parts, and not each rank."""
    found = [told(processes, tmp_path, "words", rank)["compiled"] for rank in (0, 1, 996, 997)]
    assert found == [2, 1, 0, 0]
