"""What is told of the machine: by the system, and by a card that is made up."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_max_backend.measurement.machine import environment, identity, limits
from torch_max_backend.measurement.nvml import card_of

pytestmark = pytest.mark.any_runner("facts")


class NVMLError(Exception):
    pass


def made_up(energy: int | None) -> Any:
    """A module like ``pynvml``; without an energy the card does not count it."""

    def total(handle: str) -> int:
        assert handle == "GPU-1234"
        if energy is None:
            raise NVMLError
        return energy

    return types.SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=total,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: {1: 1980, 2: 2619}[kind],
        nvmlDeviceGetClockInfo=lambda handle, kind: {1: 345, 2: 2619}[kind],
    )


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid="1234"))


@pytest.mark.usefixtures("gpu")
def test_a_card_tells_energy_and_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", made_up(5_000))
    card = card_of("cuda")
    assert card is not None
    assert card.energy() == 5.0
    assert limits("cuda") == {
        "power limit": "700 W",
        "SM clock": "345 MHz of 1980 MHz",
        "memory clock": "2619 MHz of 2619 MHz",
    }


@pytest.mark.usefixtures("gpu")
def test_what_a_card_does_not_tell_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", made_up(None))
    card = card_of("cuda")
    assert card is not None and card.energy() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert card_of("cuda") is None
    assert limits("cuda") == {"power and clocks": "not available: no pynvml"}


def test_limits_of_a_processor(tmp_path: Path) -> None:
    (tmp_path / "scaling_governor").write_text("performance\n")
    assert limits("cpu", tmp_path) == {"governor": "performance", "largest clock, kHz": "not available"}


def test_the_environment_names_machine_and_versions() -> None:
    found = environment("cpu")
    assert found["machine"] == identity("cpu")
    assert found["machine"]["threads"] == str(torch.get_num_threads())
    assert found["versions"]["torch"] == torch.__version__.partition("+")[0] or found["versions"]["torch"]
    assert found["load"] >= 0
