"""Which machine and which versions a measurement is of."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

from torch_max_backend.base.digests import cpu_target, package_version
from torch_max_backend.measurement.nvml import card_of

PACKAGES = ("torch-max-backend", "torch", "max", "mojo-compiler", "triton")
NOT_AVAILABLE = "not available"


def cpu_name() -> str:
    """The processor's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def driver_version() -> str:
    """The version of NVIDIA's driver; empty where there is none."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    return next((word for word in text.split() if word[:1].isdigit() and "." in word), "")


def device_facts(device: str) -> dict[str, Any]:
    """What torch says of a device."""
    if not device.startswith("cuda"):
        return {"name": cpu_name(), "threads": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory": properties.total_memory,
        "cache": properties.L2_cache_size,
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def identity(device: str) -> dict[str, str]:
    """What must be equal for times of a device to be comparable: processor, threads of torch, and the device."""
    return {
        "processor": f"{cpu_name()} ({cpu_target()})",
        "threads": str(torch.get_num_threads()),
        "device": device_facts(device)["name"],
    }


def versions() -> dict[str, str]:
    """Python and the packages that decide what runs."""
    return {"python": platform.python_version(), **{name: package_version(name) for name in PACKAGES}}


def environment(device: str) -> dict[str, Any]:
    """All that a record says of where it was made. ``load`` is the machine's before anything of ours runs."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": identity(device),
        "versions": versions(),
        "device": device_facts(device),
        "limits": limits(device),
        "load": round(os.getloadavg()[0], 1),
        "processors": os.cpu_count(),
    }


def limits(device: str, folder: Path = Path("/sys/devices/system/cpu/cpu0/cpufreq")) -> dict[str, str]:
    """Limits of power and clock: a GPU's by NVML, a processor's by the system; what nobody tells is not available."""
    if device.startswith("cuda"):
        card = card_of(device)
        return card.limits() if card is not None else {"power and clocks": f"{NOT_AVAILABLE}: no pynvml"}
    found = {}
    for name, file in (("governor", "scaling_governor"), ("largest clock, kHz", "scaling_max_freq")):
        try:
            found[name] = (folder / file).read_text().strip()
        except OSError:
            found[name] = NOT_AVAILABLE
    return found
