"""Every op case of every family agrees with eager: values, dtypes, shapes, strides, writes into inputs.

The tables are in ``tests/aten_functions/<family>/cases_<name>.py``. Cases are compiled in strict mode: an op that torch
ran instead is a failure.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest

from tests.support.case_tables import case_tables
from tests.support.cases import Case
from tests.support.chunks import CHUNK, prepared
from tests.support.harness import check
from tests.support.selection import selection, share_of

CORE = {
    "activations": "gelus_f32",
    "antialias": "more_sizes",
    "attention": "grouped_f32",
    "bessel": "zero_dim",
    "bitwise": "bits_i64",
    "comparison": "extrema_edges",
    "convolution": "grouped_f32",
    "creation": "spaces",
    "distance": "cdist_f64",
    "embedding": "lookups_dynamic",
    "floats": "frexp_sizes",
    "fractional": "gradients",
    "gamma": "incomplete_broadcast",
    "grouped": "rows",
    "histogram": "by_edges",
    "indexing": "masked",
    "integer_convolution": "dilated_2d",
    "matmul": "products_float32",
    "mode": "modes_special",
    "normalization": "softmax_backward",
    "pointwise": "modes_f32",
    "polynomials": "mixed",
    "pooling": "largest_channels_last",
    "reductions": "row_sums",
    "resize": "nearest_f32",
    "segment": "lengths_1d",
    "sorting": "sorts_f32",
    "special": "circular_wide",
    "updates": "every",
    "views": "strided_scatter",
    "volumes": "samples_odd",
}
"""The case of each family that every test run has: one that compiles quickly, and that every supported torch has."""


def _chunks(prefix: str, cases: list[tuple[str, Case]], *marks: pytest.MarkDecorator) -> list:  # type: ignore[type-arg]
    found = []
    for start in range(0, len(cases), CHUNK):
        name, chunk = f"{prefix}-{start // CHUNK}", cases[start : start + CHUNK]
        together = [case for _, case in chunk]
        group = pytest.mark.xdist_group(name)
        for family, case in chunk:
            known = [pytest.mark.xfail(strict=True, reason=case.broken)] if case.broken else []
            marked = [group, *marks, *known]
            found.append(pytest.param(name, together, case, id=f"{family}-{case.name}", marks=marked))
    return found


def _parameters(chosen: Collection[str], all_ops: bool) -> list:  # type: ignore[type-arg]
    core, picked, rest = [], [], []
    marks = [] if all_ops else [pytest.mark.full]
    for family, cases in case_tables().items():
        names = [c.name for c in cases]
        assert len(set(names)) == len(names), f"two cases of one name in {family}"
        assert CORE.get(family) in names, f"CORE names no case of {family}"
        core += [(family, c) for c in cases if c.name == CORE[family] and family in share_of(CORE, "CORE_SHARE")]
        others = [c for c in cases if c.name != CORE[family]]
        picked += [(family, c) for c in others if f"{family}-{c.name}" in chosen]
        rest += _chunks(family, [(family, c) for c in others if f"{family}-{c.name}" not in chosen], *marks)
    return [*_chunks("core", core), *_chunks("chosen", picked), *rest]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The core, what ``tests/support/selection.py`` chooses, and the rest, which is marked ``full``."""
    all_ops = metafunc.config.getoption("--all-ops")
    metafunc.parametrize(("chunk", "cases", "case"), _parameters(() if all_ops else selection().cases, all_ops))


def test_op(chunk: str, cases: list[Case], case: Case) -> None:
    failed = prepared(chunk, cases)
    assert id(case) not in failed, failed[id(case)]
    check(case)
