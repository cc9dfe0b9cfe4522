"""Tests of this folder need a GPU: they are marked ``gpu``, and skipped with the reason where there is none.

Without a GPU they cost their collection and nothing more: no test module makes a tensor on a GPU while it is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torch_max_backend import get_accelerators

HERE = Path(__file__).parent
OF_PROGRAMS = ("test_grid_programs", "test_cuda_interface")
"""Modules that are about generated kernels, whoever runs regions."""


def missing() -> str:
    """Why no GPU test can run here; empty where they can."""
    if not torch.cuda.is_available():
        return "needs a GPU: torch.cuda.is_available() is false"
    if not get_accelerators():
        return "needs a GPU: torch has one, but MAX sees none"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, and skip it, before any fixture is made, where it cannot run."""
    found = [item for item in items if HERE in item.path.parents]
    reason = missing() if found else ""
    for item in found:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run regions as users do, or by what ``--executor`` names; tests that are about one executor ask for it."""
    if request.path.stem not in OF_PROGRAMS:
        monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", request.config.getoption("--executor"))


@pytest.fixture(autouse=True)
def shared_gpu() -> Iterator[None]:
    """Give memory back after each test, since several test processes share the GPU."""
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
