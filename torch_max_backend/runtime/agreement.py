"""Whether the ranks of a group mean the same by their collectives: looked at when a program first calls them.

Which collective of its group comes next is known to every rank. Under that number, the first rank that gets there with
a new program leaves what it is about to call in the group's store. Others compare: that is one request a rank, and
nobody waits. A rank that was there first, and whose collective fails since another one has left, finds there why.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch.distributed as dist

from torch_max_backend.base.digests import package_version
from torch_max_backend.base.errors import RanksDifferError

log = logging.getLogger("torch_max_backend")

Collectives = tuple[tuple[str, str], ...]
"""What a program calls, in order: the name of a group, and the op with its shapes."""


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
    wanted = {place.group: _signature(place.group, collectives) for place in places}
    for place in places:
        place.compare(wanted[place.group])
    try:
        return run(*args)
    except RuntimeError as error:  # what torch.distributed raises when another rank has ended
        for place in places:
            if found := place.difference():
                raise RanksDifferError(found) from error
        raise


def _signature(group: str, collectives: Collectives) -> str:
    versions = [f"{name} {package_version(name)}" for name in ("torch", "torch-max-backend")]
    return json.dumps([*versions, *(text for name, text in collectives if name == group)])


class _Place:
    """The next collective of a group in the order that all its ranks have."""

    def __init__(self, group: str, store: Any, rank: int, number: int) -> None:
        self.group, self.store, self.rank = group, store, rank
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # the store may have outlived a failure
        self.key = f"max_backend/{attempt}/{number}"

    @classmethod
    def of(cls, group: str) -> _Place | None:
        """The next place of a group; none if it cannot number collectives, or has no store, as a fake one."""
        found = dist.distributed_c10d._resolve_process_group(group)
        if dist.get_world_size(found) == 1 or dist.get_backend(found) == "fake":
            return None
        try:
            number = found._get_sequence_number_for_group()
        except RuntimeError as error:
            log.info("ranks do not compare their collectives: %s", error)
            return None
        store = dist.distributed_c10d._get_process_group_store(found)
        return cls(group, store, dist.get_rank(), number)

    def compare(self, own: str) -> None:
        """Leave what this rank is about to call, or compare it with what another one has left.

        Raises:
            RanksDifferError: They differ.
        """
        left = json.dumps({"rank": self.rank, "calls": own})
        other = json.loads(self.store.compare_set(self.key, "", left))
        if other["calls"] != own:
            message = _told(self.rank, json.loads(own), other["rank"], json.loads(other["calls"]))
            self.store.set(f"{self.key}/difference", message)
            raise RanksDifferError(message)

    def difference(self) -> str:
        """What another rank has found wrong here; empty if nothing."""
        key = f"{self.key}/difference"
        return self.store.get(key).decode() if self.store.check([key]) else ""


def _told(rank: int, own: list[str], other_rank: int, other: list[str]) -> str:
    pairs: Iterator[tuple[str, str]] = itertools.zip_longest(own, other, fillvalue="nothing")
    a, b = next(pair for pair in pairs if pair[0] != pair[1])
    return (
        f"Ranks {other_rank} and {rank} run different graphs: where rank {other_rank} has {b}, rank {rank} has {a}. "
        "All ranks of a group must run one version of the program and of its packages, on batches of one shape."
    )
