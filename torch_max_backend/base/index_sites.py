"""Places in a region where a GPU checks indices, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Site:
    """A place in a region where indices are read.

    ``message`` is eager's, with ``{index}`` and ``{size}`` in it. ``lines`` are those of the user's program that it may
    come from: several where nodes are equal, which share their code.
    """

    op: str
    message: str
    lines: tuple[str, ...] = ()
