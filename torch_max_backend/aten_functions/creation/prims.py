"""The few ``prims`` ops that Dynamo and AOTAutograd put into graphs, where they turn Python floats into tensors."""

from __future__ import annotations

import torch
from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.pointwise.arithmetic import arithmetic_operands, rounded
from torch_max_backend.aten_functions.registry import map_to
from torch_max_backend.aten_functions.support import elementary
from torch_max_backend.aten_functions.support.dtypes import max_dtype
from torch_max_backend.aten_functions.support.tensor_ops import Operand, cast


# prims::convert_element_type(Tensor a, ScalarType dtype) -> Tensor
@map_to(torch.ops.prims.convert_element_type.default)
def convert_element_type(a: TensorValue, dtype: torch.dtype) -> TensorValue:
    """A cast."""
    return cast(a, max_dtype(dtype))


# prims::fma(Tensor a, Tensor b, Tensor c) -> Tensor
@map_to("prims.fma.default")
def fma(a: Operand, b: Operand, c: Operand) -> TensorValue:
    """``a * b + c``, what Dynamo makes of ``addcmul_``, ``addcdiv_`` and ``add_`` with a scale (optimizers)."""
    x, y, z = arithmetic_operands(a, b, c, wide=True)
    return rounded(ops.add(elementary.product(x, y), z))
