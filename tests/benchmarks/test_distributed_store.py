"""Many readers of one store, and many starts: small runs of both benchmarks, and what they take for a fault."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.distributed_starts import Start, faults_of
from tests.support.processes import ROOT

pytestmark = pytest.mark.any_runner("readers load bytes of chance, and a start fails by itself")


def run(module: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """A benchmark's run."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)


@pytest.mark.own_processes
def test_readers_of_a_store() -> None:
    """One compiles, also after another one was killed, and none waits for ever."""
    done = run("distributed_store", "--readers=16", "--processes=4", "--libraries=2", "--seconds=0.2", "--size=1000")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.own_processes
def test_starts() -> None:
    """Two of four ranks."""
    done = run("distributed_starts", "--starts=2")
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_wrong_with_a_start() -> None:
    good = Start([0, 0], "", 1.0)
    assert not faults_of(good, ["a", "b"], True) and not faults_of(good, [], False)
    assert faults_of(good, ["a", "a"], True) == ["a library was compiled twice"]
    assert faults_of(good, ["a"], False) == ["1 compiles with a warm store"]
    assert faults_of(good, [], True) == ["0 compiles with a cold store"]
    assert faults_of(Start([0, None], "", 120.0), [], True) == ["1 rank(s) hang"]
    assert faults_of(Start([0, 1], "it fails", 1.0), [], True) == ["statuses [0, 1]: it fails"]
