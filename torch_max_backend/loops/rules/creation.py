"""Tensors from nothing: constants, ranges, and memory whose content nobody may rely on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_max_backend.loops.expr import Scalar, cast, compare_index, constant, from_index, op, select
from torch_max_backend.loops.index import Index, greatest
from torch_max_backend.loops.rules.registry import aten, prims, rule
from torch_max_backend.loops.tensor import Tensor, number


# full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, ...) -> Tensor
@rule(aten.full.default)
def full(size: list[Any], fill_value: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    found = dtype or (torch.tensor(fill_value).dtype if not isinstance(fill_value, Index) else torch.int64)
    return Tensor(tuple(map(Index.of, size)), found, lambda index: number(fill_value, found))


# full_like(Tensor self, Scalar fill_value, *, ...) -> Tensor
@rule(aten.full_like.default)
def full_like(self: Tensor, fill_value: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    return full(list(self.shape), fill_value, dtype or self.dtype)


# scalar_tensor(Scalar s, *, ScalarType? dtype=None, ...) -> Tensor
@rule(aten.scalar_tensor.default)
def scalar_tensor(s: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    return full([], s, dtype or torch.get_default_dtype())


# zeros_like(Tensor self, *, ...) -> Tensor
@rule(aten.zeros_like.default)
def zeros_like(self: Tensor, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    return full_like(self, 0, dtype)


# new_zeros(Tensor self, SymInt[] size, *, ScalarType? dtype=None, ...) -> Tensor
@rule(aten.new_zeros.default)
def new_zeros(self: Tensor, size: list[Any], dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    return full(size, 0, dtype or self.dtype)


# zeros(SymInt[] size, *, ScalarType? dtype=None, ...) -> Tensor
@rule(aten.zeros.default)
def zeros(size: list[Any], dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    return full(size, 0, dtype or torch.get_default_dtype())


# ones_like(Tensor self, *, ...) -> Tensor
@rule(aten.ones_like.default)
def ones_like(self: Tensor, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    return full_like(self, 1, dtype)


# iota(SymInt length, *, SymInt start, SymInt step, ScalarType dtype, ...) -> Tensor
@rule(prims.iota.default)
def iota(length: Any, start: Any, step: Any, dtype: torch.dtype, **kwargs: Any) -> Tensor:
    return Tensor((Index.of(length),), dtype, lambda index: cast(from_index(Index.of(start) + index[0] * step), dtype))


# linspace(Scalar start, Scalar end, int steps, *, ScalarType? dtype=None, ...) -> Tensor
@rule(aten.linspace.default)
def linspace(start: Any, end: Any, steps: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    """Counted from ``start`` in the first half and from ``end`` in the second, as ATen's kernel for a CPU does.

    The ends are of the result's dtype before that: of whole numbers between 4.3 and 50 the first is 4, and they are
    counted from 4. Their step is in float64, that of others in their own dtype.
    """
    found = dtype or torch.get_default_dtype()
    narrow = torch.float64 if not found.is_floating_point else found
    wide = torch.float32 if found in (torch.float16, torch.bfloat16) else narrow
    first, last = (cast(number(x, found), wide) for x in (start, end))
    length = Index.of(steps)
    count = op("maximum", constant(length - 1, wide), constant(1, wide))  # one number is the first one
    step = cast(cast((last - first) / count, narrow), wide)
    half = greatest(length // 2, Index.of(1))

    def at(index: Sequence[Index]) -> Scalar:
        up = first + step * cast(from_index(index[0]), wide)
        down = last - step * cast(from_index(length - 1 - index[0]), wide)
        return cast(select(compare_index("lt", index[0], half), up, down), found)

    return Tensor((length,), found, at)


# empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, ..., MemoryFormat? memory_format=None) -> Tensor
# empty_permuted(SymInt[] size, int[] physical_layout, *, ScalarType? dtype=None, ...) -> Tensor
# empty_strided(SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, ...) -> Tensor
@rule(
    aten.empty.memory_format, aten.empty_permuted.default, aten.empty_strided.default, prims.empty_strided.default,
    prims.empty.default, prims.empty_permuted.default,
)  # fmt: skip
def empty(size: Sequence[Any], *layout: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    """Zeros: constants cost nothing where they are read."""
    return full(list(size), 0, dtype or torch.get_default_dtype())
