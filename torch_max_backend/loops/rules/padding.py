"""Pads that repeat or mirror the edge: index maps, and their gradients as a sum over the outputs that show an input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch_max_backend.base.errors import Unsupported
from torch_max_backend.loops.expr import Scalar, cast, compare_index, constant
from torch_max_backend.loops.index import Index, clamped, greatest
from torch_max_backend.loops.rules.registry import add_rule, aten
from torch_max_backend.loops.rules.windows import Condition, in_range, known, where_all
from torch_max_backend.loops.tensor import Shape, Tensor, computed_in, define

Pads = list[tuple[int, int]]
Shown = list[tuple[Index, list[Condition]]]
MOST = 128
"""Outputs that one input may be shown by, above which the sum is too long to be written out."""


def _pads(padding: Sequence[int | Index]) -> Pads:
    """The pads before and after each of the last dimensions, in order."""
    numbers = [known(Index.of(p)) for p in padding]
    return [(numbers[k], numbers[k + 1]) for k in range(len(numbers) - 2, -1, -2)]


# -- maps --------------------------------------------------------------------------------------------------------------
def _reflected(o: Index, before: int, size: Index) -> Index:
    """The input that a mirrored pad shows: ``size - 1 - |size - 1 - |o - before||``."""
    i = o - before
    i = greatest(i, -i)
    i = i - (size - 1)
    return -greatest(i, -i) + (size - 1)


def _replicated(o: Index, before: int, size: Index) -> Index:
    return clamped(o - before, Index.of(0), size - 1)


def _reflections(i: Index, before: int, after: int, size: int) -> Shown:
    """The outputs that show an input of a mirrored pad."""
    total, last = before + size + after, size - 1
    shown = [(i + before, in_range(i + before, total))]
    if before > 0:
        o = before - i
        shown.append((o, [compare_index("ge", i, Index.of(1)), compare_index("ge", o, Index.of(0))]))
    if after > 0:
        o = 2 * last - i + before
        shown.append((o, [compare_index("lt", i, Index.of(last)), compare_index("lt", o, Index.of(total))]))
    return shown


def _replications(i: Index, before: int, after: int, size: int) -> Shown:
    total, last = before + size + after, size - 1
    shown = [(i + before, in_range(i + before, total))]
    first, end = compare_index("eq", i, Index.of(0)), compare_index("eq", i, Index.of(last))
    shown += [(Index.of(o), [first]) for o in range(min(before, total))]
    shown += [(Index.of(o), [end]) for o in range(max(0, before + size), total)]
    return shown


# -- rules -------------------------------------------------------------------------------------------------------------
def _padded(x: Tensor, padding: Sequence[int | Index], source: Callable[[Index, int, Index], Index]) -> Tensor:
    pads = _pads(padding)
    sizes = x.shape[x.rank - len(pads) :]
    fixed = x.shape[: x.rank - len(pads)]
    shape = (*fixed, *(s + a + b for s, (a, b) in zip(sizes, pads, strict=True)))

    def at(index: Shape) -> Scalar:
        inner = index[len(fixed) :]
        return x.at((*index[: len(fixed)], *(source(o, a, s) for o, (a, _), s in zip(inner, pads, sizes, strict=True))))

    return Tensor(shape, x.dtype, at)


def _gradient(
    grad: Tensor, x: Tensor, padding: Sequence[int | Index], shown: Callable[[Index, int, int, int], Shown]
) -> Tensor:
    pads = _pads(padding)
    sizes = [known(s) for s in x.shape[x.rank - len(pads) :]]
    first, inner = x.rank - len(pads), computed_in(grad.dtype)

    def at(index: Shape) -> Scalar:
        places = [shown(i, a, b, s) for i, (a, b), s in zip(index[first:], pads, sizes, strict=True)]
        if math.prod(map(len, places)) > MOST:
            raise Unsupported(f"gradients of pads that show an input at most {MOST} times, not pads of {pads}")

        def summed(o: Shape, rest: list[Shown]) -> Scalar:
            if not rest:
                return cast(grad.at((*index[:first], *o)), inner)
            total: Scalar | None = None
            for place, conditions in rest[0]:
                part = where_all(conditions, summed((*o, place), rest[1:]), constant(0, inner))
                total = part if total is None else total + part
            assert total is not None
            return total

        return summed((), places)

    return define(x.shape, grad.dtype, at)


# reflection_pad1d(Tensor self, SymInt[2] padding) -> Tensor
def reflection_pad(self: Tensor, padding: Sequence[int | Index]) -> Tensor:
    """Rule of the mirrored pads, which leave the edge itself out."""
    return _padded(self, padding, _reflected)


# replication_pad1d(Tensor self, SymInt[2] padding) -> Tensor
def replication_pad(self: Tensor, padding: Sequence[int | Index]) -> Tensor:
    """Rule of the pads that repeat the edge."""
    return _padded(self, padding, _replicated)


# reflection_pad1d_backward(Tensor grad_output, Tensor self, SymInt[2] padding) -> Tensor
def reflection_pad_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int | Index]) -> Tensor:
    """Rule of the gradients of mirrored pads."""
    return _gradient(grad_output, self, padding, _reflections)


# replication_pad1d_backward(Tensor grad_output, Tensor self, SymInt[2] padding) -> Tensor
def replication_pad_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int | Index]) -> Tensor:
    """Rule of the gradients of pads that repeat the edge."""
    return _gradient(grad_output, self, padding, _replications)


for _rank in "123":
    add_rule(reflection_pad, getattr(aten, f"reflection_pad{_rank}d").default)
    add_rule(replication_pad, getattr(aten, f"replication_pad{_rank}d").default)
    add_rule(reflection_pad_backward, getattr(aten, f"reflection_pad{_rank}d_backward").default)
    add_rule(replication_pad_backward, getattr(aten, f"replication_pad{_rank}d_backward").default)
