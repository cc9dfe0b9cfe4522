"""Op cases of which a generated kernel is nearer to the exact value than eager is."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.support.cases import Case
from tests.support.harness import TOLERANCE, check, compiled

CLOSER_THAN_EAGER = {
    "activations-forward_bf16": "eager rounds the hyperbolic tangent before it subtracts it",
    "activations-forward_f16": "eager rounds the hyperbolic tangent before it subtracts it",
    "convolution-finished": "eager rounds the normalised image before it adds to it",
    "normalization-layer_norm_hard_rows": "eager squares 1e30",
    "pointwise-exact_of_booleans": "functions are within 2 units of the last place, as eager's are",
    "pointwise-exact_of_integers": "functions are within 2 units of the last place, as eager's are",
}
"""Cases held against float64, where eager's own error is larger than their tolerance, and why."""


def check_or_compare_with_float64(name: str, case: Case) -> None:
    """Check a case, which ``tests.support.reach`` calls ``name``, against eager or, if it is closer, float64."""
    (check_against_float64 if name in CLOSER_THAN_EAGER else check)(case)


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
