"""Embedding lookups and their gradients."""

from __future__ import annotations

from dataclasses import dataclass

from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.reduce.reductions import norm_axes
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.dtypes import accumulator
from torch_max_backend.aten_functions.support.index_checks import IN_SELF, always
from torch_max_backend.aten_functions.support.index_tensors import readable, take_rows, write_rows
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import out_shape
from torch_max_backend.aten_functions.support.tensor_ops import (
    broadcast_to,
    cast,
    constant,
    full,
    numel,
    reshape,
    static,
    tensor,
)
from torch_max_backend.aten_functions.support.value_facts import Unfinished, mark_unfinished, unfinished_of

_OF_ROWS = "select(): index {index} out of range for a tensor of {size} rows at dimension 0"


# embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False)
#     -> Tensor
@map_to(aten.embedding.default, out_of_range=always(IN_SELF))
def embedding(
    weight: TensorValue,
    indices: TensorValue,
    padding_idx: int | Dim = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> TensorValue:
    """The options concern the gradient. An index out of range fails the run on the CPU and is reported on a GPU."""
    if any(static(d) == 0 for d in out_shape()):
        return full(0, out_shape(), weight.dtype, weight.device)
    return take_rows(weight, readable(indices, weight.shape[0], wraps=False), 0)


# embedding_renorm(Tensor self, Tensor indices, float max_norm, float norm_type) -> Tensor
@map_to(aten.embedding_renorm.default, out_of_range=always(_OF_ROWS))
def embedding_renorm(self: TensorValue, indices: TensorValue, max_norm: float, norm_type: float) -> TensorValue:
    """Rows that are looked up and longer than ``max_norm`` are scaled to it. Torch computes the factor in float64."""
    if any(static(d) == 0 for d in [*self.shape, *indices.shape]):
        return self
    count = numel(indices.shape)
    at = readable(reshape(indices, [count]), self.shape[0], wraps=False)
    rows = take_rows(self, at, 0)
    wide = cast(rows, accumulator(rows.dtype))
    norm = cast(cast(norm_axes(wide, norm_type, [1]), rows.dtype), DType.float64)
    limit, little = (constant(v, DType.float64, self.device) for v in (max_norm, 1e-7))
    scaled = cast(wide * cast(limit / (norm + little), wide.dtype), rows.dtype)
    long = broadcast_to(ops.greater(norm, limit), rows.shape)
    return write_rows(self, 1, at, ops.where(long, scaled, rows), "set")


# embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx,
#     bool scale_grad_by_freq) -> Tensor
@map_to(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    grad_output: TensorValue,
    indices: TensorValue,
    num_weights: int | Dim,
    padding_idx: int | Dim,
    scale_grad_by_freq: bool,
) -> TensorValue:
    """Rows of the gradient are added up by index.

    The lookup has raised for indices out of range already, or reported them: here they are clamped, at no cost.
    """
    shape, dtype, device = out_shape(), grad_output.dtype, grad_output.device
    if any(static(d) == 0 for d in indices.shape):
        return full(0, shape, dtype, device)
    count = numel(indices.shape)
    last = tensor(Dim(num_weights) - 1, DType.int64, device)
    at = ops.max(ops.min(reshape(cast(indices, DType.int64), [count]), last), 0)
    wide = accumulator(dtype)
    grad = cast(reshape(grad_output, [count, shape[1]]), wide)
    if scale_grad_by_freq:
        ones = full(1, [count], wide, device)
        uses = write_rows(full(0, [shape[0]], wide, device), 1, at, ones, "sum")
        grad = ops.div(grad, reshape(take_rows(uses, at, 0), [count, 1]))
    if not (isinstance(padding_idx, int) and padding_idx < 0):
        is_padding = ops.equal(at, tensor(padding_idx, DType.int64, device))
        zeros = broadcast_to(constant(0, wide, device), grad.shape)
        grad = ops.where(broadcast_to(reshape(is_padding, [count, 1]), grad.shape), zeros, grad)
    if device.is_gpu():
        return cast(write_rows(full(0, shape, wide, device), 1, at, grad, "sum"), dtype)
    (total,) = mojo_op("tmb_row_gradients", [grad, at], [(wide, shape)])
    result = cast(total, dtype)
    mark_unfinished(result, AddedRows(grad, at) if dtype == wide else None)
    return result


@dataclass(frozen=True)
class AddedRows(Unfinished):
    """The gradient of an embedding: ``updates`` added up by the rows ``at``. A product may add them to its own."""

    updates: TensorValue
    at: TensorValue

    def added_to(self, x: TensorValue) -> TensorValue | None:
        """``x`` and the gradient, where one kernel computes both, as with a table that is also the last layer's."""
        product = unfinished_of(x)
        return None if product is None else product.plus_rows(self.updates, self.at)
