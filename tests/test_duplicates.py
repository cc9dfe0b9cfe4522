"""No block of the package stands in two places."""

from __future__ import annotations

import collections
from collections.abc import Iterable

import pytest

from torch_max_backend.base.digests import PACKAGE

pytestmark = pytest.mark.any_runner("texts")
LINES = 10
"""Lines of code that make a block."""


def blocks(text: str) -> Iterable[tuple[str, ...]]:
    """Runs of lines, without blank ones, comments, imports and lines of one word or bracket."""
    lines = [line.strip() for line in text.splitlines()]
    told = [x for x in lines if len(x) > 2 and not x.startswith(("#", "import ", "from "))]
    return (tuple(told[i : i + LINES]) for i in range(len(told) - LINES + 1))


def repeated(texts: dict[str, str]) -> list[set[str]]:
    """The names of the texts that share a block, a set for each block; a name alone where one text has it twice."""
    places = collections.defaultdict[tuple[str, ...], list[str]](list)
    for name, text in texts.items():
        for block in blocks(text):
            places[block].append(name)
    return [set(names) for names in places.values() if len(names) > 1]


def test_no_block_stands_in_two_places() -> None:
    files = {str(f.relative_to(PACKAGE)): f.read_text() for f in PACKAGE.rglob("*.py")}
    assert not repeated(files)


def test_repeated_blocks_are_found() -> None:
    block = "\n".join(f"line = {i}" for i in range(LINES))
    assert repeated({"a": block, "b": f"first\n{block}"}) == [{"a", "b"}]
    assert repeated({"a": block, "b": block.replace("5", "6")}) == []
