"""Twenty models: the estimate of a call against what torch's allocator gives out, and calls under a budget."""

from __future__ import annotations

import pytest

from benchmarks.admission import row_of
from benchmarks.admission_models import MODELS

pytestmark = pytest.mark.any_runner("whoever runs it, the estimate holds")

SHARE = 0.6
"""Of what was measured without a budget."""


@pytest.mark.full
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_estimates_are_within_a_tenth_and_budgets_are_kept(name: str, training: bool) -> None:
    row = row_of(name, training, SHARE)
    assert 0.9 <= row.ratio <= 1.1
    assert row.under_budget <= 1.05 * row.budget


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "training"), [("vit", False), ("timm-vit", True)])
def test_of_two_models(name: str, training: bool) -> None:
    row = row_of(name, training, 0.95)
    assert 0.9 <= row.ratio <= 1.1
    assert row.under_budget <= 1.05 * row.budget


def test_there_are_twenty() -> None:
    assert len(MODELS) == 20
