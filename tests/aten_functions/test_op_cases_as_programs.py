"""Every op case as a program of generated kernels agrees with eager, or is named as one that MAX has to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import Case
from tests.support.float64 import check_or_compare_with_float64
from tests.support.reach import all_cases
from tests.support.selection import share_of
from torch_max_backend.frontend import pipeline

FOR_MAX = frozenset((Path(__file__).parent / "for_max.txt").read_text().split())
"""Cases with an op that has no loops."""


class ForMaxError(Exception):
    """A region of the case is no program."""


compile_regions = pipeline.compile_regions


def _no_regions(regions: list[Any], *others: Any) -> Any:
    if regions:
        raise ForMaxError
    return compile_regions(regions, *others)


CHOSEN = {name: case for name, case in all_cases().items() if name in share_of(all_cases(), "PROGRAM_CASES_SHARE")}


@pytest.mark.parametrize(("name", "case"), CHOSEN.items(), ids=CHOSEN.keys())
def test_program(name: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    monkeypatch.setattr(pipeline, "compile_regions", _no_regions)
    try:
        check_or_compare_with_float64(name, case)
    except Exception as error:
        if name in FOR_MAX and ForMaxError.__name__ in f"{type(error)} {error}":
            return
        raise
    assert name not in FOR_MAX, "it is a program now"
