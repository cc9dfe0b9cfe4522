"""Amounts of memory as people write them: "4GiB", "512MB", "60%"."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**k for k, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}ib": 1024**k for k, letter in enumerate("kmgt", 1)}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*|%)")

FORMS = '"4GiB", "512MB", a number of bytes, or a share of the device as "60%"'
"""How an amount may be written, for messages."""


@dataclass(frozen=True)
class Amount:
    """A number of bytes, or a share (above 0, at most 1) of all that a device has."""

    bytes: int = 0
    share: float = 0.0

    def of(self, total: int) -> int:
        """The amount in bytes, on a device that has ``total``."""
        return int(self.share * total) if self.share else self.bytes


def parse(text: str) -> Amount:
    """The amount that a text gives.

    Raises:
        ValueError: It gives none, or nothing, or more than all; the message says which.

    >>> parse("1.5 GiB").bytes, parse("60%").of(1000)
    (1610612736, 600)
    """
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or (found[2] != "%" and found[2].lower() not in _UNITS):
        raise ValueError(f"expected {FORMS}")
    number, unit = float(found[1]), found[2].lower()
    if unit == "%":
        if not 0 < number <= 100:
            raise ValueError("a share must be above 0% and at most 100%")
        return Amount(share=number / 100)
    size = int(number * _UNITS[unit])
    if size < 1:
        raise ValueError("must be at least 1 byte")
    return Amount(size)


def in_words(size: int) -> str:
    """A number of bytes for a message, in the unit that suits it.

    >>> in_words(512), in_words(3 * 1024**2), in_words(5_900_000_000)
    ('512 B', '3.00 MiB', '5.49 GiB')
    """
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.2f} {unit}"
