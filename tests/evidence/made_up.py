"""Studies that nobody measured, and a file with models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torch_max_backend.evidence.study import Row, Study

MACHINE = {"processor": "a processor", "threads": "2", "device": "a processor"}
ENVIRONMENT = {
    "date": "2026-01-02",
    "machine": MACHINE,
    "versions": {"torch": "2.15.0"},
    "limits": {"governor": "not available"},
    "load": 0.1,
}
SETTINGS = {
    "device": "cpu",
    "baseline": "eager",
    "rounds": 30,
    "seed": 0,
    "cold": False,
    "training": False,
    "by": "wall",
    "items": 0,
    "unit": "item",
    "confidence": 0.95,
    "resamples": 1000,
}

MODELS = """
import torch
from torch import nn


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).eval(), (torch.randn(4, 16),)


def several(device):
    x = torch.ones(3, 4, device=device)
    return {"sum": (lambda x: x.sum(-1), (x,)), "scaled": (lambda x, by: x * by, (x,), {"by": 3.0})}


def empty():
    return {}


def nothing():
    return None


def eighths():
    return (lambda x: x.to(torch.float8_e4m3fn)), (torch.ones(3),)


def broken():
    return (lambda x: x @ x), (torch.ones(3, 4),)
"""


def made_study(
    medians: dict[str, float], noise: float = 0.02, seed: int = 0, case: str = "mlp", **settings: Any
) -> Study:
    """A study of one case, whose contenders have these medians and log-normal noise."""
    draws = np.random.default_rng(seed)

    def samples(median: float) -> Sequence[float]:
        return (median * np.exp(noise * draws.standard_normal(30))).tolist()

    rows = [Row(case, name, wall=list(samples(median))) for name, median in medians.items()]
    return Study(dict(ENVIRONMENT), SETTINGS | settings, {}, rows)
