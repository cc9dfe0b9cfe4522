"""Ranks compare what they are about to call through torch's store: threads here, each with its own connection."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from torch_max_backend.base.errors import RanksDifferError
from torch_max_backend.runtime.agreement import PATIENCE, _Place

pytestmark = pytest.mark.any_runner("ranks compare texts, whoever runs them")
RANKS = 4


@pytest.fixture(params=[True, False], ids=["libuv", "sockets"])
def places(request: pytest.FixtureRequest) -> list[_Place]:
    """Those of all ranks at one collective."""
    how = {"timeout": timedelta(seconds=30), "wait_for_workers": False, "use_libuv": request.param}
    server = dist.TCPStore("127.0.0.1", 0, RANKS, True, **how)
    others = [dist.TCPStore("127.0.0.1", server.port, RANKS, False, **how) for _ in range(RANKS - 1)]
    return [_Place("0", store, rank, RANKS, 7) for rank, store in enumerate([server, *others])]


def said(places: list[_Place], calls: list[str]) -> dict[int, str]:
    """What each rank that raises says, by rank; a rank calls what ``calls`` has for it."""
    found: dict[int, str] = {}

    def meet(place: _Place, own: str) -> None:
        try:
            place.arrive(own)
            place.wait()
        except RanksDifferError as error:
            found[place.rank] = str(error)

    threads = [threading.Thread(target=meet, args=pair) for pair in zip(places, calls)]
    for thread in threads:
        thread.start()
        time.sleep(0.05)  # the others wait when the last one comes
    for thread in threads:
        thread.join(60)
    return found


def test_nobody_waits_once_all_are_there(places: list[_Place]) -> None:
    begin = time.monotonic()
    assert not said(places, ['["a"]'] * RANKS)
    assert time.monotonic() - begin < PATIENCE.total_seconds() / 2
    assert not places[0].absence()


def test_all_are_told_who_differs(places: list[_Place]) -> None:
    begin = time.monotonic()
    found = said(places, ['["a"]', '["a"]', '["a"]', '["b"]'])
    assert len(found) == RANKS and set(found.values()) == {found[0]} and "where rank 0 has a, rank 3 has b" in found[0]
    assert time.monotonic() - begin < PATIENCE.total_seconds() / 2


def test_who_did_not_come_is_named(places: list[_Place], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_max_backend.runtime.agreement.PATIENCE", timedelta(seconds=0.2))
    assert not said(places[:2], ['["a"]'] * 2)
    assert "Of 2 rank(s), rank 2 the first" in places[0].absence()
