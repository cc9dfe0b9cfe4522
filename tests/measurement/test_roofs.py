"""What the machine reaches, with tiny sizes, and what is kept of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from typer.testing import CliRunner

from torch_max_backend.base.errors import EvidenceError
from torch_max_backend.cli import app
from torch_max_backend.diagnostics.kernel_times import KernelTimes, Row
from torch_max_backend.measurement import roofs
from torch_max_backend.measurement.machine import identity
from torch_max_backend.measurement.roofs import Roofs, Sizes

MADE = Roofs("cpu", identity("cpu"), {"torch": "2"}, "2026-01-02", 3e10, {"float32": 2e11}, 1e-6, 2e-5, 0.5)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_MAX_BACKEND_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    monkeypatch.setattr(Sizes, "of", classmethod(lambda cls, device: cls(1 << 16, 32, 1e-4)))
    roofs.copy_speed.cache_clear()


@pytest.mark.sampled
def test_env_measures_and_keeps() -> None:
    result = CliRunner().invoke(app, ["env", "--measure"])
    assert result.exit_code == 0, result.output
    for name in ("GB/s", "product of float32", "product of bfloat16", "smallest op of torch", "compile of one small"):
        assert name in result.output
    found = roofs.kept("cpu")
    assert found is not None
    assert found.copy_bytes_per_s > 1e6 and set(found.product_flops) == {"float32", "bfloat16"}
    assert 0 < found.launch_s < found.compile_s and 0 < found.call_s < found.compile_s


@pytest.mark.any_runner("a file")
def test_only_roofs_of_this_machine_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert roofs.kept("cpu") is None
    file = roofs.keep(MADE)
    assert roofs.kept("cpu") == MADE
    with monkeypatch.context() as patch:
        patch.setattr(roofs, "identity", lambda device: identity(device) | {"threads": "1000"})
        assert roofs.kept("cpu") is None
    file.write_text("{")
    assert roofs.kept("cpu") is None


@pytest.mark.any_runner("a figure that is kept")
def test_kernel_times_cite_them() -> None:
    speed, source = roofs.copy_speed()
    assert speed > 1e6 and source == "measured now"
    roofs.copy_speed.cache_clear()
    roofs.keep(MADE)
    assert roofs.copy_speed() == (3e10, "kept roofs of 2026-01-02")
    times = KernelTimes((Row("kernel", "kernel0 add", 1, 1e-3, 3_000_000),), *roofs.copy_speed())
    assert "a copy moves 30 GB/s (kept roofs of 2026-01-02)" in str(times).splitlines()[0]
    assert "10%" in str(times)
    roofs.copy_speed.cache_clear()


@pytest.mark.any_runner("texts")
def test_they_are_told_in_units() -> None:
    told = dict(MADE.rows())
    assert told["copy"] == "30 GB/s, read and written"
    assert told["product of float32"] == "0.2 TFLOP/s"
    assert "30 GB/s" in MADE.cited() and "2026-01-02" in MADE.cited()
    assert dataclasses.replace(MADE, compile_s=0.25).rows()[5] == ("compile of one small kernel", "0.25 s")


@pytest.mark.any_runner("usage")
@pytest.mark.parametrize("device", ["tpu", "cuda:99", "cpu:x"])
def test_a_device_that_is_not_here(device: str) -> None:
    with pytest.raises(EvidenceError, match=f"--device must be one of cpu.*got '{device}'"):
        roofs.measure(device)
