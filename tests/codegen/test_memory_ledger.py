"""The ledger: totals of what straight-line code has allocated, with integers and with symbolic sizes."""

from __future__ import annotations

import pytest

from torch_max_backend.codegen.memory_ledger import Ledger
from torch_max_backend.loops.index import Index, Sym

pytestmark = pytest.mark.any_runner("no op runs")


def test_the_peak_is_what_is_there_at_once() -> None:
    ledger = Ledger()
    ledger.take("a", 10)
    ledger.take("b", 20)
    ledger.drop("a")
    ledger.take("c", 5)
    assert (ledger.now, ledger.peaks) == (25, [30])
    ledger.reach(ledger.now + 100)
    assert (ledger.now, ledger.peaks) == (25, [125])


def test_memory_is_freed_with_the_last_name_that_has_it() -> None:
    ledger = Ledger()
    ledger.take("a", 10)
    ledger.share("view", "a")
    ledger.drop("a")
    assert ledger.now == 10
    ledger.drop("view")
    assert ledger.now == 0
    ledger.drop("never heard of")


def test_what_was_there_before_only_goes() -> None:
    ledger = Ledger()
    ledger.given("saved", 30, "its storage")
    ledger.take("gradient", 8)
    ledger.drop("saved")
    ledger.take("other", 4)
    assert (ledger.now, ledger.given_up, ledger.peaks) == (12 - 30, 30, [8])


def test_totals_that_sizes_decide_between_are_all_kept() -> None:
    n, m = Index.of(Sym("n")), Index.of(Sym("m"))
    ledger = Ledger(Index.of(0))
    ledger.take("a", n * 4)
    ledger.take("b", n * 2)
    ledger.drop("b")
    ledger.drop("a")
    ledger.take("c", m * 8)
    assert ledger.peaks == [n * 6, m * 8]
    ledger.reach(m * 8 + n * 7)
    assert ledger.peaks == [m * 8 + n * 7]
