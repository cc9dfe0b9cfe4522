"""Torch dtypes and MAX dtypes, and torch's type promotion over graph values."""

from __future__ import annotations

from typing import TypeAlias

import torch
from max.dtype import DType
from max.graph import Dim, TensorValue

from torch_max_backend.base.errors import Unsupported

TO_MAX: dict[torch.dtype, DType] = {
    torch.bool: DType.bool,
    torch.uint8: DType.uint8,
    torch.uint16: DType.uint16,
    torch.uint32: DType.uint32,
    torch.uint64: DType.uint64,
    torch.int8: DType.int8,
    torch.int16: DType.int16,
    torch.int32: DType.int32,
    torch.int64: DType.int64,
    torch.float16: DType.float16,
    torch.bfloat16: DType.bfloat16,
    torch.float32: DType.float32,
    torch.float64: DType.float64,
}
TO_TORCH: dict[DType, torch.dtype] = {v: k for k, v in TO_MAX.items()}

Operand: TypeAlias = TensorValue | Dim | bool | int | float


def max_dtype(dtype: torch.dtype) -> DType:
    """The MAX dtype that holds ``dtype`` bit for bit.

    Raises:
        Unsupported: MAX has none (complex, quantized, sub-byte).
    """
    try:
        return TO_MAX[dtype]
    except KeyError:
        raise Unsupported(f"MAX has no dtype for {dtype}") from None


def torch_dtype(dtype: DType) -> torch.dtype:
    """The inverse of :func:`max_dtype`."""
    return TO_TORCH[dtype]


def _category(dtype: torch.dtype) -> int:
    return 2 if dtype.is_floating_point else 0 if dtype is torch.bool else 1


def result_type(*operands: Operand) -> DType:
    """Torch's promoted dtype of tensors and Python numbers.

    Three priorities, as in ``torch.result_type``: tensors with dimensions, 0-d tensors, Python numbers; a lower one
    only counts if its category (bool < integer < float) is higher.
    """
    dims: torch.dtype | None = None
    zero: torch.dtype | None = None
    number: torch.dtype | None = None
    for x in operands:
        if isinstance(x, TensorValue):
            t = torch_dtype(x.dtype)
            if x.rank:
                dims = t if dims is None else torch.promote_types(dims, t)
            else:
                zero = t if zero is None else torch.promote_types(zero, t)
        else:
            t = (
                torch.bool
                if isinstance(x, bool)
                else torch.get_default_dtype()
                if isinstance(x, float)
                else torch.int64
            )
            number = t if number is None else torch.promote_types(number, t)
    result = dims
    for lower in (zero, number):
        if lower is None:
            continue
        if result is None:
            result = lower
        elif _category(lower) > _category(result):
            result = torch.promote_types(result, lower) if lower is zero else lower
    assert result is not None, "result_type needs an operand"
    return max_dtype(result)


def accumulator(dtype: DType) -> DType:
    """The dtype to compute sums and transcendental functions in: float32 for 16-bit floats, else itself."""
    return DType.float32 if dtype in (DType.float16, DType.bfloat16) else dtype
