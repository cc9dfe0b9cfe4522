"""Chunks of cases that are compiled together, once, by whichever test of the chunk runs first."""

from __future__ import annotations

from tests.cases import Case
from tests.harness import prepare

CHUNK = 24

_done: dict[str, dict[int, str]] = {}


def prepared(name: str, cases: list[Case]) -> dict[int, str]:
    """Compile the chunk on first use; gives the error texts of cases that were not lowered, by the case's ``id``."""
    if name not in _done:
        _done[name] = prepare(cases, CHUNK)
    return _done[name]
