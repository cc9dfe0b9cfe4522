"""The last-level cache: how large it is, and how it is emptied between calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import torch

UNKNOWN = 1 << 26
"""Bytes that are assumed of a processor's last-level cache where the system does not say."""
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@functools.cache
def last_level_cache(device: str) -> int:
    """Bytes of a device's last-level cache: a GPU's L2, a processor's largest one as the system tells it."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return processor_cache(Path("/sys/devices/system/cpu/cpu0/cache"))


def processor_cache(folder: Path) -> int:
    """The largest cache that a folder of the system tells of; ``UNKNOWN`` if it tells of none."""
    sizes = [UNKNOWN]
    for file in folder.glob("index*/size"):
        text = file.read_text().strip()
        if text[:-1].isdigit() and text[-1] in _UNITS:
            sizes.append(int(text[:-1]) * _UNITS[text[-1]])
    return max(sizes[1:], default=UNKNOWN)


def flush_of(device: str) -> Callable[[], torch.Tensor]:
    """What drives everything else out of a device's last-level cache: it reads and writes twice as many bytes."""
    buffer = torch.zeros(2 * last_level_cache(device) // 4, device=device)
    return lambda: buffer.add_(1)
