"""Ranks train in the ways that torch has, in strict mode: eager's losses and gradients, and one compile a group."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.forked import forked
from tests.distributed.torchrun import Group, compiles, torchrun
from tests.support.processes import Processes

pytestmark = [pytest.mark.own_processes, pytest.mark.xdist_group("ranks"), pytest.mark.sampled]
SOME = "fsdp2_checkpointed,tp"
ALL = "ddp,ddp_compiled_autograd,fsdp2,fsdp2_checkpointed,tp"
TRAIN = "tests.distributed.train"


def check(done: Group, ways: str, store: Path) -> None:
    """Each rank has compared with eager already."""
    assert done.status == 0, done.output[-4000:]
    assert list(done.told) == ways.split(",")
    for way, facts in done.told.items():
        assert facts["graphs"] and not facts["islands"]
        inside = way in ("tp", "2d") or way.endswith("compiled_autograd")
        assert any("all_reduce" in name for name in facts["calls"]) == inside, way
    keys = compiles(store)
    assert keys and len(keys) == len(set(keys)), "a group compiles each library once"


def test_two_ranks_train_as_in_eager(processes: Processes, tmp_path: Path) -> None:
    """With checkpoints of torch.distributed.checkpoint saved and loaded in between."""
    store = tmp_path / "store"
    check(forked(processes, tmp_path, 2, TRAIN, SOME, 4, tmp_path, store=store), SOME, store)


@pytest.mark.full
@pytest.mark.parametrize(("ranks", "ways"), [(2, ALL), (4, f"{ALL},2d")])
def test_ranks_train_as_in_eager(ranks: int, ways: str, tmp_path: Path) -> None:
    """For twenty steps in each way, started by torchrun."""
    store = tmp_path / "store"
    check(torchrun(ranks, TRAIN, ways, 20, tmp_path, store=store, timeout=600), ways, store)
