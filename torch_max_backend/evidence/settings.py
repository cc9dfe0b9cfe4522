"""How a study is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch_max_backend.base.errors import EvidenceError
from torch_max_backend.evidence.contenders import check_names
from torch_max_backend.evidence.outputs import with_overrides
from torch_max_backend.measurement.roofs import check_device
from torch_max_backend.measurement.statistics import CONFIDENCE, RESAMPLES
from torch_max_backend.measurement.warm_up import LIMIT_S

SAME = ("device", "training", "cold", "by", "items")
"""What must be equal for two studies to be compared."""


@dataclass(frozen=True)
class Settings:
    """How a study is made; everything is checked where it is given.

    Attributes:
        contenders: Names of ``contenders.SETTINGS``, each also with ``+patch`` behind it.
        baseline: Over whose median a speed-up is; the first contender if empty.
        rounds: Samples of each contender.
        sample_s: Seconds of calls that make a sample.
        seed: Of the orders in which contenders are measured, of the bootstrap, and of torch where results are compared.
        cold: A sample is one call, and the last-level cache is emptied before it.
        training: A call is forward and backward, and gradients are compared as well.
        by: ``wall``, a loop of calls by the clock, or ``device``, what a GPU takes when it never waits for the host.
        tolerance: In place of the package's, by a dtype's name: see ``outputs.compared``.
        warm_up_s: The longest warm-up of a contender.
        items, unit: What one call delivers (4096, "token"), for a rate; 0: not stated.
        memory: On a CPU, measure peak memory in a process for each contender.
    """

    contenders: tuple[str, ...] = ("eager", "inductor", "max")
    device: str = "cpu"
    baseline: str = ""
    rounds: int = 20
    sample_s: float = 0.02
    seed: int = 0
    cold: bool = False
    training: bool = False
    by: str = "wall"
    tolerance: Mapping[str, float] = field(default_factory=dict)
    warm_up_s: float = LIMIT_S
    items: int = 0
    unit: str = "item"
    memory: bool = False
    confidence: float = CONFIDENCE
    resamples: int = RESAMPLES

    def __post_init__(self) -> None:
        check_names(self.contenders)
        check_device(self.device)
        with_overrides(self.tolerance)
        if self.baseline and self.baseline not in self.contenders:
            raise EvidenceError(f"baseline must be one of {', '.join(self.contenders)}, got {self.baseline!r}")
        if self.by not in ("wall", "device"):
            raise EvidenceError(f"by must be wall or device, got {self.by!r}")
        if self.by == "device" and not self.device.startswith("cuda"):
            raise EvidenceError(f"by='device' needs a GPU, and device is {self.device!r}")
        for name, least in (("rounds", 2), ("items", 0), ("resamples", 1)):
            if getattr(self, name) < least:
                raise EvidenceError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("sample_s", "warm_up_s"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise EvidenceError(f"{name} must be a positive number of seconds, got {value}")
        if not 0 < self.confidence < 1:
            raise EvidenceError(f"confidence must lie between 0 and 1, got {self.confidence}")

    @property
    def compared_with(self) -> str:
        """The contender over whose median a speed-up is."""
        return self.baseline or self.contenders[0]
