"""Every program of ``programs.py`` agrees with eager: values, dtypes, strides, writes into inputs, shared memory."""

from __future__ import annotations

import pytest

from tests.support.cases import Case
from tests.support.chunks import prepared
from tests.support.harness import check
from tests.support.programs import PROGRAMS

SLOW = ("dynamic_masked_attention", "dynamic_image")
"""They take as long to compile as many others."""


def _parameters() -> list:  # type: ignore[type-arg]
    quick = [case for case in PROGRAMS if case.name not in SLOW]
    slow = [case for case in PROGRAMS if case.name in SLOW]
    return [pytest.param("programs", quick, case, id=case.name) for case in quick] + [
        pytest.param("slow_programs", slow, case, id=case.name, marks=pytest.mark.full) for case in slow
    ]


@pytest.mark.full
@pytest.mark.parametrize(("chunk", "cases", "case"), _parameters())
@pytest.mark.xdist_group("programs")
def test_as_max_graphs(chunk: str, cases: list[Case], case: Case) -> None:
    failed = prepared(chunk, cases)
    assert id(case) not in failed, failed[id(case)]
    check(case)


@pytest.mark.parametrize("case", PROGRAMS, ids=[case.name for case in PROGRAMS])
def test_as_generated_kernels(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    check(case)
