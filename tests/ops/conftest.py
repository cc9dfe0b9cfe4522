"""Programs of public ops are traced in tests, whatever an earlier run has kept."""

from __future__ import annotations

import pytest

from torch_max_backend.ops import eager_call


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_call, "kept_program", lambda parts, options: None)
