"""Whether the ranks of a group mean the same by their collectives: looked at when a program first calls them.

Which collective of its group comes next is known to every rank. Under that number, the first rank that gets there with
a new program leaves what it is about to call in the group's store, and others compare: five small requests a rank. In
the collective they would wait for each other anyway, so they do it here, where one that finds a difference can tell
all. That one may be the host of the store: it does not leave before others have read. A rank that has waited for
:data:`PATIENCE` goes on, and if its collective fails, since another one has left, looks there for the reason.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from torch_max_backend.base.digests import package_version
from torch_max_backend.base.errors import RanksDifferError

log = logging.getLogger("torch_max_backend")

Collectives = tuple[tuple[str, str], ...]
"""What a program calls, in order: the name of a group, and the op with its shapes."""

PATIENCE = timedelta(seconds=10)
"""How long a rank waits for others before its first call of a program, and for them to read why it raises."""

AGREED = "agreed"


def agreeing(run: Callable[..., Any], collectives: Collectives) -> Callable[..., Any]:
    """A program that compares its collectives with other ranks' in its first call.

    Raises:
        RanksDifferError: By the program, if another rank calls something else, or has other versions.
    """
    lock, is_over = threading.Lock(), False

    def call(*args: Any) -> Any:
        nonlocal is_over
        if is_over:
            return run(*args)
        with lock:
            is_first, is_over = not is_over, True
        return _first_call(run, args, collectives) if is_first else run(*args)

    return call


def _first_call(run: Callable[..., Any], args: Sequence[Any], collectives: Collectives) -> Any:
    places = [place for place in map(_Place.of, dict.fromkeys(g for g, _ in collectives)) if place is not None]
    for place in places:
        place.arrive(_signature(place.group, collectives))
    for place in places:
        place.wait()
    try:
        return run(*args)
    except RuntimeError as error:  # what torch.distributed raises when another rank has ended
        for place in places:
            if found := place.verdict() or place.absence():
                raise RanksDifferError(found) from error
        raise


def _signature(group: str, collectives: Collectives) -> str:
    versions = [f"{name} {package_version(name)}" for name in ("torch", "torch-max-backend")]
    return json.dumps([*versions, *(text for name, text in collectives if name == group)])


class _Place:
    """The next collective of a group in the order that all its ranks have."""

    def __init__(self, group: str, store: Any, rank: int, ranks: int, number: int) -> None:
        self.group, self.store, self.rank, self.ranks = group, store, rank, ranks
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # the store may have outlived a failure
        self.key = f"max_backend/{attempt}/{number}"

    @classmethod
    def of(cls, group: str) -> _Place | None:
        """The next place of a group; none if it cannot number collectives, or has no store, as a fake one."""
        found = dist.distributed_c10d._resolve_process_group(group)
        ranks = dist.get_world_size(found)
        if ranks == 1 or dist.get_backend(found) == "fake":
            return None
        try:
            number = found._get_sequence_number_for_group()
        except RuntimeError as error:
            log.info("ranks do not compare their collectives: %s", error)
            return None
        store = dist.distributed_c10d._get_process_group_store(found)
        return cls(group, store, dist.get_rank(), ranks, number)

    def arrive(self, own: str) -> None:
        """Leave what this rank is about to call, or compare it with what another one has left.

        Raises:
            RanksDifferError: They differ.
        """
        left = json.dumps({"rank": self.rank, "calls": own})
        other = json.loads(self.store.compare_set(self.key, "", left))
        if other["calls"] != own:
            self.raise_everywhere(_told(self.rank, json.loads(own), other["rank"], json.loads(other["calls"])))
        self.store.set(f"{self.key}/arrived/{self.rank}", "")
        if self.store.add(f"{self.key}/arrived", 1) == self.ranks:
            self.store.set(f"{self.key}/verdict", AGREED)  # nobody who differs counts as arrived

    def wait(self) -> None:
        """Until all ranks have arrived, or patience ends.

        Raises:
            RanksDifferError: Another rank has found a difference.
        """
        with suppress(dist.DistStoreError):  # one is late: it is waited for in the collective
            self.store.wait([f"{self.key}/verdict"], PATIENCE)
        if found := self.verdict():
            self.raise_everywhere(found)

    def verdict(self) -> str:
        """What a rank has found wrong here; empty if nothing, or if the others are not there yet."""
        key = f"{self.key}/verdict"
        found = self.store.get(key).decode() if self.store.check([key]) else AGREED
        return "" if found == AGREED else found

    def absence(self) -> str:
        """Which ranks did not arrive; empty if all did, or if the store has ended too."""
        with suppress(RuntimeError):
            absent = [k for k in range(self.ranks) if not self.store.check([f"{self.key}/arrived/{k}"])]
            return _missing(absent) if absent else ""
        return ""

    def raise_everywhere(self, message: str) -> None:
        """Raise once all ranks know the reason: the store may end with this process."""
        message = self.store.compare_set(f"{self.key}/verdict", "", message).decode()
        self.store.set(f"{self.key}/verdict", message)  # which wakes those who wait
        with suppress(RuntimeError):  # the host of the store was sooner, or a rank never comes
            if self.store.add(f"{self.key}/read", 1) == self.ranks:
                self.store.set(f"{self.key}/known", "")
            self.store.wait([f"{self.key}/known"], PATIENCE)
        raise RanksDifferError(message)


def _missing(absent: list[int]) -> str:
    return (
        f"Of {len(absent)} rank(s), rank {absent[0]} the first, nothing came before this program's collectives failed: "
        "each has ended, and its own error says why, or its graph did not run on max_backend. "
        "All ranks of a group need torch-max-backend, in one version."
    )


def _told(rank: int, own: list[str], other_rank: int, other: list[str]) -> str:
    pairs: Iterator[tuple[str, str]] = itertools.zip_longest(own, other, fillvalue="nothing")
    a, b = next(pair for pair in pairs if pair[0] != pair[1])
    return (
        f"Ranks {other_rank} and {rank} run different graphs: where rank {other_rank} has {b}, rank {rank} has {a}. "
        "All ranks of a group must run one version of the program and of its packages, on batches of one shape."
    )
