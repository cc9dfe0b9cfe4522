"""The op cases of ``tests/aten_functions`` by the kernels that a GPU would run, in the emulator, against eager."""

from __future__ import annotations

import dataclasses

import pytest

from tests.aten_functions.test_op_cases_as_programs import FOR_MAX
from tests.gpu.test_op_cases import why_excluded
from tests.support.cases import Case
from tests.support.emulated_gpu import emulate_gpu
from tests.support.float64 import check_or_compare_with_float64
from tests.support.reach import all_cases
from tests.support.selection import share_of

pytestmark = pytest.mark.any_runner("programs without a graph")

WITHOUT_SIGNS = frozenset({"pointwise-exact_unary", "pointwise-exact_unary_f16"})
"""Cases with maxima of zeros of both signs, of which torch's ``maximum``, which emulates a GPU's, takes the other."""

ELSEWHERE = {
    "pointwise-modes_huge": "the remainder of a vector, which torch has on a CPU, is not that of the C library",
    **dict.fromkeys(
        ("sorting-sorts_tied_140", "sorting-sorts_tied_1000", "sorting-sorts_tied_u8", "sorting-sorts_tied_runs"),
        "which of equal elements come first differs between torch's sorts for CPUs and for GPUs",
    ),
    **dict.fromkeys(
        ("activations-backward_nan", "distance-cdist_special"),
        "torch's kernels for GPUs make something else of NaN (tests/loops/test_edges_on_a_gpu.py)",
    ),
    **dict.fromkeys(
        ("pointwise-constant_divisors", "pointwise-divisions_by_numbers_edges"),
        "torch's kernels for GPUs multiply by the reciprocal of a number (tests/loops/test_edges_on_a_gpu.py)",
    ),
    "indexing-nan_reductions": "threads store the same identity in one element",
    "indexing-reductions": "threads store the same identity in one element",
    "indexing-along": "threads store different elements in one place, as torch's do",
}
"""Cases of which the emulator, or eager on a CPU, cannot tell what a GPU has to give, and why."""

LEFT_OUT = ELSEWHERE.keys() | FOR_MAX | {name for name in all_cases() if why_excluded(name.replace("-", "/", 1))}
SHARE = share_of(all_cases(), "PROGRAM_CASES_SHARE")
CHOSEN = {name: case for name, case in all_cases().items() if name in SHARE and name not in LEFT_OUT}


@pytest.mark.parametrize(("name", "case"), CHOSEN.items(), ids=CHOSEN.keys())
def test_kernels(name: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    written = emulate_gpu(monkeypatch)
    if name in WITHOUT_SIGNS:
        case = dataclasses.replace(case, exact=False, rtol=0.0, atol=0.0)
    check_or_compare_with_float64(name, case)
    assert written
