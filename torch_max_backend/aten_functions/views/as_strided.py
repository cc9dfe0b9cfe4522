"""``as_strided``: reads and writes at positions given by strides, on tensors whose memory is row-major."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.index_tensors import coordinate, write_rows
from torch_max_backend.aten_functions.support.node_context import out_shape
from torch_max_backend.aten_functions.support.tensor_ops import broadcast_to, full, numel, reshape, static


def _limits(
    self: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> str | None:
    numbers = [*self.shape, *self.stride(), self.storage_offset(), *size, *stride, storage_offset or 0]
    if not all(isinstance(n, int) for n in numbers):
        return f"symbolic sizes or strides; got size {list(size)}, stride {list(stride)}"
    if not self.is_contiguous():
        return f"the strides of a tensor that is not contiguous; got {list(self.stride())}"
    if storage_offset is not None and self.storage_offset():
        return f"an offset into a tensor that does not start its storage; it starts at {self.storage_offset()}"
    reach = (storage_offset or 0) + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if math.prod(size) and reach >= self.numel():
        return f"places beyond the tensor's own; got place {reach} of {self.numel()} elements"
    return None


def _rows(
    self: TensorValue, size: Sequence[int], stride: Sequence[int], offset: int
) -> tuple[int, list[int], list[int], int]:
    """The longest contiguous tail of the view that divides every other stride.

    Gives its length, and sizes, strides and offset of the rest in units of that length.
    """
    total = static(numel(self.shape)) or 0
    for first in range(len(size)):
        width, is_run = 1, True
        for n, s in zip(reversed(size[first:]), reversed(stride[first:]), strict=True):
            is_run, width = is_run and (s == width or n == 1), width * n
        if is_run and width and not any(v % width for v in (*stride[:first], offset, total)):
            units = [s // width for s in stride[:first]]
            return width, list(size[:first]), units, offset // width
    return 1, list(size), list(stride), offset


def _positions(like: TensorValue, size: Sequence[int], stride: Sequence[int], offset: int) -> TensorValue:
    rank = len(size)
    total = reshape(coordinate(1, 0, 1, like), [1] * rank) + offset
    for axis, (n, s) in enumerate(zip(size, stride, strict=True)):
        if n != 1 and s:
            total = total + coordinate(n, axis, rank, like) * s
    return broadcast_to(total, list(size))


# as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)
@map_to(
    aten.as_strided.default,
    aten.as_strided_copy.default,
    supports=_limits,
    limits="contiguous tensors with static sizes; places within the tensor",
)
def as_strided(
    self: TensorValue, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> TensorValue:
    """A gather of rows, as long as the strides allow."""
    shape = out_shape()
    if 0 in [static(d) for d in shape]:
        return full(0, shape, self.dtype, self.device)
    width, counts, steps, first = _rows(self, size, stride, storage_offset or 0)
    table = reshape(self, [numel(self.shape) // width, width])
    if not counts:
        return reshape(table[first], shape)
    return reshape(ops.gather(table, _positions(self, counts, steps, first), 0), shape)


# as_strided_scatter(Tensor self, Tensor src, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor
@map_to(
    aten.as_strided_scatter.default,
    supports=lambda self, src, size, stride, storage_offset=None: _limits(self, size, stride, storage_offset),
    limits="as as_strided",
)
def as_strided_scatter(
    self: TensorValue, src: TensorValue, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> TensorValue:
    width, counts, steps, first = _rows(self, size, stride, storage_offset or 0)
    table = reshape(self, [numel(self.shape) // width, width])
    counts, steps = (counts, steps) if counts else ([1], [0])
    at = _positions(self, counts, steps, first)
    return reshape(write_rows(table, 1, at, reshape(src, [*counts, width]), "set"), self.shape)
