"""Elements found by rank in short rows, which are sorted for that: where only values are read, not their places.

Which of equal elements ATen names, its algorithms alone say; so does the sign of a zero. On a CPU no rule is asked.
"""

from __future__ import annotations

from torch_max_backend.loops.expr import Scalar, op, select
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.rules.registry import LeftToLibrary, aten, rule
from torch_max_backend.loops.rules.sort import check_row, sorted_values
from torch_max_backend.loops.tensor import Shape, Tensor, builder, define

LONGEST = 1024
"""Elements of a row: to find a few of a long one, ATen does not sort it."""


def _ordered(x: Tensor, dim: int, descending: bool = False) -> tuple[Tensor, int]:
    """The elements along a dimension in order, and the dimension from the front."""
    wanted = builder().wanted
    if wanted is None or 1 in wanted or x.rank == 0:
        raise LeftToLibrary
    d = x.dim(dim)
    if x.shape[d].bounds[0] < 2:
        raise LeftToLibrary
    check_row(x, x.shape[d], LONGEST)
    return sorted_values(x, d, descending), d


def _without(shape: Shape, d: int, keepdim: bool) -> Shape:
    return tuple(Index.of(1) if k == d else n for k, n in enumerate(shape) if k != d or keepdim)


def _with(index: Shape, d: int, at: int, keepdim: bool) -> Shape:
    """The index of an element of which the place along a dimension is known."""
    return (*index[:d], Index.of(at), *index[d + keepdim :])


# topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)
@rule(aten.topk.default)
def topk(self: Tensor, k: int | Index, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, None]:
    values, d = _ordered(self, dim, largest)
    shape = tuple(Index.of(k) if n == d else size for n, size in enumerate(self.shape))
    return define(shape, self.dtype, values.at), None


# kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)
@rule(aten.kthvalue.default)
def kthvalue(self: Tensor, k: int | Index, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, None]:
    if not isinstance(k, int):
        raise LeftToLibrary
    values, d = _ordered(self, dim)
    shape = _without(self.shape, d, keepdim)
    return define(shape, self.dtype, lambda index: values.at(_with(index, d, k - 1, keepdim))), None


# median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)
@rule(aten.median.dim)
def median(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, None]:
    """The lower one of the two in the middle, or NaN where there is one: the last element then."""
    values, d = _ordered(self, dim)
    last = int(self.shape[d].constant) - 1

    def at(index: Shape) -> Scalar:
        found = values.at(_with(index, d, last // 2, keepdim))
        end = values.at(_with(index, d, last, keepdim))
        return select(op("is_nan", end), end, found) if self.dtype.is_floating_point else found

    return define(_without(self.shape, d, keepdim), self.dtype, at), None
