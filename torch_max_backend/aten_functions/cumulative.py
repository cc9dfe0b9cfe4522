"""Scans along one axis."""

from __future__ import annotations

import torch
from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.common import axis_of, cast, reshape
from torch_max_backend.aten_functions.context import out_dtype, out_shape
from torch_max_backend.aten_functions.dtypes import accumulator
from torch_max_backend.aten_functions.reductions import at_least_1d
from torch_max_backend.aten_functions.registry import aten, map_to


# cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor
@map_to(aten.cumsum.default)
def cumsum(self: TensorValue, dim: int, dtype: torch.dtype | None = None) -> TensorValue:
    x = at_least_1d(cast(self, accumulator(out_dtype())))
    return reshape(cast(ops.cumsum(x, axis_of(dim, x.rank)), out_dtype()), out_shape())
