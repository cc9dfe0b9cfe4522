"""Comparisons with an earlier study."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.evidence.made_up import MACHINE, made_study
from torch_max_backend.base.errors import EvidenceError
from torch_max_backend.evidence.markdown import with_changes
from torch_max_backend.evidence.record import load, save
from torch_max_backend.evidence.regressions import changes, check_threshold, left_out, updates
from torch_max_backend.evidence.study import Row

pytestmark = pytest.mark.any_runner("studies that are made up")
BEFORE = made_study({"eager": 1.0, "max": 0.5})


def test_equal_studies_have_no_regression() -> None:
    assert [c.told(5) for c in changes(BEFORE, BEFORE)] == ["no change"] * 2
    for seed in range(1, 40):
        again = made_study({"eager": 1.0, "max": 0.5}, seed=seed)
        assert not any(c.is_regression(5) or c.is_improvement(5) for c in changes(again, BEFORE))


def test_a_regression_is_found() -> None:
    slower = made_study({"eager": 1.0, "max": 0.55}, seed=1)
    eager, ours = changes(slower, BEFORE)
    assert (eager.told(5), ours.told(5), ours.told(20)) == ("no change", "REGRESSION", "no change")
    assert ours.ratio.value == pytest.approx(1.1, rel=0.03) and ours.ratio.has(1.1)
    (_, back) = changes(BEFORE, slower)
    assert back.told(5) == "faster"


def test_a_difference_within_the_noise_is_none() -> None:
    """Medians of noise differ by more than any threshold; that they do is beyond doubt in one of 40 studies."""
    studies = [made_study({"max": 0.5}, noise=1.5, seed=seed) for seed in range(60)]
    found = [changes(new, old)[0] for new, old in zip(studies[::2], studies[1::2], strict=True)]
    assert sum(c.ratio.value > 1.05 for c in found) >= 8
    assert sum(c.is_regression(5) for c in found) <= 3


def test_rows_that_do_not_count_are_left_out() -> None:
    wrong = copy.deepcopy(BEFORE)
    wrong.rows[1].problem = "wrong results"
    assert [c.contender for c in changes(wrong, BEFORE)] == ["eager"] == [c.contender for c in changes(BEFORE, wrong)]
    more = made_study({"eager": 1.0, "inductor": 0.7})
    assert left_out(wrong, more) == [
        "mlp, inductor: not in this study",
        "mlp, max: not in the earlier study",
    ]
    assert left_out(BEFORE, wrong) == ["mlp, max: does not count in the earlier study (wrong results)"]
    told = with_changes(wrong, BEFORE, changes(wrong, BEFORE), 5)
    assert "Not compared:\n\n- mlp, max: does not count in this study (wrong results)" in told


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"environment": {"machine": MACHINE | {"device": "a GPU"}}}, "its device is 'a GPU', here 'a processor'"),
        ({"environment": {"machine": MACHINE | {"threads": "8"}}}, "its threads is '8', here '2'"),
        ({"settings": {"cold": True}}, "same settings: its cold is True, here False"),
        ({"settings": {"by": "device"}}, "its by is 'device', here 'wall'"),
        ({"rows": [Row("other", "max", wall=[1.0])]}, "no case and contender in common; it has other max"),
    ],
)
def test_what_cannot_be_compared(change: dict[str, Any], message: str) -> None:
    old = copy.deepcopy(BEFORE)
    old.environment |= change.get("environment", {})
    old.settings |= change.get("settings", {})
    old.rows = change.get("rows", old.rows)
    with pytest.raises(EvidenceError, match=message):
        changes(BEFORE, old)


@pytest.mark.parametrize("percent", [-1.0, float("nan")])
def test_a_threshold_is_a_percentage(percent: float) -> None:
    with pytest.raises(EvidenceError, match=f"threshold must be a number of per cent, 0 or more, got {percent}"):
        check_threshold(percent)


def test_versions_that_changed_are_told() -> None:
    now = copy.deepcopy(BEFORE)
    now.environment["versions"] = {"torch": "2.16.0"}
    assert updates(now, BEFORE) == {"torch": ("2.15.0", "2.16.0")}


def test_a_study_is_kept_with_all_its_samples(tmp_path: Path) -> None:
    study = copy.deepcopy(BEFORE)
    study.rows[0].warm_up = {"samples": 3, "seconds": 1.0, "stable": False, "change": float("inf")}
    save(study, tmp_path / "study.jsonl")
    found = load(tmp_path / "study.jsonl")
    assert [row.wall for row in found.rows] == [row.wall for row in study.rows]
    assert (found.settings, found.environment) == (study.settings, study.environment)
    assert found.rows[0].warm_up["change"] == "inf" and "not stable" in str(found) == str(study)
    with pytest.raises(EvidenceError, match=r"nowhere/study.jsonl must be a file in a folder that exists"):
        save(study, tmp_path / "nowhere" / "study.jsonl")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no study that `bench --save` wrote"),
        ("{}\n", "is no study"),
        ("not json\n", "is no study"),
        ('{"record": "study", "version": 99}\n', "must be a study of version 1, got version 99"),
    ],
)
def test_a_file_that_is_no_study(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(EvidenceError, match=message):
        load(tmp_path / "x.jsonl")
