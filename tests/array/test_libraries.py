"""Libraries that dispatch by the standard, on arrays: scikit-learn and SciPy, with their own results on NumPy's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_runner("the libraries' short expressions are PyTorch's")

EXAMPLE = Path(__file__).parents[2] / "examples" / "array_libraries.py"


@pytest.mark.full
@pytest.mark.own_processes
def test_scikit_learn_and_scipy_take_arrays() -> None:
    """In a process of its own: SciPy reads the switch for dispatch when it is imported."""
    env = {**os.environ, "TORCH_MAX_BACKEND_EXECUTOR": "auto", "TORCH_MAX_BACKEND_MIN_BLOCK_SIZE": "1000"}
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the same as on NumPy") == 6, done.stdout
