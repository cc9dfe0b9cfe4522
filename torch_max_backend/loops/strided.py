"""``as_strided`` and ``as_strided_scatter``: they speak of places in memory, of which tensors of loops have none.

So both take how torch lays out the tensor: densely, in some order of its dimensions, and from where its memory begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torch_max_backend.base.errors import Unsupported
from torch_max_backend.capture.fake_tensors import expr_of, order_of
from torch_max_backend.loops.expr import Scalar, compare_index, guarded
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.tensor import Shape, Tensor

aten = torch.ops.aten
Lengths = Callable[[Sequence[int | torch.SymInt]], Shape]
"""What gives torch's sizes or strides as they are in loops."""


# as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)
def as_strided(
    like: torch.Tensor,
    lengths: Lengths,
    self: Tensor,
    size: Sequence[int | Index],
    stride: Sequence[int | Index],
    storage_offset: int | Index | None = None,
) -> Tensor:
    """What lies at the places of a view of memory; ``like`` is what torch has for ``self``.

    Raises:
        Unsupported: ``like`` has gaps, or begins elsewhere than its memory.
    """
    order = _order("as_strided", like)
    steps = lengths(like.stride())

    def at(index: Shape) -> Scalar:
        place = Index.of(storage_offset or 0)
        for i, step in zip(index, stride, strict=True):
            place = place + i * step
        own = [place // steps[d] % self.shape[d] if k else place // steps[d] for k, d in enumerate(order)]
        return self.at(tuple(own[order.index(d)] for d in range(self.rank)))

    return Tensor(tuple(map(Index.of, size)), self.dtype, at)


# as_strided_scatter(Tensor self, Tensor src, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor
def as_strided_scatter(
    like: torch.Tensor,
    lengths: Lengths,
    self: Tensor,
    src: Tensor,
    size: Sequence[int | Index],
    stride: Sequence[int | Index],
    storage_offset: int | Index | None = None,
) -> Tensor:
    """``self`` with ``src`` at the places of a view of memory; ``like`` is what torch has for ``self``.

    An element finds its index in the view by dividing its place by one stride after the other.

    Raises:
        Unsupported: ``like`` has gaps, or begins elsewhere than its memory; or the view's dimensions are not each
            within one step of the next, as where two of its elements are one.
    """
    _order("as_strided_scatter", like)
    steps = lengths(like.stride())
    sizes, strides = tuple(map(Index.of, size)), tuple(map(Index.of, stride))
    order = sorted((d for d, n in enumerate(sizes) if n != 1), key=lambda d: -strides[d].typical)
    if any(n == 0 for n in sizes):
        return self
    reach = Index.of(1)  # one more than the last place of the dimensions inside
    for d in reversed(order):
        if (strides[d] - reach).bounds[0] < 0:
            raise Unsupported(
                f"as_strided_scatter to places that may be equal, of size {list(size)}, stride {list(stride)}"
            )
        reach = reach + (sizes[d] - 1) * strides[d]

    def at(index: Shape) -> Scalar:
        place = Index.of(0) - Index.of(storage_offset or 0)
        for i, step in zip(index, steps, strict=True):
            place = place + i * step
        inner, rest = [Index.of(0)] * src.rank, place
        for d in order:
            inner[d], rest = rest // strides[d], rest % strides[d]
        result = src.at(tuple(inner))
        for d in order:
            result = guarded(compare_index("lt", inner[d], sizes[d]), result, self.at(index))
        result = guarded(compare_index("eq", rest, Index.of(0)), result, self.at(index))
        return guarded(compare_index("ge", place, Index.of(0)), result, self.at(index))

    return Tensor(self.shape, self.dtype, at)


def _order(op: str, like: torch.Tensor) -> tuple[int, ...]:
    """The order of a tensor's dimensions in its memory, which has nothing else."""
    order = order_of(like)
    if order is None:
        raise Unsupported(f"{op} of a dense tensor, not of size {list(like.shape)}, stride {list(like.stride())}")
    if expr_of(like.storage_offset()) != 0:
        raise Unsupported(f"{op} of a tensor that begins with its memory, not at element {like.storage_offset()}")
    return order


STRIDED: dict[object, Callable[..., Tensor]] = {
    aten.as_strided.default: as_strided,
    aten.as_strided_copy.default: as_strided,
    aten.as_strided_scatter.default: as_strided_scatter,
}
