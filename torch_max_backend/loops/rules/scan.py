"""Scans along one dimension: cumulative sums, products, extrema and log-sum-exps."""

from __future__ import annotations

import torch

from torch_max_backend.loops.expr import Scalar, cast, constant
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.program import Scan
from torch_max_backend.loops.rules.pointwise import to_copy
from torch_max_backend.loops.rules.registry import aten, rule
from torch_max_backend.loops.tensor import Tensor, builder, computed_in, define


def _scan(combiner: str, x: Tensor, dim: int, compute: torch.dtype, dtype: torch.dtype) -> Tensor:
    """Prefixes of ``x`` in ``compute``, each rounded to ``dtype``."""
    b = builder()
    variables = tuple(b.variable("i", size) for size in x.shape)
    body = cast(x.at(tuple(map(Index.of, variables))), compute)
    return b.add(dtype, variables, body, Scan(combiner, variables[x.dim(dim)]))


def _is_one(x: Tensor, dim: int) -> bool:
    return x.rank == 0 or x.shape[x.dim(dim)] == 1


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What torch adds up in on a CPU: float64 for float32."""
    return torch.float64 if dtype is torch.float32 else computed_in(dtype)


def _cumulated(combiner: str, x: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
    result = dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)
    x = x if x.dtype is result else to_copy(x, result)
    if _is_one(x, dim) or result is torch.bool:
        return x if result is not torch.bool else _of_truths(combiner, x, dim)
    return _scan(combiner, x, dim, _wide(result), result)


def _of_truths(combiner: str, x: Tensor, dim: int) -> Tensor:
    if _is_one(x, dim):
        return x
    found = _scan("maximum" if combiner == "sum" else "minimum", x, dim, torch.uint8, torch.uint8)
    return to_copy(found, torch.bool)


# cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor
@rule(aten.cumsum.default)
def cumsum(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return _cumulated("sum", self, dim, dtype)


# cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor
@rule(aten.cumprod.default)
def cumprod(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return _cumulated("product", self, dim, dtype)


# logcumsumexp(Tensor self, int dim) -> Tensor
@rule(aten.logcumsumexp.default)
def logcumsumexp(self: Tensor, dim: int) -> Tensor:
    return self if _is_one(self, dim) else _scan("log_sum_exp", self, dim, _wide(self.dtype), self.dtype)


def _extremes(combiner: str, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    if _is_one(x, dim):
        return x, define(x.shape, torch.int64, _zero)
    compute = torch.uint8 if x.dtype is torch.bool else computed_in(x.dtype)
    values = _scan({"argmax": "maximum", "argmin": "minimum"}[combiner], x, dim, compute, x.dtype)
    return values, _scan(combiner, x, dim, compute, torch.int64)


def _zero(index: tuple[Index, ...]) -> Scalar:
    return constant(0, torch.int64)


# cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)
@rule(aten.cummax.default)
def cummax(self: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _extremes("argmax", self, dim)


# cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)
@rule(aten.cummin.default)
def cummin(self: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _extremes("argmin", self, dim)
