"""Every op case of every family agrees with eager: values, dtypes, shapes, strides, writes into inputs.

The tables are in ``tests/aten_functions/cases_<family>.py``. Each case is compiled in strict mode, so an op that torch
ran instead is a failure.
"""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from tests import aten_functions
from tests.cases import Case
from tests.chunks import CHUNK, prepared
from tests.harness import check


def _families() -> dict[str, list[Case]]:
    names = sorted(m.name for m in pkgutil.iter_modules(aten_functions.__path__) if m.name.startswith("cases_"))
    modules = {n.removeprefix("cases_"): importlib.import_module(f"{aten_functions.__name__}.{n}") for n in names}
    return {family: module.CASES for family, module in modules.items()}


def _parameters() -> list:  # type: ignore[type-arg]
    found = []
    for family, cases in _families().items():
        names = [c.name for c in cases]
        assert len(set(names)) == len(names), f"two cases of one name in {family}"
        for start in range(0, len(cases), CHUNK):
            chunk = cases[start : start + CHUNK]
            name = f"{family}-{start // CHUNK}"
            mark = pytest.mark.xdist_group(name)
            found += [pytest.param(name, chunk, c, id=f"{family}-{c.name}", marks=mark) for c in chunk]
    return found


@pytest.mark.parametrize(("chunk", "cases", "case"), _parameters())
def test_op(chunk: str, cases: list[Case], case: Case) -> None:
    failed = prepared(chunk, cases)
    assert case.name not in failed, failed[case.name]
    check(case)
