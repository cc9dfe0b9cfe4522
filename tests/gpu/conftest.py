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


def missing() -> str:
    """Why no GPU test can run here; empty where they can."""
    if not torch.cuda.is_available():
        return "needs a GPU: torch.cuda.is_available() is false"
    if not get_accelerators():
        return "needs a GPU: torch has one, but MAX sees none"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def a_gpu() -> Iterator[None]:
    """Skip without a GPU; afterwards give memory back, since several test processes share the GPU."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
