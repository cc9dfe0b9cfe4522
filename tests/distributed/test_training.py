"""Ranks train in the ways that torch has, in strict mode: eager's losses and gradients, and one compile a group."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.forked import forked
from tests.distributed.models import KINDS
from tests.distributed.torchrun import Group, compiles, torchrun
from tests.support.processes import Processes

pytestmark = [pytest.mark.own_processes, pytest.mark.xdist_group("ranks"), pytest.mark.sampled]
SOME = "fsdp2_checkpointed,tp,pp_1f1b"
ALL = "ddp,ddp_compiled_autograd,fsdp2,fsdp2_checkpointed,tp,pp_gpipe,pp_1f1b"
INSIDE = ("ddp_compiled_autograd", "tp", "2d")
TRAIN = "tests.distributed.train"


def check(done: Group, ways: str, store: Path) -> None:
    """Each rank has compared with eager already. Collectives are in the graphs of the ways that are ``INSIDE``."""
    assert done.status == 0, done.output[-4000:]
    assert list(done.told) == ways.split(",")
    for way, facts in done.told.items():
        assert facts["graphs"] and not facts["islands"]
        assert any("all_reduce" in name for name in facts["calls"]) == (way in INSIDE), way
    keys = compiles(store)
    assert keys and len(keys) == len(set(keys)), "a group compiles each library once"


def test_two_ranks_train_as_in_eager(processes: Processes, tmp_path: Path) -> None:
    """With checkpoints of torch.distributed.checkpoint saved and loaded in between."""
    store = tmp_path / "store"
    check(forked(processes, tmp_path, 2, TRAIN, "small", SOME, 4, tmp_path, store=store), SOME, store)


@pytest.mark.full
@pytest.mark.parametrize(("ranks", "ways"), [(2, ALL), (4, f"{ALL},2d")])
@pytest.mark.parametrize("kind", list(KINDS))
def test_ranks_train_as_in_eager(kind: str, ranks: int, ways: str, tmp_path: Path) -> None:
    """For twenty steps in each way, started by torchrun."""
    store = tmp_path / "store"
    if kind != "resnet18":
        return check(torchrun(ranks, TRAIN, kind, ways, 20, tmp_path, store=store, timeout=900), ways, store)
    ways = ways.replace("fsdp2_checkpointed,", "")
    done = torchrun(ranks, TRAIN, kind, ways, 20, tmp_path, store=store, timeout=900)
    check(done, ways, store)
    assert done.told["ddp"]["graphs"] > 2, "DDP has buckets, and a graph for each"
