"""How much memory a device has, how much of it is free, and how much torch has allocated there, in bytes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import torch

MEMORY_INFO = Path("/proc/meminfo")
GROUP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


@functools.cache
def total(device: str) -> int:
    """All that a device has; on a CPU, all that this process may have."""
    if device != "cpu":
        return torch.cuda.get_device_properties(torch.device(device)).total_memory
    return min([_of_machine("MemTotal"), *(limit for limit, _ in _groups())])


def free(device: str) -> int:
    """What can be allocated: on a GPU with what torch's allocator keeps for itself, on a CPU with what caches hold."""
    if device != "cpu":
        index = torch.device(device)
        unused = torch.cuda.memory_reserved(index) - torch.cuda.memory_allocated(index)
        return torch.cuda.mem_get_info(index)[0] + unused
    return max(0, min([_of_machine("MemAvailable"), *(limit - used for limit, used in _groups())]))


def allocated(device: str) -> int | None:
    """What torch has allocated on a device; nobody counts that on a CPU."""
    return None if device == "cpu" else torch.cuda.memory_allocated(torch.device(device))


def _of_machine(name: str) -> int:
    for line in MEMORY_INFO.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def _groups() -> Iterator[tuple[int, int]]:
    """The limits of this process's control groups, each with what is in use below it beside caches of files."""
    for folder in _group_folders():
        try:
            limit = (folder / "memory.max").read_text().strip()
            if limit == "max":
                continue
            used = int((folder / "memory.current").read_text())
            caches = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            yield int(limit), used - int(caches.get("inactive_file", 0)) - int(caches.get("active_file", 0))
        except OSError:  # the root has no limit, and one that is not ours cannot be read
            continue


@functools.cache
def _group_folders() -> tuple[Path, ...]:
    """Where a machine with the second version of control groups has them; none on others."""
    try:
        own = next(line[3:] for line in GROUP.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return ()
    folder = GROUPS / own.strip("/")
    return tuple(f for f in (folder, *folder.parents) if f == GROUPS or GROUPS in f.parents)
