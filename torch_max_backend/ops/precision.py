"""What references share: wide floats, rows."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch

from torch_max_backend.ops.arguments import BATCH, Sizes

MaybeTensor: TypeAlias = torch.Tensor | None


def as_wide(x: torch.Tensor) -> torch.Tensor:
    """``x`` in the dtype that is computed in: float64 as it is, anything else in float32."""
    return x if x.dtype == torch.float64 else x.float()


def rows_of(sizes: Sizes) -> Any:
    """How many rows a call has: the product of the leading dimensions."""
    return math.prod(sizes.get(BATCH, ()))


def sum_of_rows(x: torch.Tensor) -> torch.Tensor:
    """The sum over all dimensions but the last."""
    return x.sum(list(range(x.ndim - 1))) if x.ndim > 1 else x
