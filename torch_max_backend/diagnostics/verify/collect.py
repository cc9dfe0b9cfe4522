"""Noting what is found of every region, in place of raising for the first one that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch_max_backend.base.errors import VerifyError


@dataclass(frozen=True)
class CheckedRegion:
    """A region that was compared with torch in a call.

    ``graph`` is torch's name for its graph, ``number`` its position there, ``ops`` how many it has, ``where`` the line
    of the program at which it begins, ``error`` what is wrong.
    """

    graph: str
    number: int
    ops: int
    where: str
    error: VerifyError | None


_noted: list[CheckedRegion] | None = None  # of the process: a backward may run in another thread


@contextmanager
def collected() -> Iterator[list[CheckedRegion]]:
    """What is found of regions inside the block, where a wrong one does not raise and its results are used."""
    global _noted
    noted = _noted = []
    try:
        yield noted
    finally:
        _noted = None


def note(region: CheckedRegion) -> bool:
    """Note a region; whether somebody collects them."""
    if _noted is None:
        return False
    _noted.append(region)
    return True
