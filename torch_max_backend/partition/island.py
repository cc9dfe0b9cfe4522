"""A node that torch runs between MAX regions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Island:
    """A node that torch runs because MAX cannot: op, reason, and the user's line."""

    op: str
    reason: str
    where: str
