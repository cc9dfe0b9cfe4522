"""Every registered overload has a case that reaches its lowering, or a reason why none can."""

from __future__ import annotations

import pytest
import torch

from tests.aten_functions.unreached import UNREACHED
from tests.support.cases import Case
from tests.support.reach import TORCH, all_cases, cover, reached, read, registered, without_a_case

RECORDED_WITH, RECORD = read()
COVER = cover(RECORD)
PARTS = 4
pytestmark = [
    pytest.mark.skipif(RECORDED_WITH != TORCH, reason=f"the record is of torch {RECORDED_WITH}"),
    pytest.mark.any_runner("which nodes are for MAX is asked of the classification itself, and nothing is run"),
]


def test_every_overload_is_reached_or_has_a_reason() -> None:
    missing = without_a_case(registered(), RECORD)
    declared = sorted(case.name for case in UNREACHED)
    assert missing == declared, "a lowering without a case, or a reason that is no longer needed"
    assert all(case.why for case in UNREACHED)


def test_the_record_has_every_case() -> None:
    assert sorted(RECORD) == sorted(all_cases()), "run: python -m tests.reached --write"


def differences(names: list[str]) -> dict[str, str]:
    """Cases that reach something else than is recorded."""
    cases = all_cases()
    found = {name: reached(cases[name]) for name in names if name in cases}
    return {name: f"{now}, recorded: {RECORD[name]}" for name, now in found.items() if now != RECORD[name]}


@pytest.mark.parametrize("part", range(PARTS))
def test_recorded_cases_reach_what_is_recorded(part: int) -> None:
    """Of the cases that reach every lowering between them."""
    assert not differences(COVER[part::PARTS])


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_all_cases_reach_what_is_recorded(part: int) -> None:
    assert not differences(sorted(RECORD)[part::PARTS])


@pytest.mark.parametrize("case", UNREACHED, ids=lambda c: c.name)
def test_reasons_hold(case: Case) -> None:
    """Eager cannot make the call on a CPU, or the overload is gone when the backend gets the graph."""
    try:
        with torch.no_grad():
            case.function(*case.make())
    except NotImplementedError:
        return
    assert case.name not in reached(case), "it can be reached: make it a case"
