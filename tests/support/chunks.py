"""Chunks of cases that are compiled together, once, by whichever test of the chunk runs first."""

from __future__ import annotations

from tests.support.cases import Case
from tests.support.harness import prepare

CHUNK = 16
"""Cases of a chunk of op cases."""
TOGETHER = 48
"""Graphs of a module at most."""

_done: dict[str, dict[int, str]] = {}


def prepared(name: str, cases: list[Case]) -> dict[int, str]:
    """Compile the chunk on first use; gives the error texts of cases that were not lowered, by the case's ``id``."""
    if name not in _done:
        _done[name] = prepare(cases, TOGETHER)
    return _done[name]
