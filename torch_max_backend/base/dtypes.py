"""Dtypes that are treated alike in several layers."""

from __future__ import annotations

import torch

FLOAT8 = frozenset(
    {
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    }
)
"""Floats of 8 bits, which kernels carry as bits, and MAX's graphs not at all."""
