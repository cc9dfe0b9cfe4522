"""What a machine says of its memory, from files as Linux has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_max_backend.admission_control import device_memory
from torch_max_backend.admission_control.device_memory import free, total

pytestmark = pytest.mark.any_runner("no op runs")
GIB = 1 << 30


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine of 16 GiB, 10 of which are available, and a control group without a limit."""
    info, group, groups = tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "groups"
    info.write_text(f"MemTotal: {16 << 20} kB\nMemFree: {4 << 20} kB\nMemAvailable: {10 << 20} kB\n")
    group.write_text("0::/jobs/mine\n")
    (groups / "jobs" / "mine").mkdir(parents=True)
    for name, place in (("MEMORY_INFO", info), ("GROUP", group), ("GROUPS", groups)):
        monkeypatch.setattr(device_memory, name, place)
    for cached in (total, device_memory._group_folders):
        cached.cache_clear()
    yield groups / "jobs"
    for cached in (total, device_memory._group_folders):
        cached.cache_clear()


def limit(folder: Path, most: str, used: int, caches: int = 0) -> None:
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {caches}\nactive_file 0\n")


def test_the_machine_is_the_limit() -> None:
    assert (total("cpu"), free("cpu")) == (16 * GIB, 10 * GIB)


def test_a_control_group_may_be_one(machine: Path) -> None:
    limit(machine / "mine", str(4 * GIB), 3 * GIB, caches=GIB)
    assert (total("cpu"), free("cpu")) == (4 * GIB, 2 * GIB)


def test_and_so_may_one_around_it(machine: Path) -> None:
    limit(machine / "mine", "max", GIB)
    limit(machine, str(2 * GIB), 3 * GIB)
    assert (total("cpu"), free("cpu")) == (2 * GIB, 0)
