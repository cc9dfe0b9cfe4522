"""Unsigned integers of 16, 32 and 64 bits, for which torch has few ops: they are computed as ``int64``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., Any]

_WIDE = (torch.uint16, torch.uint32, torch.uint64)
_SAME_SIZE = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_LOWEST = -(2**63)


def _carried(x: torch.Tensor, ordered: bool) -> torch.Tensor:
    if x.dtype is not torch.uint64:
        return x.to(torch.int64)
    bits = x.view(torch.int64)
    return bits ^ _LOWEST if ordered else bits


def _back(y: torch.Tensor, dtype: torch.dtype, ordered: bool) -> torch.Tensor:
    if dtype is not torch.uint64:
        return y.to(dtype)
    return (y ^ _LOWEST if ordered else y).view(torch.uint64)


def carried(function: Function, *, ordered: bool = False, back: bool = True) -> Function:
    """A function that takes all unsigned integers, from one that takes signed ones.

    Args:
        function: Of tensors, and anything by name.
        ordered: It compares: then the largest ``uint64`` is the largest ``int64``. Otherwise the bits are the same,
            which is right for sums, products, and whatever else counts modulo two to the 64th.
        back: The result has the data type of the first tensor; otherwise it is returned as it is.
    """

    @functools.wraps(function)
    def run(*tensors: torch.Tensor, **others: Any) -> Any:
        dtype = tensors[0].dtype
        if dtype not in _WIDE:
            return function(*tensors, **others)
        result = function(*(_carried(x, ordered) if x.dtype is dtype else x for x in tensors), **others)
        return _back(result, dtype, ordered) if back else result

    return run


def moved(function: Function) -> Function:
    """A function that only moves elements, for all unsigned integers: they are seen as signed ones of their size."""

    @functools.wraps(function)
    def run(*tensors: torch.Tensor, **others: Any) -> Any:
        dtype = tensors[0].dtype
        if dtype not in _WIDE:
            return function(*tensors, **others)
        seen = _SAME_SIZE[dtype]
        return function(*(x.view(seen) if x.dtype is dtype else x for x in tensors), **others).view(dtype)

    return run


def floor_divide_unsigned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Quotients of unsigned 64-bit integers, as their bits in ``int64``."""
    is_large = b < 0  # as unsigned, at least two to the 63rd: the quotient is 0 or 1
    divisor = torch.where(is_large, torch.ones_like(b), b)
    half = ((a >> 1) & (2**63 - 1)) // divisor
    quotient = half << 1
    rest = a - quotient * divisor
    quotient = quotient + ((rest ^ _LOWEST) >= (divisor ^ _LOWEST)).to(torch.int64)
    return torch.where(is_large, ((a ^ _LOWEST) >= (b ^ _LOWEST)).to(torch.int64), quotient)


def shift_right_unsigned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Unsigned 64-bit integers, as their bits in ``int64``, shifted right with zeros coming in."""
    halved = (a >> 1) & (2**63 - 1)
    return torch.where(b == 0, a, halved >> (b - 1).clamp(min=0))
