"""Writes at computed indices: scatter, index_put, index_add and their kin, and the gradients of embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_max_backend.base.errors import Unsupported
from torch_max_backend.loops.expr import Scalar, cast, compare_index, constant, guarded, op, select
from torch_max_backend.loops.index import Index, product
from torch_max_backend.loops.program import Scatter
from torch_max_backend.loops.rules.indexing import (
    IN_ELEMENTS,
    IN_SELF,
    Places,
    at_least_1d,
    filled,
    is_empty,
    out_of_bounds,
)
from torch_max_backend.loops.rules.registry import aten, rule
from torch_max_backend.loops.rules.views import Size, from_front, reshaped, slice_bounds
from torch_max_backend.loops.tensor import (
    Shape,
    Tensor,
    broadcast_at,
    builder,
    checked_index,
    computed_in,
    converted,
    define,
    expanded,
    spelled,
)

Values = Tensor | bool | int | float
COMBINERS = {
    "sum": "sum",
    "add": "sum",
    "mean": "sum",
    "prod": "product",
    "multiply": "product",
    "amax": "maximum",
    "amin": "minimum",
}
"""By torch's names for them."""


def scattered(
    self: Tensor,
    combiner: str,
    over: Shape,
    target: Callable[[Shape], Shape],
    source: Callable[[Shape], Scalar],
) -> Tensor:
    """``self``, and for every index in ``over``, in order, ``source`` of it combined into the element at ``target``.

    What adds or multiplies floats of 16 bits does so in float32, and rounds once.
    """
    wide = computed_in(self.dtype) if combiner in ("sum", "product") else self.dtype
    if wide is not self.dtype:
        return converted(scattered(_cast_to(self, wide), combiner, over, target, source), self.dtype)
    b = builder()
    own = tuple(b.variable("i", size) for size in self.shape)
    variables = tuple(b.variable("s", size) for size in over)
    place = tuple(map(Index.of, variables))
    how = Scatter(combiner, variables, target(place), cast(source(place), self.dtype))
    return b.add(self.dtype, own, self.at(tuple(map(Index.of, own))), how)


def _cast_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    return Tensor(x.shape, dtype, lambda index: cast(x.at(index), dtype))


def _values_at(values: Values, shape: Shape, dtype: torch.dtype) -> Callable[[Shape], Scalar]:
    if isinstance(values, Tensor):
        return broadcast_at(values, shape)
    return lambda index: constant(values, dtype)


# -- scatter: an index for every element -------------------------------------------------------------------------------
def _scatter(self: Tensor, dim: int, index: Tensor, values: Values, combiner: str) -> Tensor:
    if is_empty(index):
        return self
    if self.rank == 0 or index.rank == 0:
        flat = at_least_1d(values) if isinstance(values, Tensor) else values
        return reshaped(_scatter(at_least_1d(self), 0, at_least_1d(index), flat, combiner), self.shape)
    d = self.dim(dim)
    message = out_of_bounds(self, d)

    def target(i: Shape) -> Shape:
        return (*i[:d], checked_index(index.at(i), self.shape[d], message), *i[d + 1 :])

    source = values.at if isinstance(values, Tensor) else _values_at(values, index.shape, self.dtype)
    return scattered(self, combiner, index.shape, target, source)


# scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor
@rule(aten.scatter.src, aten.scatter.value)
def scatter(self: Tensor, dim: int, index: Tensor, src: Values) -> Tensor:
    return _scatter(self, dim, index, src, "set")


# scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor
@rule(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_with(self: Tensor, dim: int, index: Tensor, src: Values, *, reduce: str) -> Tensor:
    return _scatter(self, dim, index, src, COMBINERS[reduce])


# scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor
@rule(aten.scatter_add.default)
def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter(self, dim, index, src, "sum")


# scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True) -> Tensor
@rule(aten.scatter_reduce.two)
def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    def write(x: Tensor, values: Values, combiner: str) -> Tensor:
        return _scatter(x, dim, index, values, combiner)

    return _reduced(self, src, reduce, include_self, write)


def _reduced(
    self: Tensor,
    src: Tensor,
    reduce: str,
    include_self: bool,
    write: Callable[[Tensor, Values, str], Tensor],
) -> Tensor:
    """A scatter with one of torch's combiners; a mean is a sum, divided by how many there are."""
    start = self if include_self else write(self, _identity(reduce, self.dtype), "set")
    total = write(start, src, COMBINERS[reduce])
    if reduce != "mean":
        return total
    counting = self.dtype if not self.dtype.is_floating_point else torch.float32
    count = write(filled(self.shape, counting, int(include_self)), 1, "sum")

    def at(i: Shape) -> Scalar:
        n = op("maximum", count.at(i), constant(1, counting))
        if self.dtype.is_floating_point:
            wide = computed_in(self.dtype)
            return cast(total.at(i), wide) / cast(n, wide)
        return op("floor_div", total.at(i), n)

    return define(self.shape, self.dtype, at)


def _identity(reduce: str, dtype: torch.dtype) -> bool | int | float:
    if reduce in ("sum", "mean", "prod"):
        return int(reduce == "prod")
    if dtype is torch.bool:
        return reduce == "amin"
    if dtype.is_floating_point:
        return float("-inf") if reduce == "amax" else float("inf")
    return torch.iinfo(dtype).min if reduce == "amax" else torch.iinfo(dtype).max


# -- index tensors along one dimension ---------------------------------------------------------------------------------
def _along(
    self: Tensor, dim: int, index: Tensor, values: Values, combiner: str, message: str = "", wraps: bool = False
) -> Tensor:
    if is_empty(index) or is_empty(self):
        return self
    if self.rank == 0:
        flat = at_least_1d(values) if isinstance(values, Tensor) else values
        return reshaped(_along(at_least_1d(self), 0, index, flat, combiner, message, wraps), [])
    d, rows = self.dim(dim), at_least_1d(index)
    words = message or out_of_bounds(self, d)
    over = (*self.shape[:d], rows.shape[0], *self.shape[d + 1 :])

    def target(i: Shape) -> Shape:
        return (*i[:d], checked_index(rows.at((i[d],)), self.shape[d], words, wraps), *i[d + 1 :])

    return scattered(self, combiner, over, target, _values_at(values, over, self.dtype))


# index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor
@rule(aten.index_add.default)
def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    if source.rank != self.rank:
        raise Unsupported(f"a source of as many dimensions as self, not {source.rank} for {self.rank}")
    values = source if alpha == 1 else Tensor(source.shape, source.dtype, lambda i: _times(source.at(i), alpha))
    return _along(self, dim, index, values, "sum", IN_SELF if self.rank <= 1 else "")


def _times(x: Scalar, factor: Any) -> Scalar:
    if x.dtype is torch.bool:
        return x & constant(factor, torch.bool)
    if x.dtype in (torch.float16, torch.bfloat16):
        return cast(cast(x, torch.float32) * cast(constant(factor, x.dtype), torch.float32), x.dtype)
    return x * factor


# index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor
@rule(aten.index_copy.default)
def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    message = "index_copy_(): " + out_of_bounds(self, self.dim(dim) if self.rank else 0)
    return _along(self, dim, index, at_least_1d(source) if self.rank else source, "set", message)


# index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor
@rule(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(self: Tensor, dim: int, index: Tensor, value: Values) -> Tensor:
    return _along(self, dim, index, value, "set", wraps=True)


# index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool include_self=True) -> Tensor
@rule(aten.index_reduce.default)
def index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    if source.rank != self.rank:
        raise Unsupported(f"a source of as many dimensions as self, not {source.rank} for {self.rank}")

    def write(x: Tensor, values: Values, combiner: str) -> Tensor:
        return _along(x, dim, index, values, combiner, IN_SELF)

    return _reduced(self, source, reduce, include_self, write)


# -- several index tensors ---------------------------------------------------------------------------------------------
# index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor
@rule(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    used = [x for x in indices if x is not None]
    if len(used) == 1 and used[0].dtype is torch.bool:
        return _put_masked(self, [x is not None for x in indices].index(True), used[0], values, accumulate)
    if not used:
        raise Unsupported("at least one index tensor")
    places = Places(self, indices)
    if any(s == 0 for s in places.shape):
        return self
    return scattered(
        self, "sum" if accumulate else "set", places.shape, places.index, broadcast_at(values, places.shape)
    )


def _put_masked(self: Tensor, first: int, mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    """One value for all places of a mask, or one for each index behind it."""
    after = self.rank - first - mask.rank
    if values.rank > after and values.shape[-1 - after] != 1:
        raise Unsupported(f"one value for all places of a mask, not {values.shape[-1 - after]}")
    shape = (*self.shape[:first], Index.of(1), *self.shape[first + mask.rank :])
    value = broadcast_at(values, shape)

    def at(i: Shape) -> Scalar:
        new, old = cast(value((*i[:first], Index.of(0), *i[first + mask.rank :])), self.dtype), self.at(i)
        if accumulate:
            wide = computed_in(self.dtype)
            total = old | new if self.dtype is torch.bool else cast(old, wide) + cast(new, wide)
            new = cast(total, self.dtype)
        return select(mask.at(i[first : first + mask.rank]), new, old)

    return define(self.shape, self.dtype, at)


# put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor
@rule(aten.put.default)
def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    if is_empty(index):
        return self
    flat, count = reshaped(self, [-1]), product(self.shape)
    places, values = reshaped(index, [-1]), reshaped(source, [-1])
    message = IN_ELEMENTS.format(size=spelled(count))
    result = scattered(
        flat,
        "sum" if accumulate else "set",
        places.shape,
        lambda i: (checked_index(places.at(i), count, message, wraps=True),),
        values.at,
    )
    return reshaped(result, self.shape)


# -- views that are written to -----------------------------------------------------------------------------------------
# slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor
@rule(aten.slice_scatter.default)
def slice_scatter(
    self: Tensor, src: Tensor, dim: int = 0, start: Size | None = None, end: Size | None = None, step: Size = 1
) -> Tensor:
    d = self.dim(dim)
    low, high = slice_bounds(self.shape[d], start, end)
    if not isinstance(step, int):
        raise Unsupported(f"a step of slice_scatter that is known, not {step}")
    values = expanded(src, (*self.shape[:d], (high - low + (step - 1)) // step, *self.shape[d + 1 :]))

    def at(i: Shape) -> Scalar:
        place = i[d] - low
        inside = cast(values.at((*i[:d], place // step, *i[d + 1 :])), self.dtype)
        if step != 1:
            inside = guarded(compare_index("eq", place % step, Index.of(0)), inside, self.at(i))
        inside = guarded(compare_index("lt", i[d], high), inside, self.at(i))
        return guarded(compare_index("ge", i[d], low), inside, self.at(i))

    return define(self.shape, self.dtype, at)


# select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor
@rule(aten.select_scatter.default)
def select_scatter(self: Tensor, src: Tensor, dim: int, index: Size) -> Tensor:
    d, place = self.dim(dim), Index.of(index)
    row = from_front(place, self.shape[d])
    values = expanded(src, (*self.shape[:d], *self.shape[d + 1 :]))

    def at(i: Shape) -> Scalar:
        new = cast(values.at((*i[:d], *i[d + 1 :])), self.dtype)
        return guarded(compare_index("eq", i[d], row), new, self.at(i))

    return define(self.shape, self.dtype, at)


# diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor
@rule(aten.diagonal_scatter.default)
def diagonal_scatter(self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = self.dim(dim1), self.dim(dim2)
    rest = [d for d in range(self.rank) if d not in (a, b)]

    def at(i: Shape) -> Scalar:
        place = i[a] if offset >= 0 else i[b]
        new = cast(src.at((*(i[d] for d in rest), place)), self.dtype)
        return guarded(compare_index("eq", i[b], i[a] + offset), new, self.at(i))

    return self if is_empty(src) else define(self.shape, self.dtype, at)


# -- gradients ---------------------------------------------------------------------------------------------------------
# slice_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt start, SymInt end, SymInt step) -> Tensor
@rule(aten.slice_backward.default)
def slice_backward(
    grad_output: Tensor, input_sizes: Sequence[Size], dim: int, start: Size, end: Size, step: Size
) -> Tensor:
    return slice_scatter(_zeros(input_sizes, grad_output), grad_output, dim, start, end, step)


# select_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt index) -> Tensor
@rule(aten.select_backward.default)
def select_backward(grad_output: Tensor, input_sizes: Sequence[Size], dim: int, index: Size) -> Tensor:
    return select_scatter(_zeros(input_sizes, grad_output), grad_output, dim, index)


def _zeros(sizes: Sequence[Size], like: Tensor) -> Tensor:
    return filled(tuple(map(Index.of, sizes)), like.dtype)


# embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx,
#   bool scale_grad_by_freq) -> Tensor
@rule(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    grad_output: Tensor, indices: Tensor, num_weights: Size, padding_idx: Size, scale_grad_by_freq: bool
) -> Tensor:
    rows, width = Index.of(num_weights), grad_output.shape[-1]
    dtype = grad_output.dtype
    zeros = filled((rows, width), dtype)
    if is_empty(grad_output) or is_empty(zeros):
        return define(zeros.shape, dtype, zeros.at)
    flat, gradients = reshaped(indices, [-1]), reshaped(grad_output, [-1, width])

    def row(i: Shape) -> Index:
        return checked_index(flat.at(i[:1]), rows, IN_SELF)

    counts = None
    if scale_grad_by_freq:
        nothing = filled((rows,), torch.float32)
        counts = scattered(nothing, "sum", flat.shape, lambda i: (row(i),), lambda i: constant(1, torch.float32))

    def source(i: Shape) -> Scalar:
        gradient = gradients.at(i)
        if counts is not None:
            gradient = cast(cast(gradient, torch.float32) / counts.at((row(i),)), dtype)
        number = cast(flat.at(i[:1]), torch.int64)
        padding = number.equals(constant(Index.of(padding_idx).constant, torch.int64))
        return select(padding, constant(0, dtype), gradient) if Index.of(padding_idx) != -1 else gradient

    return scattered(zeros, "sum", gradients.shape, lambda i: (row(i), i[1]), source)
