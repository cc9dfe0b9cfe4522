"""The op cases of ``tests/aten_functions`` as programs for a GPU that is not there: none is left to MAX's graphs.

``tests/gpu/test_op_cases.py`` runs them where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.gpu.test_op_cases import why_excluded
from tests.support.absent_gpu import Plans, noted_plans, trace
from tests.support.case_tables import case_tables
from tests.support.cases import Case

pytestmark = [pytest.mark.any_runner("programs, of which nothing is run"), pytest.mark.sampled]

UNTRACED = {
    "attention/forward_.*|convolution/dynamic.*": "they hold tensors of the CPU",
    "creation/(constants|spaces)|fractional/gradients_3d|pointwise/wheres.*|resize/sampled_(f32|far_away)"
    "|indexing/(reads|gathers|puts|scatters|along)": "constants with values of their own are made on the GPU",
    "normalization/(layer_norm_mixed|batch_norm_update.*)": "torch takes such dtypes on a CPU alone, or has another op",
}
"""Cases that cannot be traced for a GPU that is not there, by a pattern of ``family/name``, and why."""


def made_there(x: Any) -> Callable[[], Any]:
    """What makes an input like ``x`` on the GPU."""
    if not isinstance(x, torch.Tensor):
        return lambda: x
    return lambda: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")


def left_to_graphs(case: Case, plans: Plans) -> list[str]:
    """The ops of a case that are in no program."""
    plans.clear()
    with torch.device("cpu"):
        inputs = case.make()
    with torch.device("cuda"):
        trace(case.function, *map(made_there, inputs))
    assert plans, f"{case.name} makes no graph"
    return [str(n.target) for plan, programs in plans[-1:] for k, r in enumerate(plan.regions) if k not in programs
            for n in r.nodes]  # fmt: skip


@pytest.mark.parametrize("family", case_tables())
def test_op_cases(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = noted_plans(monkeypatch)
    left, traced = {}, 0
    for case in case_tables()[family]:
        name = f"{family}/{case.name}"
        if case.broken or why_excluded(name) or any(re.fullmatch(p, name) for p in UNTRACED):
            continue
        traced += 1
        if ops := left_to_graphs(case, plans):
            left[case.name] = ops
    assert not left
    assert traced or all(why_excluded(f"{family}/{c.name}") for c in case_tables()[family])
