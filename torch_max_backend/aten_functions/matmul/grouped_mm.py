"""Grouped matrix products, as mixtures of experts have them: how long the groups are is known only at run time."""

from __future__ import annotations

import torch
from max.dtype import DType
from max.graph import TensorValue

from torch_max_backend.aten_functions.matmul.products import product
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.dtypes import Operand, accumulator
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.tensor_ops import (
    cast,
    full,
    permute,
    rebind,
    static,
    tensor,
    transpose_of,
)


def _multiply_rows(a: TensorValue, b: TensorValue, offs: TensorValue) -> TensorValue:
    """Rows of ``a [S, K]``, each times the matrix of its group in ``b [G, K, N]``; zeros for a row of no group."""
    rows, depth, columns = a.shape[0], a.shape[1], b.shape[2]
    if any(static(d) == 0 for d in (rows, depth, columns, b.shape[0])):
        return full(0, [rows, columns], a.dtype, a.device)
    ends = tensor(offs, DType.int64, a.device)
    (groups,) = mojo_op("tmb_group_of_rows", [ends], [(DType.int64, [rows])])
    source = transpose_of(b)
    if source is None:
        matrices = rebind(b, [ends.shape[0], depth, columns])
    else:
        matrices = rebind(source, [ends.shape[0], columns, depth])
    out = [(accumulator(a.dtype), [rows, columns])]
    (result,) = mojo_op("tmb_grouped_rows", [a, matrices, groups], out, {"transposed": source is not None})
    return cast(result, a.dtype)


def _multiply_pieces(a: TensorValue, b: TensorValue, offs: TensorValue) -> TensorValue:
    """``a [M, K] @ b [K, N]`` for every group, over its piece of the inner dimension: ``[G, M, N]``."""
    rows, depth, columns = a.shape[0], a.shape[1], b.shape[1]
    ends = tensor(offs, DType.int64, a.device)
    shape = [ends.shape[0], rows, columns]
    if any(static(d) == 0 for d in (*shape, depth)):
        return full(0, shape, a.dtype, a.device)
    values = [a, rebind(b, [depth, columns]), ends]
    (result,) = mojo_op("tmb_grouped_sums", values, [(accumulator(a.dtype), shape)])
    return cast(result, a.dtype)


def _takes_no_bias(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> str | None:
    if bias is not None:
        return "_grouped_mm takes no bias, got one"
    return None if out_dtype in (None, self.dtype) else f"_grouped_mm gives {self.dtype}, got {out_dtype}"


# _grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor
@map_to(aten._grouped_mm.default, supports=_takes_no_bias, limits="no bias; GPU: without tensor cores")
def _grouped_mm(
    self: TensorValue,
    mat2: TensorValue,
    offs: TensorValue | None = None,
    bias: TensorValue | None = None,
    out_dtype: Operand | torch.dtype | None = None,
) -> TensorValue:
    """Groups of rows, of columns or of the inner dimension, where an operand is a matrix; else a batched product."""
    if offs is None:
        return product(self, mat2)
    if self.rank == mat2.rank:
        return _multiply_pieces(self, mat2, offs)
    if self.rank == 2:
        return _multiply_rows(self, mat2, offs)
    # Groups of columns are groups of rows of the transposed product.
    return permute(_multiply_rows(permute(mat2, [1, 0]), permute(self, [0, 2, 1]), offs), [1, 0])


# transformers::grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor
@map_to("transformers.grouped_mm_fallback.default", limits="GPU: without tensor cores")
def grouped_mm_fallback(input: TensorValue, weight: TensorValue, offs: TensorValue) -> TensorValue:
    return _multiply_rows(input, weight, offs)


# transformers::grouped_mm_fallback_backward(Tensor input, Tensor weight, Tensor offs, Tensor grad_output)
#   -> (Tensor, Tensor)
@map_to("transformers.grouped_mm_fallback_backward.default", limits="GPU: without tensor cores")
def grouped_mm_fallback_backward(
    input: TensorValue, weight: TensorValue, offs: TensorValue, grad_output: TensorValue
) -> tuple[TensorValue, TensorValue]:
    return (
        _multiply_rows(grad_output, permute(weight, [0, 2, 1]), offs),
        _multiply_pieces(permute(input, [1, 0]), grad_output, offs),
    )
