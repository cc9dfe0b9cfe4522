"""What an NVIDIA card tells of itself through NVML, where the package ``pynvml`` is there: energy, power, clocks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

NOT_TOLD = "not available"


@dataclass(frozen=True)
class Card:
    """A card, and the module that asks it."""

    nvml: Any
    handle: Any

    def energy(self) -> float | None:
        """Joules since the driver was loaded; None where the card does not count them."""
        counted = self._asked(self.nvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if counted is None else counted / 1e3

    def limits(self) -> dict[str, str]:
        """The power limit, and the largest and present clock of the multiprocessors and the memory."""
        power = self._asked(self.nvml.nvmlDeviceGetEnforcedPowerLimit)
        found = {"power limit": NOT_TOLD if power is None else f"{power / 1e3:.0f} W"}
        for name, kind in (("SM", self.nvml.NVML_CLOCK_SM), ("memory", self.nvml.NVML_CLOCK_MEM)):
            largest = self._asked(self.nvml.nvmlDeviceGetMaxClockInfo, kind)
            present = self._asked(self.nvml.nvmlDeviceGetClockInfo, kind)
            found[f"{name} clock"] = f"{_megahertz(present)} of {_megahertz(largest)}"
        return found

    def _asked(self, question: Callable[..., int], *arguments: Any) -> int | None:
        try:
            return question(self.handle, *arguments)
        except self.nvml.NVMLError:  # the card or the driver does not tell
            return None


def _megahertz(clock: int | None) -> str:
    return NOT_TOLD if clock is None else f"{clock} MHz"


def card_of(device: str) -> Card | None:
    """The card behind a torch device, found by its UUID; None without ``pynvml``, or where NVML does not start."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    try:
        nvml.nvmlInit()
        return Card(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError:
        return None
