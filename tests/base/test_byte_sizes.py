"""Amounts of memory in words, both ways."""

from __future__ import annotations

import doctest

import pytest

from torch_max_backend.base import byte_sizes
from torch_max_backend.base.byte_sizes import in_words, parse

pytestmark = pytest.mark.any_runner("no op runs")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("17 b", 17),
        ("2kB", 2000),
        ("2 KiB", 2048),
        ("1.5gib", 3 << 29),
        ("3MB", 3_000_000),
        ("1TiB", 1 << 40),
    ],
)
def test_bytes(text: str, expected: int) -> None:
    assert parse(text).of(10) == expected


@pytest.mark.parametrize(("text", "expected"), [("60%", 600), ("100 %", 1000), ("0.5%", 5)])
def test_shares(text: str, expected: int) -> None:
    assert parse(text).of(1000) == expected


@pytest.mark.parametrize("text", ["", "%", "GiB", "1e9", "4 G", "0", "0.2", "0%", "101%", "1,5GiB"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|must be"):
        parse(text)


def test_words_say_the_same() -> None:
    assert [in_words(n) for n in (0, 1023, 1024, -(1 << 20), 1 << 50)] == [
        "0 B", "1023 B", "1.00 KiB", "-1.00 MiB", "1024.00 TiB",
    ]  # fmt: skip


def test_examples() -> None:
    assert doctest.testmod(byte_sizes).failed == 0
