"""Chunks of cases that are compiled together, once, by whichever test of the chunk runs first."""

from __future__ import annotations

import functools

from tests.cases import Case
from tests.harness import prepare

CHUNK = 24


@functools.cache
def _prepared(name: str, cases: tuple[Case, ...]) -> dict[str, str]:
    return prepare(list(cases), CHUNK)


def prepared(name: str, cases: list[Case]) -> dict[str, str]:
    """Compile the chunk on first use; gives error texts by case name."""
    return _prepared(name, tuple(cases))
