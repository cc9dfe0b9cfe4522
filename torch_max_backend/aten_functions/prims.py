"""The few ``prims`` ops that AOTAutograd itself puts into graphs, where it turns Python floats into tensors."""

from __future__ import annotations

import torch
from max.graph import TensorValue

from torch_max_backend.aten_functions.common import cast
from torch_max_backend.aten_functions.dtypes import max_dtype
from torch_max_backend.aten_functions.registry import map_to


# prims::convert_element_type(Tensor a, ScalarType dtype) -> Tensor
@map_to(torch.ops.prims.convert_element_type.default, how="max")
def convert_element_type(a: TensorValue, dtype: torch.dtype) -> TensorValue:
    """A cast."""
    return cast(a, max_dtype(dtype))
