"""Sorts of short rows, whose elements a GPU's threads compare with each other; of others on a GPU are left to ATen.

All are stable. On a CPU no rule is asked.
"""

from __future__ import annotations

import torch

from torch_max_backend.loops import sort_keys
from torch_max_backend.loops.expr import as_index, constant
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.program import Sort
from torch_max_backend.loops.rules.registry import LeftToLibrary, aten, rule
from torch_max_backend.loops.tensor import Shape, Tensor, builder, define

LONGEST = 2048
"""Elements of a row: the threads of a block hold them."""


# sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)
@rule(aten.sort.default)
def sort(self: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    if self.dtype not in (*sort_keys.BITS, *sort_keys.INTEGERS):
        raise LeftToLibrary
    size = Index.of(1) if self.rank == 0 else self.shape[self.dim(dim)]
    if size == 0 or size == 1:
        return self, define(self.shape, torch.int64, lambda index: constant(0, torch.int64))
    if not size.is_constant or size.constant > LONGEST:
        raise LeftToLibrary
    d = self.dim(dim)
    if sort_keys.has_word(self.dtype):
        return _by_words(self, d, descending)
    return _by_places(self, d, descending)


# sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)
@rule(aten.sort.stable)
def sort_stable(self: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return sort(self, dim, descending)


def _by_words(x: Tensor, d: int, descending: bool) -> tuple[Tensor, Tensor]:
    """Elements and their places as one integer each, which are sorted and taken apart again."""
    b = builder()
    variables = tuple(b.variable("i", size) for size in x.shape)
    index = tuple(map(Index.of, variables))
    body = sort_keys.word(x.at(index), index[d], descending)
    words = b.add(body.dtype, variables, body, Sort(variables[d]))
    values = define(x.shape, x.dtype, lambda i: sort_keys.element(words.at(i), x.dtype, descending))
    return values, define(x.shape, torch.int64, lambda i: sort_keys.place(words.at(i)))


def _by_places(x: Tensor, d: int, descending: bool) -> tuple[Tensor, Tensor]:
    """The places of what is sorted, and the elements that are there."""
    b = builder()
    variables = tuple(b.variable("i", size) for size in x.shape)
    body = sort_keys.key(x.at(tuple(map(Index.of, variables))), descending)
    places = b.add(torch.int64, variables, body, Sort(variables[d], gives_places=True))
    last = int(x.shape[d].constant) - 1

    def chosen(index: Shape) -> Shape:
        return tuple(as_index(places.at(index), 0, last) if k == d else i for k, i in enumerate(index))

    return define(x.shape, x.dtype, lambda i: x.at(chosen(i))), places
