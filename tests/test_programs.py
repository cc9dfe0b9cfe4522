"""Every program of ``programs.py`` agrees with eager: values, dtypes, strides, writes into inputs, shared memory."""

from __future__ import annotations

import pytest

from tests.cases import Case
from tests.chunks import prepared
from tests.harness import check
from tests.programs import PROGRAMS


@pytest.mark.parametrize("case", PROGRAMS, ids=lambda c: c.name)
@pytest.mark.xdist_group("programs")
def test_program(case: Case) -> None:
    failed = prepared("programs", PROGRAMS)
    assert id(case) not in failed, failed[id(case)]
    check(case)
