"""The store under attack: the small form of the benchmark that kills, damages and fills."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "attack_store.py"
ATTACKS = ["while writing", "while compiling", "bit-flipped", "full disk", "read-only", "at once"]


@pytest.mark.full  # minutes of both processors beside the compiles of the ordinary run
def test_no_attack_finds_a_fault() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--small"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert all(attack in done.stdout for attack in ATTACKS)
