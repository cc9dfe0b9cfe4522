"""Torch's primitives, which its own decompositions end in: the same rules as the ATen ops they are called after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_max_backend.loops.index import Index
from torch_max_backend.loops.rules.creation import full
from torch_max_backend.loops.rules.pointwise import clone, where
from torch_max_backend.loops.rules.reduce import amax, amin, prod, sum_dims
from torch_max_backend.loops.rules.registry import aten, prims, rule, same_as
from torch_max_backend.loops.rules.views import flip, mapped, permute, reshaped, squeeze
from torch_max_backend.loops.tensor import Operand, Tensor, pointwise

_UNARY = """abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh digamma erf erfc exp exp2 expm1 floor
    isfinite lgamma log log10 log1p log2 neg reciprocal round rsqrt sign signbit sin sinh sqrt tan tanh trunc"""
_BINARY = "add atan2 bitwise_and bitwise_or bitwise_xor eq fmax fmin fmod ge gt hypot le lt maximum minimum mul ne"

for _name in _UNARY.split():
    same_as(getattr(aten, _name).default, getattr(prims, _name).default)
for _name in _BINARY.split():
    _packet = getattr(aten, _name)
    same_as(_packet.Tensor if "Tensor" in _packet.overloads() else _packet.default, getattr(prims, _name).default)
same_as(aten.erfinv.default, prims.erf_inv.default)
same_as(aten.pow.Tensor_Tensor, prims.pow.default)
same_as(aten.remainder.Tensor, prims.remainder.default)
same_as(aten.sub.Tensor, prims.sub.default)
same_as(aten.bitwise_left_shift.Tensor, prims.shift_left.default)
same_as(aten.bitwise_right_shift.Tensor, prims.shift_right_arithmetic.default)


# div(Tensor self, Tensor other) -> Tensor
@rule(prims.div.default)
def div(self: Tensor, other: Tensor) -> Tensor:
    """Of integers rounded towards zero."""
    from torch_max_backend.loops.rules.pointwise import div_mode

    floats = any((isinstance(x, Tensor) and x.dtype.is_floating_point) or isinstance(x, float) for x in (self, other))
    return div_mode(self, other, None if floats else "trunc")


# sum(Tensor inp, int[]? dims, *, ScalarType? output_dtype=None) -> Tensor
@rule(prims.sum.default)
def sum_(inp: Tensor, dims: Sequence[int] | None, output_dtype: torch.dtype | None = None) -> Tensor:
    return _over_none(inp, dims, output_dtype) or sum_dims(inp, dims, dtype=output_dtype or inp.dtype)


# prod(Tensor inp, int[]? dims, *, ScalarType? output_dtype=None) -> Tensor
@rule(prims.prod.default)
def prod_(inp: Tensor, dims: Sequence[int] | None, output_dtype: torch.dtype | None = None) -> Tensor:
    return _over_none(inp, dims, output_dtype) or prod(inp, dims, dtype=output_dtype or inp.dtype)


def _over_none(inp: Tensor, dims: Sequence[int] | None, dtype: torch.dtype | None) -> Tensor | None:
    """The tensor itself where no dimension is reduced: ATen takes an empty list for all of them."""
    if dims is None or len(dims) or not inp.rank:
        return None
    from torch_max_backend.loops.rules.pointwise import to_copy

    return to_copy(inp, dtype or inp.dtype)


# amax(Tensor inp, int[]? dims, *, ScalarType? output_dtype=None) -> Tensor
@rule(prims.amax.default)
def amax_(inp: Tensor, dims: Sequence[int], output_dtype: torch.dtype | None = None) -> Tensor:
    return _over_none(inp, dims, output_dtype) or amax(inp, dims)


# amin(Tensor inp, int[]? dims, *, ScalarType? output_dtype=None) -> Tensor
@rule(prims.amin.default)
def amin_(inp: Tensor, dims: Sequence[int], output_dtype: torch.dtype | None = None) -> Tensor:
    return _over_none(inp, dims, output_dtype) or amin(inp, dims)


# where(Tensor pred, Tensor a, Tensor b) -> Tensor
@rule(prims.where.default)
def where_(pred: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return where(pred, a, b)


# rev(Tensor a, int[] dims) -> Tensor
@rule(prims.rev.default)
def rev(a: Tensor, dims: Sequence[int]) -> Tensor:
    return flip(a, dims)


# transpose(Tensor(a) a, int[] permutation) -> Tensor(a)
@rule(prims.transpose.default)
def transpose(a: Tensor, permutation: Sequence[int]) -> Tensor:
    return permute(a, permutation)


# reshape(Tensor a, SymInt[] shape) -> Tensor
@rule(prims.reshape.default)
def reshape(a: Tensor, shape: Sequence[Any]) -> Tensor:
    return reshaped(a, shape)


# squeeze(Tensor(a) a, int[] dimensions) -> Tensor(a)
@rule(prims.squeeze.default)
def squeeze_(a: Tensor, dimensions: Sequence[int]) -> Tensor:
    return squeeze(a, dimensions)


# broadcast_in_dim(Tensor(a) a, SymInt[] shape, int[] broadcast_dimensions) -> Tensor(a)
@rule(prims.broadcast_in_dim.default)
def broadcast_in_dim(a: Tensor, shape: Sequence[Any], broadcast_dimensions: Sequence[int]) -> Tensor:
    one = [size == 1 for size in a.shape]
    return mapped(a, shape, lambda i: [Index.of(0) if o else i[d] for o, d in zip(one, broadcast_dimensions)])


# view_of(Tensor(a) a) -> Tensor(a)
@rule(prims.view_of.default, prims.clone.default)
def view_of(a: Tensor, memory_format: Any = None) -> Tensor:
    return clone(a)


# full(SymInt[] shape, Scalar fill_value, *, ScalarType dtype, ...) -> Tensor
@rule(prims.full.default)
def full_(shape: Sequence[Any], fill_value: Any, dtype: torch.dtype, **kwargs: Any) -> Tensor:
    return full(list(shape), fill_value, dtype)


# scalar_tensor(Scalar s, *, ScalarType? dtype=None, ...) -> Tensor
@rule(prims.scalar_tensor.default)
def scalar_tensor(s: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    return full([], s, dtype or torch.tensor(s).dtype)


# fma(Tensor a, Tensor b, Tensor c) -> Tensor
@rule("prims.fma.default")
def fma(a: Operand, b: Operand, c: Operand) -> Tensor:
    """``a * b + c``, what Dynamo makes of ``addcmul_``, ``addcdiv_`` and ``add_`` with a scale; rounded twice."""
    return pointwise(lambda x, y, z: x * y + z, a, b, c)
