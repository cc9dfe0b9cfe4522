"""Reads at computed indices: index, gather, take, embedding, and what counts boundaries."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_max_backend.base.errors import Unsupported
from torch_max_backend.loops.expr import Scalar, as_index, cast, constant, op, select
from torch_max_backend.loops.index import Index, product
from torch_max_backend.loops.rules.registry import LeftToLibrary, aten, rule
from torch_max_backend.loops.rules.views import reshaped
from torch_max_backend.loops.tensor import (
    Shape,
    Tensor,
    broadcast_at,
    broadcast_shapes,
    checked_index,
    define,
    spelled,
)

IN_SELF = "index out of range in self"
OUT_OF_BOUNDS = "index {{index}} is out of bounds for dimension {dim} with size {size}"
IN_ELEMENTS = "out of range: tried to access index {{index}} on a tensor of {size} elements."


def out_of_bounds(x: Tensor, dim: int) -> str:
    """What most ops say of an index along a dimension."""
    return OUT_OF_BOUNDS.format(dim=dim, size=spelled(x.shape[dim] if x.rank else 1))


def at_least_1d(x: Tensor) -> Tensor:
    """A number as a tensor of one element."""
    return x if x.rank else reshaped(x, [1])


def is_empty(x: Tensor) -> bool:
    """Whether a tensor has no element."""
    return any(s == 0 for s in x.shape)


def filled(shape: Shape, dtype: torch.dtype, value: float = 0) -> Tensor:
    """A tensor of one number."""
    return Tensor(shape, dtype, lambda index: constant(value, dtype))


# -- index: several index tensors --------------------------------------------------------------------------------------
class Places:
    """The elements of ``self`` that index tensors name, in the shape that torch gives them.

    Index tensors are broadcast to one shape. It stands where they stand, if they are side by side, else in front. In
    torch's words for an index out of range, "dimension" is the number of its tensor.
    """

    def __init__(self, self_: Tensor, indices: Sequence[Tensor | None]) -> None:
        self.at = [d for d, x in enumerate(indices) if x is not None]
        self.tensors = [x for x in indices if x is not None]
        if any(x.dtype in (torch.bool, torch.uint8) for x in self.tensors):
            raise Unsupported("integer index tensors: a mask gives a size that depends on data")
        self.source = self_
        self.common = broadcast_shapes(*(x.shape for x in self.tensors))
        side_by_side = self.at == list(range(self.at[0], self.at[-1] + 1))
        self.first = self.at[0] if side_by_side else 0
        self.free = [d for d in range(self_.rank) if d not in self.at]
        rest = tuple(self_.shape[d] for d in self.free)
        self.shape = (*rest[: self.first], *self.common, *rest[self.first :])

    def index(self, place: Shape) -> Shape:
        """The index in ``self`` of a place in the result."""
        end = self.first + len(self.common)
        common, rest = place[self.first : end], (*place[: self.first], *place[end:])
        result = [Index.of(0)] * self.source.rank
        for d, i in zip(self.free, rest, strict=True):
            result[d] = i
        for k, (d, x) in enumerate(zip(self.at, self.tensors, strict=True)):
            value, size = broadcast_at(x, self.common)(common), self.source.shape[d]
            result[d] = checked_index(value, size, OUT_OF_BOUNDS.format(dim=k, size=spelled(size)), wraps=True)
        return tuple(result)


# index.Tensor(Tensor self, Tensor?[] indices) -> Tensor
@rule(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    if all(x is None for x in indices):
        return self
    places = Places(self, indices)
    if any(s == 0 for s in places.shape):
        return filled(places.shape, self.dtype)
    return define(places.shape, self.dtype, lambda i: self.at(places.index(i)))


# -- one index tensor --------------------------------------------------------------------------------------------------
# index_select(Tensor self, int dim, Tensor index) -> Tensor
@rule(aten.index_select.default)
def index_select(self: Tensor, dim: int, index: Tensor) -> Tensor:
    if self.rank == 0:
        return reshaped(index_select(at_least_1d(self), 0, index), [])
    d, rows = self.dim(dim), at_least_1d(index)
    shape = (*self.shape[:d], rows.shape[0], *self.shape[d + 1 :])
    if any(s == 0 for s in shape):
        return filled(shape, self.dtype)
    in_data = f"INDICES element is out of DATA bounds, id={{index}} axis_dim={spelled(self.shape[d])}"
    message = in_data if d == 1 else IN_SELF
    return define(
        shape,
        self.dtype,
        lambda i: self.at((*i[:d], checked_index(rows.at((i[d],)), self.shape[d], message), *i[d + 1 :])),
    )


# gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor
@rule(aten.gather.default)
def gather(self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if is_empty(index):
        return filled(index.shape, self.dtype)
    if index.rank == 0 or self.rank == 0:
        return reshaped(gather(at_least_1d(self), 0, at_least_1d(index)), index.shape)
    d = self.dim(dim)
    message = out_of_bounds(self, d)
    return define(
        index.shape,
        self.dtype,
        lambda i: self.at((*i[:d], checked_index(index.at(i), self.shape[d], message), *i[d + 1 :])),
    )


# take(Tensor self, Tensor index) -> Tensor
@rule(aten.take.default)
def take(self: Tensor, index: Tensor) -> Tensor:
    if is_empty(index):
        return filled(index.shape, self.dtype)
    flat, count = reshaped(self, [-1]), product(self.shape)
    message = IN_ELEMENTS.format(size=spelled(count))
    return define(index.shape, self.dtype, lambda i: flat.at((checked_index(index.at(i), count, message, wraps=True),)))


# embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False)
#   -> Tensor
@rule(aten.embedding.default)
def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    shape = (*indices.shape, weight.shape[1])
    if any(s == 0 for s in shape):
        return filled(shape, weight.dtype)

    def at(i: Shape) -> Scalar:
        return weight.at((checked_index(indices.at(i[:-1]), weight.shape[0], IN_SELF), i[-1]))

    return define(shape, weight.dtype, at)


# -- boundaries --------------------------------------------------------------------------------------------------------
# searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool right=False, str? side=None,
#   Tensor? sorter=None) -> Tensor
@rule(aten.searchsorted.Tensor)
def searchsorted(
    sorted_sequence: Tensor,
    self: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    count = sorted_sequence.shape[-1]
    if sorter is not None or not count.is_constant:
        raise LeftToLibrary
    after = right or side == "right"
    common = torch.promote_types(sorted_sequence.dtype, self.dtype)
    ahead = sorted_sequence.rank - 1
    whole = torch.int32 if count.constant < 1 << 31 else torch.int64
    half = constant(1, whole)

    def at(i: Shape) -> Scalar:
        value = cast(self.at(i), common)
        first: Scalar = constant(0, whole)
        end: Scalar = constant(count.constant, whole)
        for _ in range(count.constant.bit_length()):
            middle = first + op("shift_right", end - first, half)
            place = op("minimum", middle, constant(count.constant - 1, whole))
            boundary = cast(sorted_sequence.at((*i[:ahead], as_index(place, 0, count.constant - 1))), common)
            below = ~(boundary > value if after else boundary >= value)  # all are below a NaN
            first, end = (
                select(below & (first < end), middle + half, first),
                select(below, end, middle),
            )
        return cast(first, dtype)

    dtype = torch.int32 if out_int32 else torch.int64
    return define(self.shape, dtype, at)


# bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor
@rule(aten.bucketize.Tensor)
def bucketize(self: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)
