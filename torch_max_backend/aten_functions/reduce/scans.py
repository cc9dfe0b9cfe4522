"""Scans along one axis."""

from __future__ import annotations

import torch
from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.reduce.reductions import at_least_1d
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.dtypes import accumulator
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import out_dtype, out_shape
from torch_max_backend.aten_functions.support.tensor_ops import axis_of, cast, numel, reshape


# cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor
@map_to(aten.cumsum.default)
def cumsum(self: TensorValue, dim: int, dtype: torch.dtype | None = None) -> TensorValue:
    x = at_least_1d(cast(self, accumulator(out_dtype())))
    return reshape(cast(ops.cumsum(x, axis_of(dim, x.rank)), out_dtype()), out_shape())


def _lines(x: TensorValue, dim: int) -> tuple[TensorValue, list[Dim]]:
    """``x`` as ``[outer, n, inner]``, scanned along the middle, and the shape ``[outer, inner]`` of its lines."""
    x = at_least_1d(x)
    axis = axis_of(dim, x.rank)
    outer, inner = numel(x.shape[:axis]), numel(x.shape[axis + 1 :])
    return reshape(x, [outer, x.shape[axis], inner]), [outer, inner]


def _scan(x: TensorValue, dim: int, operation: str) -> TensorValue:
    x, lines = _lines(x, dim)
    outputs = [(x.dtype, x.shape), (DType.uint8, lines)]
    values, _ = mojo_op("tmb_scan", [x], outputs, {"operation": operation})
    return reshape(values, out_shape())


# cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor
@map_to(aten.cumprod.default)
def cumprod(self: TensorValue, dim: int, dtype: torch.dtype | None = None) -> TensorValue:
    return _scan(cast(self, out_dtype()), dim, "prod")


# logcumsumexp(Tensor self, int dim) -> Tensor
@map_to(aten.logcumsumexp.default)
def logcumsumexp(self: TensorValue, dim: int) -> TensorValue:
    return _scan(cast(self, out_dtype()), dim, "logsumexp")


def _scan_extreme(x: TensorValue, dim: int, largest: bool) -> tuple[TensorValue, TensorValue]:
    wide = cast(x, DType.uint8) if x.dtype == DType.bool else x
    wide, lines = _lines(wide, dim)
    outputs = [(wide.dtype, wide.shape), (DType.int64, wide.shape), (DType.uint8, lines)]
    values, indices, _ = mojo_op("tmb_scan_extreme", [wide], outputs, {"largest": largest})
    return reshape(cast(values, x.dtype), out_shape()), reshape(indices, out_shape(1))


# cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)
@map_to(aten.cummax.default)
def cummax(self: TensorValue, dim: int) -> tuple[TensorValue, TensorValue]:
    return _scan_extreme(self, dim, True)


# cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)
@map_to(aten.cummin.default)
def cummin(self: TensorValue, dim: int) -> tuple[TensorValue, TensorValue]:
    return _scan_extreme(self, dim, False)
