"""PyTorch's own accuracy minifier knows this backend by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from tests.diagnostics.verify.injection import inject


def three_times(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.relu(x @ w) + 1) * 3


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor]:
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    monkeypatch.setenv("TORCH_MAX_BACKEND_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.setattr(torch._dynamo.config, "debug_dir_root", str(tmp_path / "debug"))
    monkeypatch.setattr(torch._dynamo.config, "repro_level", 4)
    monkeypatch.setattr(torch._dynamo.config, "repro_forward_only", True)
    return torch.randn(4, 8), torch.randn(8, 8)


def test_after_dynamo_it_finds_a_wrong_op(
    inputs: tuple[torch.Tensor, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._dynamo.config, "repro_after", "dynamo")
    torch.compile(three_times, backend="max_backend")(*inputs)
    torch._dynamo.reset()
    inject(monkeypatch)
    with pytest.raises(BackendCompilerFailed, match="AccuracyError: Bad accuracy detected"):
        torch.compile(three_times, backend="max_backend")(*inputs)
    (launcher,) = (tmp_path / "debug").rglob("minifier_launcher.py")
    assert "backend='max_backend'" in launcher.read_text()


@pytest.mark.any_runner("torch calls no hook of a backend other than its own")
def test_after_aot_it_looks_at_inductor_alone(
    inputs: tuple[torch.Tensor, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._dynamo.config, "repro_after", "aot")
    inject(monkeypatch)
    torch.compile(three_times, backend="max_backend")(*inputs)
    assert not list(tmp_path.rglob("minifier_launcher.py"))
