"""Products of float32 by oneDNN in place of MKL, on processors for which MKL lacks kernels of the widest vectors.

MKL has such kernels for Intel's processors alone. On an AMD EPYC with AVX-512 it takes twice as long as oneDNN: 512
rows of 768 with 768 columns 2.9 ms in place of 1.3, on two cores. What is small begins sooner in MKL.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torch_max_backend.loops.rules import views
from torch_max_backend.loops.tensor import Tensor

LARGE = 2**21
"""Multiplications from which oneDNN, which takes longer to begin, is done first."""


@functools.lru_cache(maxsize=1)
def is_faster() -> bool:
    """Whether oneDNN's products are faster than MKL's on this machine."""
    has_both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    is_wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return has_both and is_wide and hasattr(torch.ops.mkldnn, "_linear_pointwise") and _vendor() == "AuthenticAMD"


def _vendor() -> str:
    """Who made the processor, as Linux has it; empty if nobody says."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def as_linear(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...]] | None:
    """A product of matrices as oneDNN's linear, the op and its arguments; ``None`` if MKL is to compute it.

    ``target`` may be any op, and the second matrix lie in any way.
    """
    aten = torch.ops.aten
    if target not in (aten.mm.default, aten.addmm.default) or kwargs or not torch.backends.mkldnn.enabled:
        return None
    *bias, x, weight = args
    if len(bias) > 1 or not all(isinstance(y, Tensor) and y.dtype is torch.float32 for y in args):
        return None
    sizes = [*x.shape, weight.shape[1]]
    if not all(s.is_constant for s in sizes) or math.prod(s.constant for s in sizes) < LARGE or not is_faster():
        return None
    if bias and (bias[0].rank != 1 or bias[0].shape[0] != weight.shape[1]):
        return None
    given: list[Any] = [x, views.transpose(weight, 0, 1), bias[0] if bias else None, "none", [], ""]
    return torch.ops.mkldnn._linear_pointwise.default, tuple(given)
