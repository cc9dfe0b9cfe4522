"""Reductions of consecutive pieces of an axis, and hashes."""

from __future__ import annotations

from collections.abc import Sequence

from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.reduce.reductions import at_least_1d
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import out_shape
from torch_max_backend.aten_functions.support.sliding_windows import cut_axis
from torch_max_backend.aten_functions.support.tensor_ops import (
    axes_of,
    axis_of,
    cast,
    constant,
    full,
    numel,
    permute,
    reshape,
    static,
)
from torch_max_backend.base.errors import Unsupported


# segment_reduce(Tensor data, str reduce, *, Tensor? lengths=None, Tensor? indices=None, Tensor? offsets=None,
#     int axis=0, bool unsafe=False, Scalar? initial=None) -> Tensor
@map_to(aten.segment_reduce.default, limits="lengths and offsets are not checked")
def segment_reduce(
    data: TensorValue,
    reduce: str,
    lengths: TensorValue | None = None,
    indices: TensorValue | None = None,
    offsets: TensorValue | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> TensorValue:
    """Pieces of ``axis``, given by lengths or by places of their ends. What lies outside of the axis is left out."""
    shape = out_shape()
    if any(static(d) == 0 for d in shape):
        return full(0, shape, data.dtype, data.device)
    at = axis_of(axis, data.rank)
    outer, inner = numel(data.shape[:at]), numel(data.shape[at + 1 :])
    ends = _ends(lengths, offsets, outer)
    rows = reshape(data, [outer, data.shape[at], inner])
    first = constant(0 if initial is None else initial, data.dtype, data.device)
    values = [rows, *ends, reshape(first, [1])]
    out = [outer, ends[0].shape[1], inner]
    parameters = {"reduce": reduce, "has_initial": initial is not None}
    (result,) = mojo_op("tmb_segment_reduce", values, [(data.dtype, out)], parameters)
    return reshape(result, shape)


# _segment_reduce_backward(Tensor grad, Tensor output, Tensor data, str reduce, *, Tensor? lengths=None,
#     Tensor? offsets=None, int axis=0, Scalar? initial=None) -> Tensor
@map_to(aten._segment_reduce_backward.default, limits="lengths and offsets are not checked")
def _segment_reduce_backward(
    grad: TensorValue,
    output: TensorValue,
    data: TensorValue,
    reduce: str,
    lengths: TensorValue | None = None,
    offsets: TensorValue | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> TensorValue:
    """Every element's share of its piece's gradient."""
    if any(static(d) == 0 for d in [*data.shape, *output.shape]):
        return full(0, data.shape, grad.dtype, grad.device)
    at = axis_of(axis, data.rank)
    outer, inner = numel(data.shape[:at]), numel(data.shape[at + 1 :])
    ends = _ends(lengths, offsets, outer)
    pieces = [outer, ends[0].shape[1], inner]
    rows = reshape(data, [outer, data.shape[at], inner])
    first = constant(1 if initial is None else initial, data.dtype, data.device)
    values = [reshape(grad, pieces), reshape(output, pieces), rows, *ends, reshape(first, [1])]
    (result,) = mojo_op("tmb_segment_gradient", values, [(grad.dtype, rows.shape)], {"reduce": reduce})
    return reshape(result, data.shape)


def _ends(lengths: TensorValue | None, offsets: TensorValue | None, outer: Dim) -> list[TensorValue]:
    """Where pieces start and stop, as ``[outer, pieces]``."""
    if offsets is not None:
        rows = reshape(cast(offsets, DType.int64), [outer, offsets.shape[-1]])
        pieces = offsets.shape[-1] - 1
        return [cut_axis(rows, 1, i, pieces) for i in range(2)]
    if lengths is None:
        raise Unsupported("segment_reduce takes lengths or offsets, got neither")
    rows = reshape(cast(lengths, DType.int64), [outer, lengths.shape[-1]])
    stops = ops.cumsum(rows, 1)
    return [ops.sub(stops, rows), stops]


def _known_mode(*args: object, mode: int = 0, **options: object) -> str | None:
    return None if mode == 0 else f"hash_tensor takes the mode 0, got {mode}"


# hash_tensor(Tensor self, int[1] dim=[], *, bool keepdim=False, int mode=0) -> Tensor
def hash_tensor(self: TensorValue, dim: Sequence[int] = (), keepdim: bool = False, mode: int = 0) -> TensorValue:
    """The exclusive or of all elements' bits, as numbers of 64 bits."""
    shape = out_shape()
    if any(static(d) == 0 for d in [*shape, *self.shape]):
        return full(0, shape, DType.uint64, self.device)
    x = at_least_1d(cast(self, DType.uint8) if self.dtype == DType.bool else self)
    axes = axes_of(dim, x.rank)
    kept = [i for i in range(x.rank) if i not in axes]
    moved = permute(x, [*kept, *axes])
    sizes = [numel(x.shape[i] for i in group) for group in (kept, axes)]
    (result,) = mojo_op("tmb_xor", [reshape(moved, [*sizes, 1])], [(DType.uint64, [sizes[0], 1])])
    return reshape(result, shape)


if hasattr(aten, "hash_tensor"):
    map_to(aten.hash_tensor.default, supports=_known_mode)(hash_tensor)
