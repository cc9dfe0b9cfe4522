"""Every op case as a program of generated kernels agrees with eager, or is named as one that MAX has to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.support.cases import Case
from tests.support.harness import TOLERANCE, check, compiled
from tests.support.reach import all_cases
from tests.support.selection import share_of
from torch_max_backend.frontend import pipeline

FOR_MAX = frozenset((Path(__file__).parent / "for_max.txt").read_text().split())
"""Cases with an op that has no loops."""

CLOSER_THAN_EAGER = {
    "activations-forward_bf16": "eager rounds the hyperbolic tangent before it subtracts it",
    "activations-forward_f16": "eager rounds the hyperbolic tangent before it subtracts it",
    "convolution-finished": "eager rounds the normalised image before it adds to it",
    "normalization-layer_norm_hard_rows": "eager squares 1e30",
    "pointwise-exact_of_booleans": "functions are within 2 units of the last place, as eager's are",
    "pointwise-exact_of_integers": "functions are within 2 units of the last place, as eager's are",
}
"""Cases held against float64, where eager's own error is larger than their tolerance, and why."""


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
        if name in CLOSER_THAN_EAGER:
            check_against_float64(case)
        else:
            check(case)
    except Exception as error:
        if name in FOR_MAX and ForMaxError.__name__ in f"{type(error)} {error}":
            return
        raise
    assert name not in FOR_MAX, "it is a program now"


def check_against_float64(case: Case) -> None:
    """Every element is within its dtype's tolerance of what float64 gives, or no farther than one of eager's."""
    with torch.no_grad():
        given, eager = (pytree.tree_leaves(f(*case.make())) for f in (compiled(case), case.function))
        exact = pytree.tree_leaves(_in_float64(case))
    for i, (a, b, x) in enumerate(zip(given, eager, exact, strict=True)):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()), f"leaf {i}"
        rtol, atol = TOLERANCE.get(a.dtype, (0.0, 0.0))
        error, eagers = ((y.double() - x).abs() for y in (a, b))
        worst = torch.where(eagers.isfinite(), eagers, 0).max()
        same = (a.double() == x) | (a.isnan() & x.isnan())
        assert (same | (error <= torch.maximum(worst, rtol * x.abs() + atol))).all(), f"leaf {i}: {error.max()}"


def _in_float64(case: Case) -> Any:
    wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in case.make()]
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return case.function(*wide)
    finally:
        torch.set_default_dtype(default)
