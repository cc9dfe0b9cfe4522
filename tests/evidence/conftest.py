"""A file with models, and programs rather than MAX graphs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evidence.made_up import MODELS


@pytest.fixture(autouse=True)
def _programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")


@pytest.fixture
def models(tmp_path: Path) -> str:
    """The file, up to the name of a function in it."""
    (tmp_path / "models_to_measure.py").write_text(MODELS)
    return f"{tmp_path / 'models_to_measure.py'}:"
