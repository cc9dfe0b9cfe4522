"""Views and what moves elements: index maps, which compute nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_max_backend.base.errors import Unsupported
from torch_max_backend.loops.expr import Scalar, bitcast, compare_index, constant, guarded
from torch_max_backend.loops.index import Index, clamped, greatest, least, product
from torch_max_backend.loops.rules.pointwise import to_copy
from torch_max_backend.loops.rules.registry import aten, rule
from torch_max_backend.loops.tensor import Shape, Tensor, builder, expanded

Size = int | Index


def mapped(x: Tensor, shape: Sequence[Size], index_map: Callable[[Shape], Sequence[Size]]) -> Tensor:
    """The view of ``shape`` whose element at an index is the one of ``x`` at ``index_map`` of it."""
    return Tensor(tuple(map(Index.of, shape)), x.dtype, lambda index: x.at(tuple(map(Index.of, index_map(index)))))


# -- reshapes ----------------------------------------------------------------------------------------------------------
def reshaped(x: Tensor, shape: Sequence[Size]) -> Tensor:
    """The elements in the same order in another shape; one size may be -1."""
    target = [Index.of(s) for s in shape]
    if any(s == -1 for s in target):
        known = product(s for s in target if s != -1)
        target = [product(x.shape) // known if s == -1 else s for s in target]
    if tuple(target) == x.shape:
        return x
    if any(s == 0 for s in target):  # no element, whose place would be a remainder of zero
        return Tensor(tuple(target), x.dtype, lambda index: constant(0, x.dtype))
    groups = _groups(x.shape, target)

    def index_map(index: Shape) -> list[Index]:
        result = [Index.of(0)] * x.rank
        for mine, theirs in groups:
            flat = Index.of(0)
            for d in theirs:
                flat = flat * target[d] + index[d]
            for d in reversed(mine):
                if d == mine[0]:
                    result[d] = flat
                else:
                    result[d], flat = flat % x.shape[d], flat // x.shape[d]
        return result

    return mapped(x, target, index_map)


def _groups(source: Shape, target: Sequence[Index]) -> list[tuple[list[int], list[int]]]:
    """The smallest runs of dimensions of ``source`` and ``target`` that have equal products."""
    groups: list[tuple[list[int], list[int]]] = []
    s = t = 0
    while s < len(source) or t < len(target):
        mine: list[int] = []
        theirs: list[int] = []
        a = b = Index.of(1)
        while True:
            if not (a.is_constant and b.is_constant):
                short_of_source = not mine if a == b else _is_multiple(b, a) and not (theirs and _is_multiple(a, b))
            else:
                short_of_source = a.constant < b.constant or not mine
            if a == b and (mine or theirs) and (mine or s >= len(source)) and (theirs or t >= len(target)):
                break
            if short_of_source and s < len(source):
                mine.append(s)
                a = a * source[s]
                s += 1
            elif t < len(target):
                theirs.append(t)
                b = b * target[t]
                t += 1
            elif s < len(source):
                mine.append(s)
                a = a * source[s]
                s += 1
            else:
                break
        groups.append((mine, theirs))
    return groups


def _is_multiple(a: Index, b: Index) -> bool:
    return b != 0 and a % b == 0


# view(Tensor(a) self, SymInt[] size) -> Tensor(a)
@rule(
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten._reshape_copy.default,
    aten._reshape_alias_copy.default,
)  # fmt: skip
def view(self: Tensor, size: Sequence[Size], stride: Any = None) -> Tensor:
    return reshaped(self, size)


# unsqueeze(Tensor(a) self, int dim) -> Tensor(a)
@rule(aten.unsqueeze.default)
def unsqueeze(self: Tensor, dim: int) -> Tensor:
    d = dim + self.rank + 1 if dim < 0 else dim
    return mapped(self, [*self.shape[:d], 1, *self.shape[d:]], lambda i: [*i[:d], *i[d + 1 :]])


# squeeze.dims(Tensor(a) self, int[] dim) -> Tensor(a)
@rule(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(self: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    dims = range(self.rank) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {self.dim(d) for d in dims if self.rank and self.shape[self.dim(d)] == 1}
    kept = [d for d in range(self.rank) if d not in gone]
    return mapped(
        self,
        [self.shape[d] for d in kept],
        lambda i: [0 if d in gone else i[kept.index(d)] for d in range(self.rank)],
    )


# -- orders ------------------------------------------------------------------------------------------------------------
# permute(Tensor(a) self, int[] dims) -> Tensor(a)
@rule(aten.permute.default)
def permute(self: Tensor, dims: Sequence[int]) -> Tensor:
    order = [self.dim(d) for d in dims]
    return mapped(self, [self.shape[d] for d in order], lambda i: [i[order.index(d)] for d in range(self.rank)])


# transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)
@rule(aten.transpose.int)
def transpose(self: Tensor, dim0: int, dim1: int) -> Tensor:
    order = list(range(self.rank))
    if order:
        a, b = self.dim(dim0), self.dim(dim1)
        order[a], order[b] = b, a
    return permute(self, order)


# t(Tensor(a) self) -> Tensor(a)
@rule(aten.t.default)
def t(self: Tensor) -> Tensor:
    return transpose(self, 0, 1) if self.rank == 2 else self


# flip(Tensor self, int[] dims) -> Tensor
@rule(aten.flip.default)
def flip(self: Tensor, dims: Sequence[int]) -> Tensor:
    turned = {self.dim(d) for d in dims}
    return mapped(
        self, self.shape, lambda i: [self.shape[d] - 1 - i[d] if d in turned else i[d] for d in range(self.rank)]
    )


# roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor
@rule(aten.roll.default)
def roll(self: Tensor, shifts: Sequence[Size], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        flat = reshaped(self, [-1])
        return reshaped(roll(flat, shifts, [0]), self.shape) if self.rank else self
    by: dict[int, Index] = {}
    for shift, d in zip(shifts, dims, strict=True):
        by[self.dim(d)] = by.get(self.dim(d), Index.of(0)) + shift
    result = self
    for d, shift in by.items():
        size = self.shape[d]
        if size.is_constant and size.constant == 0:
            continue
        start = (-shift) % size  # the element that comes first
        first, second = _narrow(result, d, start, size - start), _narrow(result, d, Index.of(0), start)
        result = cat([first, second], d) if start != 0 else result
    return result


# -- parts -------------------------------------------------------------------------------------------------------------
def _narrow(x: Tensor, d: int, start: Index, length: Index, step: int = 1) -> Tensor:
    shape = [*x.shape[:d], length, *x.shape[d + 1 :]]
    return mapped(x, shape, lambda i: [*i[:d], i[d] * step + start, *i[d + 1 :]])


# slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)
@rule(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice_(self: Tensor, dim: int = 0, start: Size | None = None, end: Size | None = None, step: Size = 1) -> Tensor:
    d = self.dim(dim)
    low, high = slice_bounds(self.shape[d], start, end)
    if not isinstance(step, int):
        raise Unsupported(f"a step of slice that is known, not {step}")
    return _narrow(self, d, low, (high - low + (step - 1)) // step, step)


def slice_bounds(size: Index, start: Size | None, end: Size | None) -> tuple[Index, Index]:
    """First and one-past-last index of a slice along a dimension, as Python clamps them."""

    def place(x: Size | None, default: Index) -> Index:
        if x is None:
            return default
        x = Index.of(x)
        if x.is_constant and x.constant >= 2**62:
            return size
        return clamped(from_front(x, size), Index.of(0), size)

    low, high = place(start, Index.of(0)), place(end, size)
    return low, greatest(high, low)


def from_front(x: Index, size: Index) -> Index:
    """A place along a dimension, which counts from the end if it is negative."""
    low, high = x.bounds
    if low < 0 <= high:
        raise Unsupported(f"a place that is negative or not for certain, not {x}")
    return x if low >= 0 else x + size


# select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)
@rule(aten.select.int, aten.select_copy.int)
def select_(self: Tensor, dim: int, index: Size) -> Tensor:
    d, at = self.dim(dim), Index.of(index)
    place = from_front(at, self.shape[d])
    return mapped(self, [*self.shape[:d], *self.shape[d + 1 :]], lambda i: [*i[:d], place, *i[d:]])


# split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]
@rule(aten.split.Tensor, aten.split_copy.Tensor)
def split(self: Tensor, split_size: Size, dim: int = 0) -> list[Tensor]:
    d = self.dim(dim)
    size, part = self.shape[d], Index.of(split_size)
    if not (size.is_constant and part.is_constant):
        if builder().promise is None:
            raise Unsupported(f"splits of known sizes, not {size} in parts of {part}")
        return split_with_sizes(self, [builder().symbols.of(x.shape[d]) for x in builder().promise], dim)
    count = max(1, -(-size.constant // max(1, part.constant)))
    return split_with_sizes(self, [min(part.constant, size.constant - k * part.constant) for k in range(count)], dim)


# split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]
@rule(aten.split_with_sizes.default)
def split_with_sizes(self: Tensor, split_sizes: Sequence[Size], dim: int = 0) -> list[Tensor]:
    d, start, parts = self.dim(dim), Index.of(0), []
    for size in split_sizes:
        parts.append(_narrow(self, d, start, Index.of(size)))
        start = start + size
    return parts


# unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]
@rule(aten.unbind.int)
def unbind(self: Tensor, dim: int = 0) -> list[Tensor]:
    size = self.shape[self.dim(dim)]
    if not size.is_constant and builder().promise is None:
        raise Unsupported(f"a known number of parts, not {size}")
    return [select_(self, dim, k) for k in range(size.constant if size.is_constant else len(builder().promise))]


# diagonal(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)
@rule(aten.diagonal.default)
def diagonal(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = self.dim(dim1), self.dim(dim2)
    rows, columns = self.shape[a], self.shape[b]
    down, right = max(0, -offset), max(0, offset)
    length = greatest(least(rows - down, columns - right), Index.of(0))
    rest = [d for d in range(self.rank) if d not in (a, b)]

    def index_map(i: Shape) -> list[Index]:
        place = {a: i[-1] + down, b: i[-1] + right}
        return [place[d] if d in place else i[rest.index(d)] for d in range(self.rank)]

    return mapped(self, [*(self.shape[d] for d in rest), length], index_map)


# as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)
# has no rule: it reads memory, and a tensor here has none. See loops/strided.py.


# -- repetitions -------------------------------------------------------------------------------------------------------
# expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)
@rule(aten.expand.default)
def expand(self: Tensor, size: Sequence[Size], implicit: bool = False) -> Tensor:
    missing = len(size) - self.rank
    shape = [self.shape[d - missing] if Index.of(s) == -1 else Index.of(s) for d, s in enumerate(size)]
    return expanded(self, tuple(shape))


# repeat(Tensor self, SymInt[] repeats) -> Tensor
@rule(aten.repeat.default)
def repeat(self: Tensor, repeats: Sequence[Size]) -> Tensor:
    missing = len(repeats) - self.rank
    sizes = [Index.of(1)] * missing + list(self.shape)
    shape = [s * r for s, r in zip(sizes, repeats, strict=True)]
    if any(s == 0 for s in self.shape):
        return Tensor(tuple(shape), self.dtype, lambda index: constant(0, self.dtype))
    return mapped(self, shape, lambda i: [i[missing + d] % self.shape[d] for d in range(self.rank)])


# -- joins -------------------------------------------------------------------------------------------------------------
# cat(Tensor[] tensors, int dim=0) -> Tensor
@rule(aten.cat.default)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    dtype = tensors[0].dtype
    for x in tensors[1:]:
        dtype = torch.promote_types(dtype, x.dtype)
    parts = [x for x in tensors if not (x.rank == 1 and x.shape[0] == 0)] or [tensors[0]]
    parts = [x if x.dtype is dtype else to_copy(x, dtype) for x in parts]
    d = parts[0].dim(dim)
    starts, total = [], Index.of(0)
    for x in parts:
        starts.append(total)
        total = total + x.shape[d]
    shape = (*parts[0].shape[:d], total, *parts[0].shape[d + 1 :])

    def at(index: Shape) -> Scalar:
        result = None
        for x, start in reversed(list(zip(parts, starts, strict=True))):
            if x.shape[d] == 0:
                continue
            part = x.at((*index[:d], index[d] - start, *index[d + 1 :]))
            if result is None:
                result = part
            else:
                result = guarded(compare_index("lt", index[d], start + x.shape[d]), part, result)
        return constant(0, dtype) if result is None else result

    return Tensor(shape, dtype, at)


# stack(Tensor[] tensors, int dim=0) -> Tensor
@rule(aten.stack.default)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    d = dim + tensors[0].rank + 1 if dim < 0 else dim
    return cat([unsqueeze(x, d) for x in tensors], d)


# -- pads and triangles ------------------------------------------------------------------------------------------------
# constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor
@rule(aten.constant_pad_nd.default)
def constant_pad_nd(self: Tensor, pad: Sequence[Size], value: Any = 0) -> Tensor:
    low = [Index.of(0)] * self.rank
    high = [Index.of(0)] * self.rank
    for k in range(len(pad) // 2):
        low[self.rank - 1 - k], high[self.rank - 1 - k] = Index.of(pad[2 * k]), Index.of(pad[2 * k + 1])
    shape = tuple(s + a + b for s, a, b in zip(self.shape, low, high, strict=True))

    def at(index: Shape) -> Scalar:
        inner = tuple(i - a for i, a in zip(index, low, strict=True))
        result = self.at(inner)
        for d in range(self.rank):
            outside = constant(value, self.dtype)
            if low[d] != 0:
                result = guarded(compare_index("ge", inner[d], Index.of(0)), result, outside)
            if high[d] != 0:
                result = guarded(compare_index("lt", inner[d], self.shape[d]), result, outside)
        return result

    return Tensor(shape, self.dtype, at)


def _triangle(x: Tensor, diagonal: int, lower: bool) -> Tensor:
    def at(index: Shape) -> Scalar:
        row, column = index[-2] + diagonal, index[-1]
        inside = compare_index("le", column, row) if lower else compare_index("ge", column, row)
        return guarded(inside, x.at(index), constant(0, x.dtype))

    return Tensor(x.shape, x.dtype, at)


# tril(Tensor self, int diagonal=0) -> Tensor
@rule(aten.tril.default)
def tril(self: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(self, diagonal, True)


# triu(Tensor self, int diagonal=0) -> Tensor
@rule(aten.triu.default)
def triu(self: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(self, diagonal, False)


# detach(Tensor(a) self) -> Tensor(a)
@rule(aten.detach.default, aten.alias.default, aten.detach_copy.default)
def same(self: Tensor) -> Tensor:
    return self


# unfold(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)
@rule(aten.unfold.default)
def unfold(self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    if self.rank == 0:
        return Tensor((Index.of(size),), self.dtype, lambda i: self.at(()))
    d = self.dim(dimension)
    shape = [*self.shape[:d], (self.shape[d] - size) // step + 1, *self.shape[d + 1 :], Index.of(size)]

    def index_map(i: Shape) -> list[Index]:
        return [*i[:d], i[d] * step + i[-1], *i[d + 1 : -1]]

    return mapped(self, shape, index_map)


# -- the same bits as another dtype ------------------------------------------------------------------------------------
# view.dtype(Tensor(a) self, ScalarType dtype) -> Tensor(a)
@rule(aten.view.dtype)
def view_dtype(self: Tensor, dtype: torch.dtype) -> Tensor:
    if self.dtype.itemsize != dtype.itemsize or torch.bool in (self.dtype, dtype):
        raise Unsupported(f"the bits as a dtype of the same width, and not as bool, not {self.dtype} as {dtype}")
    return Tensor(self.shape, dtype, lambda i: bitcast(self.at(i), dtype))
