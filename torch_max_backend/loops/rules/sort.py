"""Sorts of short rows, whose elements a GPU's threads compare with each other. Others are left to ATen.

All are stable. On a CPU no rule is asked.
"""

from __future__ import annotations

import torch

from torch_max_backend.loops import sort_keys
from torch_max_backend.loops.expr import as_index, constant
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.program import Sort
from torch_max_backend.loops.rules.registry import LeftToLibrary, aten, rule
from torch_max_backend.loops.tensor import At, Shape, Tensor, builder, define

LONGEST, LONGEST_WIDE = 4096, 2048
"""Elements of a row, and of one of 64 bits: a block has them in its shared memory."""


# sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)
@rule(aten.sort.default)
def sort(self: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor | None]:
    size = Index.of(1) if self.rank == 0 else self.shape[self.dim(dim)]
    if size == 0 or size == 1:
        return self, define(self.shape, torch.int64, lambda index: constant(0, torch.int64))
    check_row(self, size)
    d = self.dim(dim)
    if builder().wanted == {0} and not self.dtype.is_floating_point:
        return sorted_values(self, d, descending), None
    if sort_keys.has_word(self.dtype):
        return _by_words(self, d, descending)
    return _by_places(self, d, descending)


# sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)
@rule(aten.sort.stable)
def sort_stable(
    self: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor | None]:
    return sort(self, dim, descending)


def check_row(x: Tensor, size: Index, longest: int = LONGEST) -> None:
    """Leave rows of such a size to a library if they are not for threads of a block."""
    if x.dtype not in (*sort_keys.BITS, *sort_keys.INTEGERS) or not size.is_constant:
        raise LeftToLibrary
    if size.constant > min(longest, LONGEST if sort_keys.has_word(x.dtype) else LONGEST_WIDE):
        raise LeftToLibrary


def sorted_values(x: Tensor, d: int, descending: bool) -> Tensor:
    """The elements along a dimension in order, by their keys alone: -0 comes before 0."""
    keys = _sorted(x, d, lambda index: sort_keys.key(x.at(index), descending, orders_zeros=True))
    return define(x.shape, x.dtype, lambda i: sort_keys.of_key(keys.at(i), x.dtype, descending))


def _sorted(x: Tensor, d: int, key: At, gives_places: bool = False) -> Tensor:
    b = builder()
    variables = tuple(b.variable("i", size) for size in x.shape)
    body = key(tuple(map(Index.of, variables)))
    return b.add(torch.int64 if gives_places else body.dtype, variables, body, Sort(variables[d], gives_places))


def _by_words(x: Tensor, d: int, descending: bool) -> tuple[Tensor, Tensor]:
    """Elements and their places as one integer each, which are sorted and taken apart again."""
    words = _sorted(x, d, lambda index: sort_keys.word(x.at(index), index[d], descending))
    values = define(x.shape, x.dtype, lambda i: sort_keys.element(words.at(i), x.dtype, descending))
    return values, define(x.shape, torch.int64, lambda i: sort_keys.place(words.at(i)))


def _by_places(x: Tensor, d: int, descending: bool) -> tuple[Tensor, Tensor]:
    """The places of what is sorted, and the elements that are there."""
    places = _sorted(x, d, lambda index: sort_keys.key(x.at(index), descending), gives_places=True)
    last = int(x.shape[d].constant) - 1

    def chosen(index: Shape) -> Shape:
        return tuple(as_index(places.at(index), 0, last) if k == d else i for k, i in enumerate(index))

    return define(x.shape, x.dtype, lambda i: x.at(chosen(i))), places
